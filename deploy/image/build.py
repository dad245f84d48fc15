"""The image of tonnage: a layer of Debian packages and dependencies, which seldom changes, and one of our own code."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from deploy.image import archive, contents, debian, wheels
from deploy.image.archive import Entry
from deploy.image.python import Unpacked, version

from tonnage import __version__

LIMIT = 150 * 2**20
_START = """#!/usr/bin/python3 -I
from tonnage.tools.cli.main import main
raise SystemExit(main())
"""


@dataclass(frozen=True)
class Image:
    """What was built. size: of the archive in bytes; digest: of the image's manifest; materials: the packages and
    wheels that it was made of."""

    file: Path
    name: str
    size: int
    digest: str
    materials: tuple[Path, ...]


def cache() -> Path:
    """Where downloads are kept, outside the tree."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return base / "tonnage" / "image"


def time_of_source() -> int:
    """$SOURCE_DATE_EPOCH, else the time of the newest commit, else of the newest file; seconds since 1970."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    asked = ["git", "-C", str(wheels.SOURCE), "log", "-1", "--format=%ct"]
    try:
        return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return max(int(file.stat().st_mtime) for file in (wheels.SOURCE / "src").rglob("*.py"))


def build(file: Path, name: str, *, time: int | None = None, architecture: str = "") -> Image:
    """Build the image `name` into `file`. time: of our code's files, time_of_source() by default. architecture: as
    Debian calls it, the machine's by default; qemu-user runs the programs of another one.

    Raises debian.Missing, python.Broken, ValueError for one that is too large.
    """
    downloads, architecture = cache(), architecture or debian.architecture()
    time = time_of_source() if time is None else time
    packages = debian.fetch(contents.PACKAGES, downloads, architecture)
    system, newest = debian.unpack(packages)
    system |= contents.base()
    python = version(system)
    site = f"usr/local/lib/python{python}/dist-packages"
    dependencies = wheels.dependencies(python, architecture, downloads)
    for wheel in dependencies:
        system |= wheels.unpack(wheel, site)
    own = _own(site, time)
    with tempfile.TemporaryDirectory(prefix="tonnage-image-") as folder:
        unpacked = Unpacked({**system, **own}, Path(folder), architecture)
        unpacked.check_libraries()
        compiled = unpacked.compiled([f"usr/lib/python{python}", site])
    own |= {path: entry for path, entry in compiled.items() if path.startswith(f"{site}/tonnage/")}
    system |= {path: entry for path, entry in compiled.items() if path not in own}
    layers = [archive.layer(system, newest), archive.layer(own, time)]
    file.parent.mkdir(parents=True, exist_ok=True)
    digest = archive.write(file, name, layers, config=_config(), time=time, debian=architecture)
    size = file.stat().st_size
    if size > LIMIT:
        raise ValueError(f"{file} has {size >> 20} MiB: an image is to have at most {LIMIT >> 20}")
    return Image(file, name, size, digest, (*(package.file for package in packages), *dependencies))


def _own(site: str, time: int) -> archive.Tree:
    wheel = wheels.ours(time)
    try:
        tree = wheels.unpack(wheel, site)
    finally:
        shutil.rmtree(wheel.parents[1])
    return tree | {"usr/bin/tonnage": Entry(0o755, _START.encode())}


def _config() -> dict[str, object]:
    """Of containers. The user is one without power: agents, which need root, say so in their DaemonSet."""
    return {
        "User": f"{contents.USER}:{contents.USER}",
        "Entrypoint": ["/usr/bin/tonnage"],
        "Env": ["PATH=/usr/sbin:/usr/bin", "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1"],
        "WorkingDir": "/",
        "Labels": {
            "org.opencontainers.image.title": "tonnage",
            "org.opencontainers.image.version": __version__,
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    }
