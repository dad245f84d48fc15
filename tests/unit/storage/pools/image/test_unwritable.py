"""A pool on a disk that is dead or read-only offers no capacity, until it can write again."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.base.errors import ExhaustedError
from tonnage.host import loop, mount
from tonnage.storage.pools.base.contract import PoolLimits, VolumeRequest
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.image.backend import make_backend

pytestmark = pytest.mark.real
MI = 1 << 20
_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN of linux/ext4.h: what an error of the disk does to the file system."""


@pytest.fixture
def disk(real_folder: Path) -> Iterator[Path]:
    """An ext4 of 64 MiB on a loop device."""
    need("mkfs.ext4")
    image, place = real_folder / "disk.img", real_folder / "disk"
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(64 * MI)
    subprocess.run(["mkfs.ext4", "-q", "-b", "4096", str(image)], check=True)
    with open(image, "r+b") as file:
        attached = loop.attach(file.fileno(), str(image))
    mount.mount(attached.path, place, "ext4", ())
    attached.close()
    yield place
    mount.umount(place, lazy=True)


def _shut_down(disk: Path) -> None:
    fd = os.open(disk, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", 2))
    finally:
        os.close(fd)


def _remount(disk: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)


async def _open(folder: Path) -> Pool:
    limits = PoolLimits(size=1 << 30, sparse=True, ratio=float("inf"))
    pool = Pool("pool", make_backend(folder, limits, disks=Disks()))
    await pool.open()
    return pool


async def _offers_nothing(pool: Pool) -> None:
    with pytest.raises(ExhaustedError, match=r"pool 'pool' makes no volumes: it cannot write: "):
        await pool.create(VolumeRequest("new", 16 * MI))
    capacity = await pool.capacity()
    assert (capacity.free, capacity.largest) == (0, 0)
    assert any("it cannot write" in problem for problem in await pool.problems())


async def test_a_disk_that_becomes_read_only_and_writable_again(disk: Path) -> None:
    pool = await _open(disk / "pool")
    await pool.create(VolumeRequest("old", 16 * MI))
    _remount(disk, "ro")
    await _offers_nothing(pool)
    assert [volume.name for volume in await pool.list()] == ["old"]
    _remount(disk, "rw")
    await pool.probe.run()
    assert (await pool.capacity()).free > 0
    await pool.create(VolumeRequest("new", 16 * MI))
    await pool.close()


async def test_its_own_check_finds_a_file_system_that_its_kernel_has_shut_down(disk: Path) -> None:
    pool = await _open(disk / "pool")
    _shut_down(disk)
    await pool.probe.run()
    await _offers_nothing(pool)
    await pool.close()


async def test_a_creation_finds_a_file_system_that_its_kernel_has_shut_down(disk: Path) -> None:
    pool = await _open(disk / "pool")
    _shut_down(disk)
    await _offers_nothing(pool)
    await pool.close()
