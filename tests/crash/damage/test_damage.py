"""Pools that start with a damaged record or marker, or with one of an earlier moment: no byte of a volume is lost."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.crash.damage.damage import MI, NAME, File, Life, Record, sample

from tonnage.host import loop, mount
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.directory.directory import MARKER

pytestmark = pytest.mark.real
XFS, BTRFS = 304 * MI, 128 * MI


class Image(Life):
    """An image pool."""

    def __init__(self, folder: Path, request: VolumeRequest, options: str = "sparse=yes") -> None:
        super().__init__(folder, File(folder / "pool" / f"{NAME}.json"), request)
        self.options = options
        self.marker: Record = File(folder / "pool" / MARKER)

    def make(self) -> Pool:
        return make(parse(f"image:{self.folder / 'pool'},name=p,size=2Gi,overcommit=yes,{self.options}"), disks=Disks())


class Btrfs(Life):
    """A btrfs pool on a btrfs."""

    def __init__(self, folder: Path) -> None:
        disk = folder / "disk"
        _mounted(folder, disk, "mkfs.btrfs", "btrfs", 600 * MI)
        super().__init__(folder, File(disk / "pool" / f"{NAME}.json"), VolumeRequest(NAME, 8 * MI))
        self.marker: Record = File(disk / "pool" / MARKER)

    def make(self) -> Pool:
        return make(parse(f"btrfs:{self.folder / 'disk' / 'pool'},name=p,size=300Mi,overcommit=yes"), disks=Disks())


class Static(Life):
    """A static pool with one disk, a block device."""

    def __init__(self, folder: Path, request: VolumeRequest) -> None:
        disks = folder / "disks"
        disks.mkdir(mode=0o755)
        (disks / "d1").symlink_to(_attached(folder / "d1.img", 40 * MI))
        super().__init__(folder, File(disks / ".tonnage" / "d1.json"), request)
        self.marker: Record = File(disks / ".tonnage" / MARKER)

    def make(self) -> Pool:
        return make(parse(f"static:{self.folder / 'disks'},name=p"))


def _attached(path: Path, size: int) -> str:
    path.touch()
    os.truncate(path, size)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        attached = loop.attach(fd, str(path), autoclear=False)
    finally:
        os.close(fd)
    attached.close()
    return attached.path


def _mounted(folder: Path, where: Path, program: str, fstype: str, size: int) -> None:
    image = folder / "disk.img"
    image.touch()
    os.truncate(image, size)
    subprocess.run([program, "-q", image], check=True, capture_output=True)
    where.mkdir()
    fd = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        attached = loop.attach(fd, str(image))
        mount.mount(attached.path, where, fstype, ())
        attached.close()
    finally:
        os.close(fd)


KINDS = ["image", "image thick", "image xfs", "image btrfs", "image block", "btrfs", "static", "static block"]


def _life(kind: str, folder: Path) -> Image | Btrfs | Static:
    plain, block = VolumeRequest(NAME, 16 * MI), VolumeRequest(NAME, 16 * MI, block=True)
    match kind:
        case "image":
            return Image(folder, plain)
        case "image thick":
            return Image(folder, plain, "sparse=no")
        case "image xfs":
            return Image(folder, VolumeRequest(NAME, XFS, fstype="xfs"))
        case "image btrfs":
            return Image(folder, VolumeRequest(NAME, BTRFS, fstype="btrfs"))
        case "image block":
            return Image(folder, block)
        case "btrfs":
            return Btrfs(folder)
        case "static":
            return Static(folder, VolumeRequest(NAME, 16 * MI, fstype="ext4"))
        case _:
            return Static(folder, block)


@pytest.fixture(params=KINDS)
def life(request: pytest.FixtureRequest, real_folder: Path) -> Image | Btrfs | Static:
    """A life of each kind."""
    return _life(request.param, real_folder)


async def test_no_byte_is_lost(life: Image | Btrfs | Static, count: int) -> None:
    await life.live()
    good = life.record.read()
    assert life.moments[-1] == good
    for number, moment in enumerate(life.moments):
        await life.survives(moment, f"that of moment {number}", must_be_damaged=False)
    for what, text in sample(good, count):
        assert await life.survives(text, what)


@pytest.mark.parametrize("life", ["image", "btrfs", "static"], indirect=True)
async def test_a_marker_is_no_end_of_the_volumes(life: Image | Btrfs | Static, count: int) -> None:
    await life.live()
    good = life.marker.read()
    for what, text in [("emptied", b""), *sample(good, count)]:
        life.marker.write(text)
        assert not await life.start(), f"marker: {what}"
        assert life.marker.read() == good
