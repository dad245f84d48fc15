"""Snapshot and restore of a 10 GiB volume with 5 GiB of data, by calls of the driver, beside bare commands.

Where blocks are shared: a btrfs pool, and image files on xfs and btrfs, beside `btrfs subvolume snapshot` and
`cp --reflink=always`. Where they are copied: image files on this machine's own disk, beside `cp --sparse=always` there.
Each bare command ends with a flush of what it made, as an answer of the driver does. The disk has to have 25 GiB free.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from benchmarks.box.box import ROOT
from benchmarks.data_services.disks import disk
from benchmarks.driver.calls import timed
from benchmarks.driver.life import GIB, GROWING, MIB, MOUNT
from benchmarks.driver.life import _driver as driver
from benchmarks.figure import Figure

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import ContentSource
from tonnage.storage.pools.image import copy

MOST_RUNS = 1
SIZE, DATA, DISK = 10 * GIB, 5 * GIB, 40 * GIB
TURNS, COPIES = 11, 1
SHARED_MS, COPIED = 200.0, 0.7
"""Goals: milliseconds where blocks are shared, and the share of cp's rate where they are copied."""
_BLOCK = 16 * MIB


@dataclass(frozen=True)
class Taken:
    """Milliseconds of each call."""

    snapshot: list[float]
    restore: list[float]
    bare: list[float]

    def figures(self, title: str, command: str) -> list[Figure]:
        """Medians of calls that share blocks, beside the bare command."""
        bare = statistics.median(self.bare)
        return [
            Figure(f"{title}: CreateSnapshot, p50", statistics.median(self.snapshot), "ms", at_most=SHARED_MS),
            Figure(f"{title}: CreateVolume from it, p50", statistics.median(self.restore), "ms", at_most=SHARED_MS),
            Figure(f"{title}: bare {command}, p50", bare, "ms"),
            Figure(f"{title}: CreateSnapshot, of bare", statistics.median(self.snapshot) / bare, "times"),
        ]


async def run() -> list[Figure]:
    """All that can be measured here; pools need root."""
    if not ROOT:
        return []
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/var/tmp") as name:
        folder = Path(name)
        figures = await _btrfs(folder)
        for fstype in ("xfs", "btrfs"):
            with ExitStack() as stack:
                place = await asyncio.to_thread(stack.enter_context, disk(folder, fstype, DISK))
                figures += await _images(folder, place, fstype)
        return figures + await _copied(folder)


async def _btrfs(folder: Path) -> list[Figure]:
    """Subvolumes. The bare command copies the volume's own."""
    async with volume(folder, f"btrfs:{folder}/pool,size={DISK},{GROWING}", data=DATA) as (client, vid):
        root = folder / "pool" / "mounted"
        source = _subvolume(root, vid.rpartition("/")[2])

        def bare(number: int) -> None:
            copied = root / f"bare-{number}"
            _command("btrfs", "subvolume", "snapshot", "-r", str(source), str(copied))
            _command("btrfs", "filesystem", "sync", str(root))

        taken = await _measured(client, vid, bare, TURNS)
        for number in range(TURNS):
            await asyncio.to_thread(_command, "btrfs", "subvolume", "delete", f"{root}/bare-{number}")
    return taken.figures("btrfs", "btrfs subvolume snapshot")


def _subvolume(root: Path, name: str) -> Path:
    """Where the pool has the volume."""
    return next(path for path in root.rglob(f"{name}.vol") if path.is_dir())


async def _images(folder: Path, place: Path, fstype: str) -> list[Figure]:
    """ext4 in image files that can share blocks."""
    async with volume(folder, f"image:{place}/pool,size={DISK},{GROWING}", data=DATA) as (client, vid):
        cloned = _copier(place, vid, "--reflink=always")
        taken = await _measured(client, vid, cloned, TURNS)
    return taken.figures(f"image, ext4 on {fstype}", "cp --reflink=always")


async def _copied(folder: Path) -> list[Figure]:
    """The same on this machine's own disk. Nothing where that shares blocks too, or has no space for the copies."""
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    if _shares(folder) or free < 4 * DATA + 5 * GIB:
        return []
    (place := folder / "own").mkdir()
    async with volume(folder, f"image:{place}/pool,size={DISK},{GROWING}", data=DATA) as (client, vid):
        taken = await _measured(
            client, vid, _copier(place, vid, "--sparse=always"), COPIES, before=lambda: _cool(place)
        )
    bare = statistics.median(taken.bare)
    ways = (("CreateSnapshot", taken.snapshot), ("CreateVolume from it", taken.restore))
    return [
        Figure("image, copied: bare cp --sparse=always", DATA / MIB / bare * 1000, "MiB/s"),
        *(
            Figure(f"image, copied: {what}, of cp's rate", bare / statistics.median(took), "times", at_least=COPIED)
            for what, took in ways
        ),
    ]


def _shares(folder: Path) -> bool:
    with tempfile.TemporaryFile(dir=folder) as source, tempfile.TemporaryFile(dir=folder) as made:
        source.write(b"x" * MIB)
        source.flush()
        return copy.can_share(made.fileno(), source.fileno())


def _copier(place: Path, vid: str, how: str) -> Callable[[int], None]:
    """Copies of the volume's image by cp, each flushed; every one replaces the last."""
    source, target = _image(place, vid), place / "bare.img"

    def copied(number: int) -> None:
        _command("cp", how, str(source), str(target))
        _command("sync", str(target), str(place))

    return copied


def _image(place: Path, vid: str) -> Path:
    return next((place / "pool").rglob(f"{vid.rpartition('/')[2]}.img"))


def _cool(place: Path) -> None:
    """Take the files out of the host's cache, so that none of the copies reads what another has read. Blocking."""
    for image in place.rglob("*.img"):
        with image.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def _measured(
    client: CsiClient, vid: str, bare: Callable[[int], None], turns: int, *, before: Callable[[], None] = lambda: None
) -> Taken:
    """Snapshot, restore and bare copy take turns, so that a noisy machine disturbs all. before: each of them."""
    taken = Taken([], [], [])
    for number in range(turns):
        await asyncio.to_thread(before)
        taken.bare.append(await asyncio.to_thread(timed, lambda n=number: bare(n)))  # type: ignore[misc]
        await asyncio.to_thread(before)
        began = perf_counter()
        made = await client.create_snapshot(f"s{number}", vid)
        taken.snapshot.append((perf_counter() - began) * 1000)
        await asyncio.to_thread(before)
        began = perf_counter()
        restored = await client.create_volume(f"r{number}", SIZE, [MOUNT], source=ContentSource(snapshot_id=made.id))
        taken.restore.append((perf_counter() - began) * 1000)
        await client.delete_volume(restored.id)
        await client.delete_snapshot(made.id)
    return taken


@asynccontextmanager
async def volume(
    folder: Path, pool: str, *, data: int, fstype: str = "", staged: bool = False
) -> AsyncIterator[tuple[CsiClient, str]]:
    """A driver over that pool with a volume of SIZE and so much data in it. staged: it stays mounted at
    folder/staging."""
    (home := folder / "driver").mkdir(exist_ok=True)
    staging, use = folder / "staging", MOUNT
    parameters = {"csi.storage.k8s.io/fstype": fstype} if fstype else {}
    async with driver(home, "data", pool) as (client, _):
        made = await client.create_volume("source", SIZE, [use], parameters=parameters, timeout=300)
        staging.mkdir()
        try:
            await client.stage(made.id, staging, use)
            target = folder / "target"
            await client.publish(made.id, target, use, staging=staging)
            await asyncio.to_thread(_fill, target / "data", data)
            if not staged:
                await _unmount(client, made.id, folder)
            yield client, made.id
        finally:
            await _unmount(client, made.id, folder)
            staging.rmdir()
            await client.delete_volume(made.id)
            await asyncio.to_thread(_forget, folder)


async def _unmount(client: CsiClient, vid: str, folder: Path) -> None:
    await client.unpublish(vid, folder / "target")
    await client.unstage(vid, folder / "staging")


def _forget(folder: Path) -> None:
    for left in folder.rglob("bare.img"):
        left.unlink()


def _fill(file: Path, count: int) -> None:
    """Write so many bytes that no file system makes fewer of. Blocking."""
    block = os.urandom(_BLOCK)
    with file.open("wb") as made:
        for _ in range(count // _BLOCK):
            made.write(block)
        made.flush()
        os.fsync(made.fileno())


def _command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
