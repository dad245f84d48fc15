"""Unpacking of a layer into an image store, beside GNU tar on the same disk. Blocking; both end with a sync."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from benchmarks.figure import Figure

from tonnage.storage.images.store import ImageStore
from tonnage_box.testing import image_archive

_MIB = 1 << 20
_PER_FOLDER = 100


@dataclass(frozen=True)
class Sizes:
    """bytes and files of the image; turns: of each of the two programs."""

    bytes: int = 1 << 30
    files: int = 20_000
    turns: int = 3


def unpacking(folder: Path, sizes: Sizes) -> list[Figure]:
    """Rates of both, of a plain layer and of a compressed one; none where there is no tar."""
    if shutil.which("tar") is None:
        return []
    tar = folder / "layer.tar"
    _write(tar, sizes)
    return [_beside(folder, tar, sizes, compressed=compressed) for compressed in (False, True)]


def _write(path: Path, sizes: Sizes) -> None:
    data = os.urandom(sizes.bytes // sizes.files)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(sizes.files):
            info = tarfile.TarInfo(f"{number // _PER_FOLDER}/{number}")
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, BytesIO(data))


def _beside(folder: Path, tar: Path, sizes: Sizes, *, compressed: bool) -> Figure:
    """The rate of one kind of layer: `docker save` has it as it is, a registry's layer is compressed."""
    shutil.rmtree(folder / "saved", ignore_errors=True)
    files = image_archive.layout([tar.read_bytes()], name="bench:1", compressed=compressed)
    saved = image_archive.write(folder / "saved", files)
    layer = max((saved / "blobs" / "sha256").iterdir(), key=lambda blob: blob.stat().st_size)
    del files
    ours, theirs = [], []
    for _ in range(sizes.turns):
        ours.append(_timed(folder / "unpacked", lambda at: _load(saved, at)))
        theirs.append(_timed(folder / "unpacked", lambda at: _extract(layer, at)))
    kind = "gzip" if compressed else "plain"
    rates = [sizes.bytes / _MIB / statistics.median(times) for times in (ours, theirs)]
    name = f"unpacking {sizes.files} files of {sizes.bytes // _MIB} MiB, {kind}"
    return Figure(name, rates[0], "MiB/s", rates[1], "GNU tar:", at_least=0.7)


def _load(saved: Path, at: Path) -> None:
    ImageStore(at).load(saved)


def _extract(layer: Path, at: Path) -> None:
    at.mkdir()
    subprocess.run(["tar", "-xf", str(layer), "-C", str(at)], check=True)
    subprocess.run(["sync", "-f", str(at)], check=True)


def _timed(at: Path, unpack: Callable[[Path], None]) -> float:
    """Seconds of one, into a folder that is removed."""
    began = time.perf_counter()
    unpack(at)
    took = time.perf_counter() - began
    shutil.rmtree(at)
    os.sync()
    return took
