"""Pools whose disk fails, fills, goes away or comes from elsewhere, and volumes that are damaged: the driver starts, says
what is affected, serves the rest, and never says that something is deleted which it could not delete."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.crash.faults.faultpoints import Fault, FaultPoints
from tests.programs import need
from tests.unit.csi.full_client import FullCsiClient

from tonnage.base.observe import metrics
from tonnage.csi.client.types import CreatedVolume, VolumeCapability
from tonnage.csi.driver.pool_opener import Openings
from tonnage.csi.errors import Code, CsiError
from tonnage.host import libc, loop, mount
from tonnage.host.run import run
from tonnage.node.config.driver import DriverConfig
from tonnage.node.plain_driver import StandaloneDriver
from tonnage.storage.pools.config import parse

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

MI = 1024**2
MOUNT = VolumeCapability()
Rejected = Callable[..., Awaitable[CsiError]]
_SHUT_DOWN = 0x8004587D  # fs/ext4/ext4.h: EXT4_IOC_SHUTDOWN
_MS_REMOUNT, _MS_RDONLY = 32, 1


@dataclass
class Disk:
    """A small disk with a file system that can be made to fail, and go and come."""

    file: Path
    place: Path

    def make(self) -> None:
        self.place.mkdir()
        with open(self.file, "wb") as image:
            image.truncate(320 * MI)
        run(["mkfs.ext4", "-q", "-b", "4096", "-E", "lazy_itable_init=0", str(self.file)])
        self.come()

    def come(self) -> None:
        """Mount it."""
        fd = os.open(self.file, os.O_RDWR)
        try:
            attached = loop.attach(fd, str(self.file))
            try:
                mount.mount(attached.path, self.place, "ext4", ())
            finally:
                attached.close()
        finally:
            os.close(fd)

    def die(self) -> None:
        """From now on everything on it fails with EIO, as when the device is gone."""
        at = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(at, _SHUT_DOWN, struct.pack("=I", 2))  # without writing its log
        finally:
            os.close(at)

    def go(self) -> None:
        """Unmount it, whatever is still open on it."""
        mount.umount(self.place, lazy=True)

    def set_readonly(self) -> None:
        """As the kernel does after an error."""
        for _ in range(300):
            try:
                libc.mount(None, os.fsencode(self.place), None, _MS_REMOUNT | _MS_RDONLY, None)
                return
            except OSError as failure:
                if failure.errno != errno.EBUSY:
                    raise
            time.sleep(0.1)  # the kernel lets go of a loop device's file a moment after its last umount
        raise AssertionError(f"{self.place} stays in use")


@dataclass
class Node:
    """A driver with a pool "sick" on the disk and one "well" beside it."""

    folder: Path
    disk: Disk
    kind: str
    driver: StandaloneDriver | None = None

    @property
    def pool(self) -> Path:
        """Where the sick pool is."""
        return self.disk.place / "pool"

    @property
    def client(self) -> FullCsiClient:
        """A new one each time: nothing of a driver before is left in it."""
        return FullCsiClient(self.folder / "csi.sock", timeout=60)

    async def start(self, *options: str) -> StandaloneDriver:
        """A new process."""
        await self.stop()
        sick = f"{self.kind}:{self.pool},name=sick,size=128Mi,sparse=yes,overcommit=yes"
        well = f"image:{self.folder / 'well'},name=well,size=128Mi,sparse=yes,overcommit=yes"
        config = DriverConfig(self.folder / "csi.sock", [parse(well), parse(sick)], "n1", self.folder / "state")
        self.driver = StandaloneDriver(replace(config))
        await self.driver.start()
        return self.driver

    async def stop(self) -> None:
        """End it."""
        if self.driver is not None:
            await self.driver.stop()
            self.driver = None

    async def create(self, name: str, pool: str = "sick") -> CreatedVolume:
        """A volume of 32 MiB."""
        with_client = self.client
        try:
            return await with_client.create_volume(name, 32 * MI, [MOUNT], parameters={"pool": pool})
        finally:
            with_client.close()

    async def gauge(self, name: str) -> float:
        """What the metrics say of the sick pool."""
        assert self.driver is not None
        await self.driver.measure()
        found = metrics.REGISTRY.get_sample_value(name, {"pool": "sick", "kind": self.kind})
        assert found is not None
        return found


@pytest.fixture
def disk(real_folder: Path) -> Iterator[Disk]:
    """A disk of ext4."""
    made = Disk(real_folder / "disk.img", real_folder / "disk")
    made.make()
    yield made
    with suppress(Exception):
        made.go()


@pytest.fixture(params=["image", "btrfs"])
async def node(
    request: pytest.FixtureRequest, real_folder: Path, disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Node]:  # fmt: skip
    """A driver that is served."""
    if request.param == "btrfs":
        need("mkfs.btrfs")
    monkeypatch.setattr(Openings, "pause", 0.0)
    made = Node(real_folder, disk, request.param)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def client(node: Node) -> AsyncIterator[FullCsiClient]:
    """A client of it."""
    async with node.client as connected:
        yield connected


async def _serves(node: Node, name: str = "other") -> None:
    """The pool beside it does all that a pod needs."""
    async with node.client as client:
        volume = await client.create_volume(name, 32 * MI, [MOUNT], parameters={"pool": "well"})
        staging = node.folder / f"{name}-staging"
        await client.stage(volume.id, staging, MOUNT)
        await client.unstage(volume.id, staging)
        assert not (await client.get_volume(volume.id))[1].abnormal
        await client.delete_volume(volume.id)


async def _listed(client: FullCsiClient) -> set[str]:
    return {found.id for found in await client.list_volumes()}


async def test_a_disk_that_dies_while_in_use(node: Node, client: FullCsiClient, rejected: Rejected) -> None:
    volume = (await node.create("v")).id
    assert await _listed(client) == {volume}
    node.disk.die()
    with suppress(OSError):
        os.sync()  # what the pool has not written yet must meet the error

    failure = await rejected(client.delete_volume(volume), Code.INTERNAL)
    assert failure.message
    await rejected(node.create("w"), Code.RESOURCE_EXHAUSTED, "it cannot write: ", "Input/output error")
    assert await node.gauge("tonnage_pool_up") == 0
    assert (await client.get_volume(volume))[1].abnormal
    assert await _listed(client) == {volume}, "a volume that could not be deleted is said to be gone"
    assert await node.gauge("tonnage_pool_abnormal_volumes") == 1
    await _serves(node)


async def test_a_disk_that_is_dead_at_the_start_and_comes_back(node: Node, rejected: Rejected) -> None:
    volume = (await node.create("v")).id
    await node.stop()
    node.disk.die()
    await node.start()
    async with node.client as client:
        for call in (client.delete_volume(volume), client.get_volume(volume), node.create("w")):
            await rejected(call, Code.UNAVAILABLE, "is not open", "Input/output error")
        assert await _listed(client) == set()
        assert await node.gauge("tonnage_pool_up") == 0
        await _serves(node)

        node.disk.go()
        node.disk.come()  # no restart of the driver
        assert not (await client.get_volume(volume))[1].abnormal
        assert await node.gauge("tonnage_pool_up") == 1
        await client.delete_volume(volume)
        assert await _listed(client) == set()


async def test_a_read_only_disk(node: Node, rejected: Rejected) -> None:
    volume = (await node.create("v")).id
    if node.kind == "image":
        node.disk.set_readonly()  # of a btrfs image the disk is in use by it
        async with node.client as client:
            await rejected(client.delete_volume(volume), Code.INTERNAL, "Read-only file system")
            await rejected(node.create("w"), Code.RESOURCE_EXHAUSTED, "it cannot write: ", "Read-only file system")
            assert await _listed(client) == {volume}
            condition = (await client.get_volume(volume))[1]
            assert condition.abnormal
            assert "read-only" in condition.message
        await _serves(node)
    await node.stop()
    if node.kind == "btrfs":
        node.disk.set_readonly()
    await node.start()
    async with node.client as client:
        await rejected(client.delete_volume(volume), Code.UNAVAILABLE, "Read-only file system")
        await _serves(node)


async def test_a_full_disk(node: Node, client: FullCsiClient) -> None:
    volume = (await node.create("v")).id
    staging, target = node.folder / "s", node.folder / "t"
    await client.stage(volume, staging, MOUNT)
    await client.publish(volume, target, MOUNT, staging=staging)
    (target / "precious").write_text("kept")
    os.sync()
    _fill(node.disk.place / "hog")

    # What takes no room goes on, what takes some is rejected for that reason. A btrfs that cannot write to its own image
    # stops.
    assert await _rejection(node) in ((Code.RESOURCE_EXHAUSTED,) if node.kind == "image" else (Code.INTERNAL,))
    assert (target / "precious").read_text() == "kept"
    assert (await client.volume_stats(volume, target)).total > 0
    await client.unpublish(volume, target)
    await client.unstage(volume, staging)
    assert volume in await _listed(client)
    await _serves(node)

    os.unlink(node.disk.place / "hog")
    if node.kind == "btrfs":
        await node.start()
    async with node.client as again:
        assert not (await again.get_volume(volume))[1].abnormal
        await again.stage(volume, staging, MOUNT)
        assert (staging / "precious").read_text() == "kept"
        await again.unstage(volume, staging)
        for vid in await _listed(again):
            await again.delete_volume(vid)
    if node.kind == "image":
        assert not [entry for entry in os.listdir(node.pool) if not entry.startswith(".")]


async def _rejection(node: Node) -> Code:
    """How a volume is rejected for which there is no room; small records may find theirs for long."""
    for number in range(1000):
        try:
            await node.create(f"w{number}")
        except CsiError as failure:
            return failure.code
    return Code.OK


def _fill(path: Path) -> None:
    """Take all there is left of a disk."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        for size in (1024**2, 4096):
            with suppress(OSError):
                while True:
                    os.write(fd, bytes(size))
        with suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


DAMAGE: dict[str, bytes] = {
    "empty": b"",
    "half": b'{"name":"v","size":335',
    "noise": b"\x00\xff\xfe\x80" * 100,
    "another's": b'{"name":"w","size":33554432,"uuid":"12345678-1234-1234-1234-123456789abc"}',
    "of a newer tonnage": b'{"name":"v","size":1,"uuid":"12345678-1234-1234-1234-123456789abc","version":99}',
    "with a negative size": b'{"name":"v","size":-5,"uuid":"12345678-1234-1234-1234-123456789abc"}',
    "with an unknown state": b'{"name":"v","size":5,"state":"odd","uuid":"12345678-1234-1234-1234-123456789abc"}',
    "a list": b"[1,2,3]",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_damaged_records(node: Node, damage: str, rejected: Rejected) -> None:
    volume, other = (await node.create("v")).id, (await node.create("x")).id
    record = _home(node) / "v.json"
    await node.stop()
    content = await _damaged(node, record, DAMAGE[damage])

    await node.start()
    async with node.client as client:
        assert await _listed(client) == {volume, other}
        health = (await client.get_volume(volume))[1]
        assert health.abnormal
        assert "damaged" in health.message
        assert not (await client.get_volume(other))[1].abnormal
        await rejected(client.delete_volume(volume), Code.INTERNAL, "damaged")
        await rejected(client.stage(volume, node.folder / "s", MOUNT), Code.INTERNAL, "damaged")
        await rejected(node.create("v"), Code.INTERNAL, "damaged")
        assert await node.gauge("tonnage_pool_abnormal_volumes") == 1
        assert sorted(os.listdir(_home(node))) == content, "something of a damaged volume was touched"
        assert record.read_bytes() == DAMAGE[damage]
        await client.delete_volume(other)


def _home(node: Node) -> Path:
    """Where the records are."""
    return node.pool / "mounted" if node.kind == "btrfs" else node.pool


async def _damaged(node: Node, record: Path, damage: bytes) -> list[str]:
    """Damage a record while no driver runs; what lies beside it."""
    if node.kind == "btrfs":  # seen only where the pool's btrfs is mounted
        await node.start()
    record.write_bytes(damage)
    found = sorted(os.listdir(record.parent))
    await node.stop()
    return found


async def test_a_record_that_cannot_be_read_is_no_end_of_the_others(node: Node, client: FullCsiClient) -> None:
    if node.kind == "btrfs":
        pytest.skip("reads its records as image pools do")
    volume, other = (await node.create("v")).id, (await node.create("x")).id
    await node.stop()
    (node.folder / "elsewhere").write_bytes((node.pool / "v.json").read_bytes())
    (node.pool / "v.json").unlink()
    (node.pool / "v.json").symlink_to(node.folder / "elsewhere")  # cannot be opened, as a bad block
    await node.start()
    async with node.client as again:
        assert (await again.get_volume(volume))[1].abnormal
        assert not (await again.get_volume(other))[1].abnormal


async def test_a_damaged_file_system_in_a_volume_is_never_made_anew(
    node: Node, client: FullCsiClient, rejected: Rejected
) -> None:
    if node.kind == "btrfs":
        pytest.skip("its volumes have no file system of their own")
    volume = (await node.create("v")).id
    staging = node.folder / "s"
    await client.stage(volume, staging, MOUNT)
    (staging / "data").write_text("precious")
    await client.unstage(volume, staging)
    image = node.pool / "v.img"
    saved = _exchange(image, bytes(1024))
    before = image.stat().st_blocks
    for _ in range(2):
        await rejected(client.stage(volume, staging, MOUNT), Code.INTERNAL, "cannot mount ext4")
    assert image.stat().st_blocks == before
    await _serves(node)
    _exchange(image, saved)
    await client.stage(volume, staging, MOUNT)
    assert (staging / "data").read_text() == "precious"
    await client.unstage(volume, staging)


def _exchange(image: Path, superblock: bytes) -> bytes:
    """Write what an ext4 begins with; what was there."""
    with open(image, "r+b") as file:
        file.seek(1024)
        found = file.read(1024)
        file.seek(1024)
        file.write(superblock)
    return found


async def test_content_that_is_gone_or_cut_off_is_told(node: Node, client: FullCsiClient) -> None:
    if node.kind == "btrfs":
        pytest.skip("tests/pools has it")
    names = ("gone", "cut", "well")
    volumes = {name: (await node.create(name)).id for name in names}
    for name, volume in volumes.items():
        staging = node.folder / name
        await client.stage(volume, staging, MOUNT)
        await client.unstage(volume, staging)
    os.unlink(node.pool / "gone.img")
    os.truncate(node.pool / "cut.img", MI)
    await node.start()
    async with node.client as again:
        found = {name: (await again.get_volume(volume))[1] for name, volume in volumes.items()}
        assert {name for name, health in found.items() if health.abnormal} == {"gone", "cut"}
        for volume in volumes.values():  # it is known that nothing of them is left: they can be deleted
            await again.delete_volume(volume)
        assert await _listed(again) == set()


async def test_no_loop_device_is_left(node: Node, client: FullCsiClient, rejected: Rejected) -> None:
    volume = (await node.create("v")).id
    staging = node.folder / "s"
    if node.kind == "btrfs":
        pytest.skip("its volumes need none")
    with FaultPoints().installed() as points:
        with points.failing(Fault("fcntl.ioctl", errno.ENOSPC, lasting=True)):
            await rejected(client.stage(volume, staging, MOUNT), Code.INTERNAL, "loop device")
        assert not [path for _, path in loop.attached() if path == str(node.pool / "v.img")]
        await client.stage(volume, staging, MOUNT)
    await client.unstage(volume, staging)
    await client.delete_volume(volume)


async def test_a_pool_of_another_node_and_cluster(node: Node, rejected: Rejected) -> None:
    claim = {"csi.storage.k8s.io/pvc/name": "theirs", "tonnage.dev/cluster": "another-cluster", "pool": "sick"}
    async with node.client as client:
        volume = (await client.create_volume("v", 32 * MI, [MOUNT], parameters=claim)).id
    await node.stop()
    other = Node(node.folder / "other", node.disk, node.kind)
    other.folder.mkdir()
    await other.start()
    try:
        async with other.client as client:
            (found,) = await client.list_volumes()
            assert (found.id, found.context["tonnage.dev/cluster"]) == (volume, "another-cluster")
            assert not (await client.get_volume(volume))[1].abnormal
        await node.start()  # both at once: the second one does without the pool
        async with node.client as client:
            await rejected(client.delete_volume(volume), Code.UNAVAILABLE, "in use by another process")
            await _serves(node)
            await other.stop()
            await client.delete_volume(volume)
    finally:
        await other.stop()


async def test_a_directory_with_other_files_is_not_taken(node: Node, rejected: Rejected) -> None:
    await node.stop()
    for entry in node.pool.iterdir():
        if entry.is_file():
            entry.unlink()
    (node.pool / "family.jpg").write_bytes(b"precious")
    await node.start()
    async with node.client as client:
        await rejected(node.create("v"), Code.UNAVAILABLE, "family.jpg")
        await _serves(node)
        assert await _listed(client) == set()
    assert (node.pool / "family.jpg").read_bytes() == b"precious"


async def test_many_at_once_on_a_dead_disk_hold_up_nobody_else(node: Node, client: FullCsiClient) -> None:
    volumes = [(await node.create(f"v{number}")).id for number in range(3)]
    node.disk.die()
    results = await asyncio.gather(
        *(client.delete_volume(volume) for volume in volumes), _serves(node), return_exceptions=True
    )
    assert results[-1] is None
    assert all(isinstance(result, CsiError) for result in results[:-1]), results
    assert await _listed(client) == set(volumes)
