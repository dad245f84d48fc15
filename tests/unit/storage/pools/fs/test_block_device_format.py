"""File systems that were ever used are never made anew, and images never cut, whatever their records say."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace

from tonnage.base.errors import PreconditionError
from tonnage.host import loop, mount
from tonnage.host.device import filesystem_length, is_unused
from tonnage.storage.pools.base.contract import PoolLimits, VolumeRequest
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.fs.block_device import must_format
from tonnage.storage.pools.fs.formats import form_of
from tonnage.storage.pools.image import file as image_file
from tonnage.storage.pools.image.backend import make_backend

pytestmark = pytest.mark.real
MI = 1024**2


@pytest.fixture(params=["ext4", "xfs", "btrfs"])
def made(request: pytest.FixtureRequest, real_folder: Path) -> Iterator[tuple[int, Path, VolumeRecord]]:
    """An image with a new file system, as a pool makes it, and its record."""
    fstype = request.param
    size = 304 * MI if fstype == "xfs" else 20 * MI
    record = VolumeRecord("v", size, uuid4(), length=form_of(fstype).length(size), sparse=True, fstype=fstype)
    path = real_folder / "v.img"
    image_file.make(path, record)
    fd = image_file.open_image(path)
    image_file.format_image(fd, path, record)
    yield fd, path, record
    os.close(fd)


def _shown(fd: int, path: Path, record: VolumeRecord, work: str, *options: str) -> None:
    """Mount it, let a shell work in it, unmount it."""
    where = path.with_name("mnt")
    where.mkdir(exist_ok=True)
    attached = loop.attach(fd, str(path))
    mount.mount(attached.path, where, record.fstype, options)
    attached.close()
    subprocess.run(["sh", "-c", work], cwd=where, check=True)
    mount.umount(where)


def test_a_new_one_is_unused_and_may_be_made_again(made: tuple[int, Path, VolumeRecord]) -> None:
    fd, path, record = made
    assert record.length - 16 * MI < filesystem_length(fd) <= record.length
    assert is_unused(fd)
    assert must_format(fd, str(path), record)
    image_file.format_image(fd, path, record)
    assert is_unused(fd)
    with pytest.raises(PreconditionError, match="that we did not make"):
        must_format(fd, str(path), replace(record, uuid=uuid4()))


@pytest.mark.parametrize("work", ["true", "echo x >file; sync", "echo x >file; sync; rm file", "mkdir folder"])
def test_one_that_was_ever_mounted_is_kept(made: tuple[int, Path, VolumeRecord], work: str) -> None:
    fd, path, record = made
    if record.fstype == "btrfs" and work == "true":
        work = "chmod 700 ."  # its superblock is written with the first commit, and no sooner
    _shown(fd, path, record, f"{work}; sync")
    assert not must_format(fd, str(path), record)
    before = os.fstat(fd).st_mtime_ns
    image_file.format_image(fd, path, record)  # as for a record that says new
    assert os.fstat(fd).st_mtime_ns == before


def test_one_that_is_mounted_and_holds_a_file_is_kept(made: tuple[int, Path, VolumeRecord]) -> None:
    """As after a power cut: it was never unmounted."""
    fd, path, record = made
    _shown(fd, path, record, f"echo x >file; sync; cp {path} {path}.cut")
    cut = os.open(f"{path}.cut", os.O_RDWR)
    assert not must_format(cut, str(path), record)
    os.close(cut)


def test_files_that_came_without_a_mount_are_files_and_lost_found_is_none(real_folder: Path) -> None:
    path, folder = real_folder / "v.img", real_folder / "files"
    folder.mkdir()
    for is_empty in (True, False):
        path.touch()
        os.truncate(path, 20 * MI)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-d", folder, path], check=True)
        fd = os.open(path, os.O_RDONLY)
        assert is_unused(fd) == is_empty
        os.close(fd)
        (folder / "file").touch()


@pytest.fixture
def pool(real_folder: Path) -> Pool:
    """An image pool, not yet open."""
    return Pool("p", make_backend(real_folder / "pool", PoolLimits(2**30, float("inf"), sparse=True), disks=Disks()))


@pytest.mark.parametrize("block", [False, True])
async def test_only_what_nobody_wrote_to_is_cut(pool: Pool, real_folder: Path, *, block: bool) -> None:
    await pool.open()
    await pool.create(VolumeRequest("v", 20 * MI, block=block))
    await pool.stage("v", real_folder / "s")
    await pool.unstage("v", real_folder / "s")
    await pool.close()
    image = real_folder / "pool" / "v.img"
    length = image.stat().st_size
    os.truncate(image, length + 8 * MI)  # as an expand() that was killed leaves it
    await pool.open()
    assert image.stat().st_size == length
    await pool.close()
    with image.open("r+b") as file:
        file.seek(length + 4 * MI)
        file.write(b"somebody's")
    before = image.read_bytes()
    await pool.open()
    assert "content behind the" in (await pool.damaged())["v"]
    assert image.read_bytes() == before
    await pool.close()


async def test_an_image_is_never_cut_below_its_file_system(pool: Pool, real_folder: Path) -> None:
    await pool.open()
    await pool.create(VolumeRequest("v", 20 * MI))
    await pool.stage("v", real_folder / "s")
    record = real_folder / "pool" / "v.json"
    before = record.read_bytes()
    await pool.unstage("v", real_folder / "s")
    await pool.growth.expand("v", 200 * MI)
    await pool.stage("v", real_folder / "s")
    await pool.unstage("v", real_folder / "s")
    await pool.close()
    length = (real_folder / "pool" / "v.img").stat().st_size
    record.write_bytes(before)
    await pool.open()
    assert "has a file system of" in (await pool.damaged())["v"]
    assert (real_folder / "pool" / "v.img").stat().st_size == length
    await pool.close()
