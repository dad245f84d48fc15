"""The image pool beyond the common contract: formatting, space, raw block, what a person may have broken."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from tests.programs import need

from tonnage.base.errors import (
    AlreadyExistsError,
    BusyError,
    ExhaustedError,
    HostError,
    OutOfRangeError,
    PreconditionError,
    UnavailableError,
)
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.driver.parameters import MOUNT_OPTIONS
from tonnage.csi.errors import CsiError
from tonnage.host import device, loop, mount, selinux
from tonnage.storage.pools.base.contract import PoolLimits, VolumeRequest, VolumeState
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.fs.ext4_template import Templates
from tonnage.storage.pools.image import file as image_file
from tonnage.storage.pools.image.backend import make_backend

pytestmark = pytest.mark.real
MI = 1024**2
GI = 1024**3
Opener = Callable[..., Awaitable[Pool]]


@pytest.fixture
async def opened(real_folder: Path) -> AsyncIterator[Opener]:
    """Opens image pools below the test's folder and closes them at the end."""
    disks = Disks()
    async with AsyncExitStack() as stack:

        async def open_(name: str = "pool", folder: Path = real_folder, **bounds: float) -> Pool:
            chosen = {"size": GI, "sparse": True, "ratio": float("inf"), **bounds}
            pool = Pool("pool", make_backend(folder / name, PoolLimits(**chosen), disks=disks))  # type: ignore[arg-type]
            await pool.open()
            stack.push_async_callback(pool.close)
            return pool

        yield open_


@pytest.fixture
def small_disk(real_folder: Path) -> Path:
    """A disk of 64 MiB."""
    place = real_folder / "disk"
    place.mkdir()
    mount.mount("none", place, "tmpfs", ["size=64m"])
    return place


def _signature(path: Path) -> device.Signature | None:
    fd = os.open(path, os.O_RDONLY)
    try:
        return device.probe(fd)
    finally:
        os.close(fd)


def _loops(folder: Path, *, expected: int = 0) -> list[str]:
    """The files below folder that are attached; the kernel may need a moment to free a device."""
    for _ in range(200):
        found = [path for _, path in loop.attached() if path.startswith(f"{folder}/")]
        if len(found) <= expected:
            break
        time.sleep(0.01)
    return found


def _command(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
async def test_every_file_system(fstype: str, opened: Opener, real_folder: Path) -> None:
    need(f"mkfs.{fstype}")
    pool, staging = await opened(), real_folder / "staging"
    volume = await pool.create(VolumeRequest("v", 320 * MI, fstype=fstype))
    assert (volume.state, volume.fstype) == (VolumeState.NEW, fstype)

    for attempt in range(2):
        await pool.stage("v", staging)
        assert (await pool.get("v")).state is VolumeState.FORMATTED
        await pool.stage("v", staging)
        if attempt == 0:
            (staging / "file").write_text("content")
        assert (staging / "file").read_text() == "content"
        assert (await pool.stats("v", staging)).available >= 319 * MI
        await pool.unstage("v", staging)
        assert _loops(real_folder) == []


async def test_mkfs_runs_on_the_image_where_it_cannot_run_in_memory(
    opened: Opener, real_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rejected(_name: str, _flags: int) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", rejected)
    monkeypatch.setattr(image_file, "_templates", Templates())
    pool, staging = await opened(), real_folder / "staging"
    for name in ("v", "w"):
        await pool.create(VolumeRequest(name, 21 * MI))
        await pool.stage(name, staging)
        assert (await pool.stats(name, staging)).available >= 21 * MI
        await pool.unstage(name, staging)


async def test_a_size_below_the_file_systems_least(opened: Opener) -> None:
    pool = await opened()
    assert (await pool.create(VolumeRequest("v", 100 * MI, fstype="xfs"))).size == 300 * MI
    assert (await pool.capacity(fstype="xfs")).smallest == 300 * MI
    with pytest.raises(OutOfRangeError, match=r"xfs volume here has at least 300Mi.*limit 200Mi"):
        await pool.create(VolumeRequest("w", 100 * MI, limit=200 * MI, fstype="xfs"))
    assert (await pool.create(VolumeRequest("x", 1))).size == MI


class TestFormatOnce:
    async def test_something_foreign_is_not_formatted(self, opened: Opener, real_folder: Path) -> None:
        pool, image = await opened(), real_folder / "pool" / "v.img"
        await pool.create(VolumeRequest("v", 20 * MI))
        _command("mkfs.ext4", "-q", "-F", "-L", "precious", str(image))
        before = image.read_bytes()[:65536]
        with pytest.raises(PreconditionError, match="holds ext4 that we did not make"):
            await pool.stage("v", real_folder / "staging")
        assert image.read_bytes()[:65536] == before
        assert _loops(real_folder) == []
        await pool.delete("v")

    async def test_an_mkfs_of_ours_that_was_cut_short_is_repeated(self, opened: Opener, real_folder: Path) -> None:
        pool, record = await opened(), real_folder / "pool" / "v.json"
        await pool.create(VolumeRequest("v", 20 * MI))
        new = record.read_bytes()
        await pool.stage("v", real_folder / "staging")
        await pool.unstage("v", real_folder / "staging")
        await pool.close()
        record.write_bytes(new)  # killed between mkfs and the record
        pool = await opened()
        await pool.stage("v", real_folder / "staging")
        assert (await pool.get("v")).state is VolumeState.FORMATTED
        await pool.unstage("v", real_folder / "staging")

    async def test_formatted_and_broken_is_an_error(self, opened: Opener, real_folder: Path) -> None:
        pool, image = await opened(), real_folder / "pool" / "v.img"
        await pool.create(VolumeRequest("v", 20 * MI))
        await pool.stage("v", real_folder / "staging")
        await pool.unstage("v", real_folder / "staging")
        with image.open("r+b") as file:
            file.write(b"\xff" * 8192)
        before = image.read_bytes()
        with pytest.raises(HostError, match="cannot mount ext4"):
            await pool.stage("v", real_folder / "staging")
        assert image.read_bytes() == before
        assert _loops(real_folder) == []

    async def test_an_orphaned_mkfs_is_waited_for(self, opened: Opener, real_folder: Path) -> None:
        pool = await opened()
        await pool.create(VolumeRequest("v", 20 * MI))
        with (real_folder / "pool" / "v.img").open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(BusyError, match="being formatted"):
                await pool.stage("v", real_folder / "staging")
            with pytest.raises(PreconditionError, match="in use"):
                await pool.delete("v")
        await pool.stage("v", real_folder / "staging")
        await pool.unstage("v", real_folder / "staging")

    async def test_never_mounted_from_two_devices(self, opened: Opener, real_folder: Path) -> None:
        pool = await opened()
        await pool.create(VolumeRequest("v", 20 * MI))
        await pool.stage("v", real_folder / "one")
        with pytest.raises(BusyError, match="mounted elsewhere"):
            await pool.stage("v", real_folder / "two")
        await pool.unstage("v", real_folder / "one")


async def test_mount_options(opened: Opener, real_folder: Path) -> None:
    pool, staging = await opened(), real_folder / "staging"
    await pool.create(VolumeRequest("v", 20 * MI))
    with pytest.raises(HostError, match="nosuchoption"):
        await pool.stage("v", staging, options=["nosuchoption"])
    if not selinux.is_enabled():
        with pytest.raises(PreconditionError, match=r"volume v cannot be mounted at .*runs without SELinux"):
            await pool.stage("v", staging, options=[selinux.option_of("system_u:object_r:container_file_t:s0:c1,c2")])
        assert not mount.is_mount(staging)
    assert _loops(real_folder) == []
    await pool.stage("v", staging, options=["noexec", "commit=30"])
    [entry] = [entry for entry in mount.mounts() if entry.target == str(staging)]
    assert {"noexec", "nodev"} <= set(entry.options.split(","))
    await pool.unstage("v", staging)


class TestSpace:
    async def test_thick_is_allocated_and_stays_so(self, opened: Opener, real_folder: Path) -> None:
        pool, image, staging = await opened(sparse=False), real_folder / "pool" / "v.img", real_folder / "staging"
        await pool.create(VolumeRequest("v", 40 * MI))
        length = image.stat().st_size
        assert image.stat().st_blocks * 512 >= length
        await pool.stage("v", staging)
        (staging / "file").write_bytes(os.urandom(8 * MI))
        os.sync()
        (staging / "file").unlink()
        os.sync()
        assert image.stat().st_blocks * 512 >= length
        await pool.unstage("v", staging)

    async def test_holes_in_a_thick_one_stay_promised_and_are_filled(self, opened: Opener, small_disk: Path) -> None:
        pool = await opened("one", small_disk, ratio=1.0, sparse=False)
        await pool.create(VolumeRequest("v", 30 * MI, block=True))
        image, room = small_disk / "one" / "v.img", await pool.capacity(block=True)
        _command("fallocate", "--punch-hole", "--offset", "0", "--length", str(20 * MI), str(image))
        assert image.stat().st_blocks * 512 == 10 * MI
        assert (await pool.capacity(block=True)).free == pytest.approx(room.free, abs=MI)
        await pool.stage("v", small_disk / "staging")
        assert image.stat().st_blocks * 512 == 30 * MI
        await pool.unstage("v", small_disk / "staging")

    async def test_sparse_gives_deleted_space_back(self, opened: Opener, real_folder: Path) -> None:
        pool, image, staging = await opened(), real_folder / "pool" / "v.img", real_folder / "staging"
        await pool.create(VolumeRequest("v", 40 * MI))
        assert image.stat().st_blocks == 0
        await pool.stage("v", staging)
        (staging / "file").write_bytes(os.urandom(8 * MI))
        os.sync()
        full = image.stat().st_blocks * 512
        (staging / "file").unlink()
        os.sync()
        for _ in range(200):  # discarding is the kernel's background work
            if image.stat().st_blocks * 512 < 8 * MI:
                break
            await asyncio.sleep(0.01)
        assert full > 8 * MI
        assert image.stat().st_blocks * 512 < 8 * MI
        await pool.unstage("v", staging)

    async def test_pools_on_a_disk_share_it(self, opened: Opener, small_disk: Path) -> None:
        one = await opened("one", small_disk, ratio=1.0)
        two = await opened("two", small_disk, ratio=1.0)
        half = (await two.capacity(block=True)).free
        assert 20 * MI < half <= 24 * MI
        assert (await one.capacity(block=True)).free == half
        await one.create(VolumeRequest("a", 16 * MI, block=True))
        assert (await one.capacity(block=True)).free == pytest.approx(half - 16 * MI, abs=MI)
        assert (await two.capacity(block=True)).free == pytest.approx(half, abs=MI)
        with pytest.raises(ExhaustedError):
            await two.create(VolumeRequest("b", 30 * MI, block=True))
        await one.delete("a")
        await one.close()
        await two.create(VolumeRequest("b", 30 * MI, block=True))

    async def test_what_is_found_at_start_stays_promised(self, opened: Opener, small_disk: Path) -> None:
        pool = await opened("one", small_disk, ratio=1.0)
        await pool.create(VolumeRequest("a", 30 * MI, block=True))
        room = await pool.capacity(block=True)
        await pool.close()
        pool = await opened("one", small_disk, ratio=1.0)
        assert await pool.capacity(block=True) == room

    async def test_without_a_size_the_disk_is_the_pool(self, opened: Opener, small_disk: Path) -> None:
        pool = await opened("one", small_disk, size=0, ratio=1.0)
        room = await pool.capacity()
        assert 0 < room.largest <= room.free == room.total < 64 * MI
        await pool.create(VolumeRequest("a", room.largest))
        assert (await pool.capacity()).largest == 0

    async def test_overcommit_is_only_bounded_by_the_pool(self, opened: Opener, small_disk: Path) -> None:
        pool = await opened("one", small_disk, size=GI)
        await pool.create(VolumeRequest("a", 900 * MI))
        assert (await pool.capacity()).free == 124 * MI

    async def test_thick_on_a_full_disk(self, opened: Opener, small_disk: Path) -> None:
        pool = await opened("one", small_disk, sparse=False)
        with pytest.raises(ExhaustedError, match="No space left"):
            await pool.create(VolumeRequest("a", 100 * MI, block=True))
        assert await pool.list() == []
        assert (await pool.capacity()).used == 0
        assert os.listdir(small_disk / "one") == [".tonnage-pool"]


class TestBlock:
    async def test_exactly_as_long_as_asked_and_read_only_where_asked(self, opened: Opener, real_folder: Path) -> None:
        pool, staging = await opened(), real_folder / "staging"
        writable, readonly = real_folder / "w", real_folder / "r"
        volume = await pool.create(VolumeRequest("b", 5 * MI, block=True))
        assert (volume.block, volume.fstype) == (True, "")
        for _ in range(2):
            await pool.stage("b", staging)
            await pool.publish("b", staging, writable)
            await pool.publish("b", staging, readonly, readonly=True)
        with pytest.raises(AlreadyExistsError, match="readonly=True"):
            await pool.publish("b", staging, writable, readonly=True)

        fd = os.open(writable, os.O_RDWR)
        assert device.size(fd) == 5 * MI
        os.write(fd, b"hello")
        os.fsync(fd)
        os.close(fd)
        assert readonly.is_block_device()
        with pytest.raises(PermissionError), readonly.open("r+b", buffering=0) as file:
            file.write(b"no")
        assert (await pool.stats("b", writable)).total == 5 * MI
        with pytest.raises(PreconditionError, match="in use"):
            await pool.delete("b")

        for target in (writable, readonly, writable):
            await pool.unpublish("b", target)
        await pool.unstage("b", staging)
        assert _loops(real_folder) == []
        assert (real_folder / "pool" / "b.img").read_bytes()[:5] == b"hello"
        await pool.delete("b")

    async def test_devices_shown_nowhere_are_freed_at_start(self, opened: Opener, real_folder: Path) -> None:
        pool = await opened()
        for name in ("a", "b"):
            await pool.create(VolumeRequest(name, MI, block=True))
        await pool.stage("a", real_folder / "staging")
        fd = os.open(real_folder / "pool" / "b.img", os.O_RDWR)
        loop.attach(fd, "b", autoclear=False).close()  # killed before it was shown
        os.close(fd)
        await pool.close()
        pool = await opened()
        assert _loops(real_folder, expected=1) == [str(real_folder / "pool" / "a.img")]
        await pool.stage("a", real_folder / "staging")
        await pool.unstage("a", real_folder / "staging")
        assert _loops(real_folder) == []


async def test_a_disk_unmounted_under_the_pool(opened: Opener, small_disk: Path) -> None:
    pool = await opened(folder=small_disk, size=0, ratio=1.0)
    await pool.create(VolumeRequest("v", 8 * MI))
    await pool.snapshots.create("s", "v")
    _command("umount", "--lazy", str(small_disk))
    (small_disk / "pool").mkdir()
    for call in (
        pool.create(VolumeRequest("w", 8 * MI)),
        pool.delete("v"),
        pool.delete("nobody"),
        pool.snapshots.delete("s"),
        pool.snapshots.create("t", "v"),
        pool.growth.expand("v", 12 * MI),
        pool.stage("v", small_disk / "staging"),
    ):
        with pytest.raises(UnavailableError, match="is not the one that was opened"):
            await call
    assert (await pool.condition("v")).abnormal
    assert os.listdir(small_disk / "pool") == []


async def test_found_again_where_the_pool_has_another_path(opened: Opener, real_folder: Path) -> None:
    """As in a container that was restarted: the same directory, mounted elsewhere."""
    pool, staging, target = await opened("pool"), real_folder / "staging", real_folder / "target"
    await pool.create(VolumeRequest("v", 20 * MI))
    await pool.stage("v", staging)
    await pool.close()
    (real_folder / "other").mkdir()
    mount.bind(real_folder / "pool", real_folder / "other")
    pool = await opened("other")
    await pool.stage("v", staging)
    await pool.publish("v", staging, target)
    assert (await pool.stats("v", target)).available >= 20 * MI
    await pool.unpublish("v", target)
    await pool.unstage("v", staging)
    await pool.delete("v")
    await pool.close()
    mount.umount(real_folder / "other")


class TestBroken:
    async def test_damaged_record_keeps_its_image_and_its_space(self, opened: Opener, real_folder: Path) -> None:
        pool, record = await opened(), real_folder / "pool" / "v.json"
        await pool.create(VolumeRequest("v", 20 * MI))
        await pool.create(VolumeRequest("w", 20 * MI))
        await pool.close()
        record.write_text("{oops")
        pool = await opened()
        assert [volume.name for volume in await pool.list()] == ["w"]
        assert (await pool.capacity()).used > 40 * MI
        for call in (pool.create(VolumeRequest("v", 20 * MI)), pool.delete("v"), pool.get("v")):
            with pytest.raises(HostError, match=r"record of volume v .* is damaged"):
                await call
        assert (real_folder / "pool" / "v.img").exists()

    async def test_lost_image(self, opened: Opener, real_folder: Path) -> None:
        pool, image = await opened(), real_folder / "pool" / "v.img"
        await pool.create(VolumeRequest("v", 20 * MI))
        image.unlink()  # never handed over: made again
        await pool.stage("v", real_folder / "staging")
        await pool.unstage("v", real_folder / "staging")
        image.unlink()
        with pytest.raises(HostError, match="content is lost"):
            await pool.stage("v", real_folder / "staging")
        await pool.delete("v")

    async def test_newer_record(self, opened: Opener, real_folder: Path) -> None:
        pool, record = await opened(), real_folder / "pool" / "v.json"
        await pool.create(VolumeRequest("v", 20 * MI))
        await pool.close()
        content = msgspec.json.decode(record.read_bytes())
        record.write_bytes(msgspec.json.encode({**content, "version": 9}))
        again = await opened()  # the other volumes are served
        assert list(await again.damaged()) == ["v"]
        with pytest.raises(HostError, match="damaged"):
            await again.delete("v")


async def test_volumes_of_one_size_are_file_systems_of_their_own(opened: Opener, real_folder: Path) -> None:
    pool = await opened()
    uuids = set()
    for name in ("a", "b", "c"):
        await pool.create(VolumeRequest(name, 21 * MI))
        await pool.stage(name, real_folder / name)
        (real_folder / name / "file").write_text(name)
        found = _signature(real_folder / "pool" / f"{name}.img")
        assert found is not None
        assert found.kind == "ext4"
        uuids.add(found.uuid)
    assert len(uuids) == 3
    assert [(real_folder / name / "file").read_text() for name in ("a", "b", "c")] == ["a", "b", "c"]
    for name in ("a", "b", "c"):
        await pool.unstage(name, real_folder / name)
        _command("e2fsck", "-fn", str(real_folder / "pool" / f"{name}.img"))


class TestDiskTrouble:
    async def test_full_while_formatting_is_told_and_can_be_repeated(self, opened: Opener, small_disk: Path) -> None:
        pool = await opened("one", small_disk)
        await pool.create(VolumeRequest("v", 300 * MI, fstype="ext4"))
        filler, staging = small_disk / "filler", small_disk / "staging"
        staging.mkdir()
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with pytest.raises(HostError, match=r"(?i)no space left|mkfs\.ext4"):
            await pool.stage("v", staging)
        assert (await pool.get("v")).state is VolumeState.NEW
        with pytest.raises(ExhaustedError):
            await pool.create(VolumeRequest("w", MI, block=True))
        assert _loops(small_disk) == []

        filler.unlink()
        await pool.stage("v", staging)
        assert (await pool.stats("v", staging)).available >= 300 * MI
        await pool.unstage("v", staging)
        await pool.delete("v")

    async def test_read_only_disk(self, opened: Opener, small_disk: Path) -> None:
        pool = await opened("one", small_disk)
        await pool.create(VolumeRequest("v", MI))
        _command("mount", "-o", "remount,ro", str(small_disk))
        with pytest.raises(ExhaustedError, match="Read-only file system"):
            await pool.create(VolumeRequest("w", MI))
        with pytest.raises(HostError, match="Read-only file system"):
            await pool.delete("v")
        assert [volume.name for volume in await pool.list()] == ["v"]
        await pool.close()
        with pytest.raises(UnavailableError, match="Read-only file system; choose one on a writable"):
            await opened("one", small_disk)
        _command("mount", "-o", "remount,rw", str(small_disk))
        pool = await opened("one", small_disk)
        await pool.delete("v")
        assert os.listdir(small_disk / "one") == [".tonnage-pool"]


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
async def test_every_option_that_is_let_through_mounts(opened: Opener, real_folder: Path, fstype: str) -> None:
    need(f"mkfs.{fstype}")
    pool, staging = await opened(), real_folder / "staging"
    await pool.create(VolumeRequest("v", 300 * MI, fstype=fstype))
    for option in sorted(MOUNT_OPTIONS - {"dax"}):  # which needs memory as a disk
        await pool.stage("v", staging, options=(option,))
        assert os.path.ismount(staging), option
        await pool.unstage("v", staging)


async def test_a_file_with_content_is_never_unpublished(opened: Opener, real_folder: Path) -> None:
    pool = await opened()
    (real_folder / "file").write_text("precious")
    with pytest.raises(PreconditionError, match="is a file with content"):
        await pool.unpublish("v", real_folder / "file")
    assert (real_folder / "file").read_text() == "precious"


async def test_an_inline_volume_whose_target_is_a_file_is_taken_back(opened: Opener, real_folder: Path) -> None:
    pool = await opened()
    (real_folder / "file").write_text("precious")
    context = {"csi.storage.k8s.io/ephemeral": "true", "size": "16Mi"}
    driver = Driver("node", {"pool": pool}, real_folder / "state")
    async with DriverEndpoint(driver, real_folder / "s") as served, CsiClient(served.socket) as client:
        with pytest.raises(CsiError, match="FailedPrecondition"):
            await client.publish("csi-1", real_folder / "file", VolumeCapability(), context=context)
    assert await pool.list() == []
    assert (real_folder / "file").read_text() == "precious"
