"""What can never be made, for whatever reason, evicts no trash: neither of its own pool nor of one on the same disk."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.base.errors import (
    DoesNotFitError,
    ExhaustedError,
    HostError,
    OutOfRangeError,
    PreconditionError,
    TonnageError,
    UnavailableError,
)
from tonnage.host import loop, mount
from tonnage.host.run import run
from tonnage.storage.pools.base.contract import VolumeOrigin, VolumeRequest
from tonnage.storage.pools.base.parameters import SOURCE
from tonnage.storage.pools.base.record import UNDELETE
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool

pytestmark = pytest.mark.real
MI, GI, TI = 1 << 20, 1 << 30, 1 << 40
DAY = {UNDELETE: "86400"}
OLD = 48 * MI
DISK = 320 * MI


@dataclass
class Bench:
    """A disk with a pool that has trash, and a pool under test, which may be the same."""

    disk: Path
    disks: Disks = field(default_factory=Disks)
    pools: dict[str, Pool] = field(default_factory=dict)

    async def open(self, name: str, text: str) -> Pool:
        pool = self.pools[name] = make(parse(text.format(home=self.disk / name) + f",name={name}"), disks=self.disks)
        await pool.open()
        return pool

    async def use(self, pool: Pool, name: str, size: int, written: int = 0, **more: object) -> None:
        """Make a volume and write to it."""
        staging = self.disk.parent / "staging"
        await pool.create(VolumeRequest(name, size, **more))  # type: ignore[arg-type]
        await pool.stage(name, staging)
        _write(staging / "data", written)
        await pool.unstage(name, staging)

    async def discard(self, pool: Pool, name: str = "old") -> None:
        """Make a volume that is trash now."""
        await self.use(pool, name, OLD, OLD // 2, owner=DAY)
        assert await pool.trash.discard(name)


def _write(path: Path, size: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, b"x" * size)
    os.fsync(fd)
    os.close(fd)


def _mount(disk: Path, fstype: str) -> None:
    """A disk of its own, whose device goes with its last mount."""
    disk.mkdir()
    with open(disk.with_suffix(".img"), "w+b") as file:
        file.truncate(DISK)
        run([f"mkfs.{fstype}", "-q", *(("-F", "-b", "4096") if fstype == "ext4" else ()), file.name])
        attached = loop.attach(file.fileno(), file.name)
        mount.mount(attached.path, disk, fstype, ["nodev"])
        attached.close()


@pytest.fixture(params=["ext4", "btrfs"])
async def bench(request: pytest.FixtureRequest, real_folder: Path) -> AsyncIterator[Bench]:
    """A disk of its own."""
    need("mkfs.ext4", f"mkfs.{request.param}")
    disk = real_folder / "disk"
    _mount(disk, request.param)
    made = Bench(disk)
    yield made
    for pool in made.pools.values():
        await pool.close()
    mount.umount(disk, lazy=True)


SPARSE = "image:{home},sparse=yes,overcommit=yes,size=1000Ti"
THICK = "image:{home},sparse=no,overcommit=yes,size=1000Ti"
Call = Callable[[Bench, Pool], Awaitable[object]]


async def _large(bench: Bench, pool: Pool) -> object:
    return await pool.create(VolumeRequest("new", 17 * TI))


async def _thick(bench: Bench, pool: Pool) -> object:
    return await pool.create(VolumeRequest("new", GI))


async def _grown(bench: Bench, pool: Pool) -> object:
    return await pool.growth.expand("v", GI)


async def _restored(bench: Bench, pool: Pool) -> object:
    await pool.snapshots.create("s", "v")
    return await pool.create(VolumeRequest("new", 17 * TI, source=VolumeOrigin(snapshot="s")))


async def _cloned(bench: Bench, pool: Pool) -> object:
    await bench.use(pool, "full", 200 * MI, 170 * MI)
    return await pool.create(VolumeRequest("new", 200 * MI, source=VolumeOrigin(volume="full")))


async def _kept(bench: Bench, pool: Pool) -> object:
    await bench.use(pool, "full", 200 * MI, 170 * MI)
    return await pool.snapshots.create("s", "full")


@pytest.mark.parametrize("bench", ["ext4"], indirect=True)
@pytest.mark.parametrize(
    ("text", "call", "error"),
    [
        pytest.param(SPARSE, _large, OutOfRangeError, id="larger than any file"),
        pytest.param(THICK, _large, OutOfRangeError, id="thick and larger than any file"),
        pytest.param(THICK, _thick, DoesNotFitError, id="thick and larger than the disk"),
        pytest.param(THICK, _grown, DoesNotFitError, id="growth beyond the disk"),
        pytest.param(SPARSE, _restored, OutOfRangeError, id="a copy larger than any file"),
        pytest.param(SPARSE, _cloned, DoesNotFitError, id="a clone with more data than the disk has"),
        pytest.param(SPARSE, _kept, DoesNotFitError, id="a snapshot with more data than the disk has"),
    ],
)
async def test_of_a_neighbor_on_the_disk(bench: Bench, text: str, call: Call, error: type[TonnageError]) -> None:
    keeper = await bench.open("keeper", "image:{home},sparse=yes")
    pool = await bench.open("pool", text)
    await bench.discard(keeper)
    if call in (_grown, _restored):
        await pool.create(VolumeRequest("v", 16 * MI))
    with pytest.raises(error):
        await call(bench, pool)
    assert [volume.name for volume in await keeper.trash.list()] == ["old"]
    assert "new" not in [volume.name for volume in await pool.list()]


async def test_growth_beyond_the_largest_file(bench: Bench) -> None:
    if not os.path.exists(bench.disk / "lost+found"):
        return  # btrfs has files as large as any volume
    keeper = await bench.open("keeper", "image:{home},sparse=yes")
    pool = await bench.open("pool", SPARSE)
    await bench.discard(keeper)
    await pool.create(VolumeRequest("v", 16 * MI))
    with pytest.raises(OutOfRangeError, match="for one file"):
        await pool.growth.expand("v", 17 * TI)
    assert [volume.name for volume in await keeper.trash.list()] == ["old"]
    largest = (await pool.capacity()).largest
    assert 15 * TI < largest < 16 * TI, "what is published is what can be made"
    with pytest.raises(OutOfRangeError):
        await pool.create(VolumeRequest("new", largest + 64 * MI))
    assert (await pool.create(VolumeRequest("new", largest))).size == largest


@pytest.fixture
async def full(bench: Bench) -> Pool:
    """A pool of which trash has a part that each new volume of more than 16Mi needs."""
    kind = "image" if os.path.exists(bench.disk / "lost+found") else "btrfs"
    pool = await bench.open("pool", f"{kind}:{{home}},size=64Mi" + (",sparse=yes" if kind == "image" else ""))
    await bench.discard(pool)
    return pool


async def _stays(pool: Pool, request: VolumeRequest, error: type[TonnageError]) -> None:
    with pytest.raises(error):
        await pool.create(request)
    assert [volume.name for volume in await pool.trash.list()] == ["old"]


async def test_a_volume_of_the_name_of_trash_that_cannot_be_made(full: Pool) -> None:
    await _stays(full, VolumeRequest("old", 65 * MI), OutOfRangeError)
    await full.create(VolumeRequest("other", 8 * MI))
    await _stays(full, VolumeRequest("old", 60 * MI), ExhaustedError)
    assert (await full.create(VolumeRequest("old", 50 * MI))).size == 50 * MI
    assert await full.trash.list() == []


async def test_a_name_whose_record_is_damaged(full: Pool) -> None:
    full.backend.records.damaged["new"] = "its checksum is wrong"
    await _stays(full, VolumeRequest("new", 32 * MI), HostError)


async def test_a_source_that_does_not_fit(full: Pool, real_folder: Path) -> None:
    source = real_folder / "source"
    source.mkdir()
    for content, error in ((None, OutOfRangeError), ("/nowhere", PreconditionError)):
        if content is None:
            (source / "large").write_bytes(bytes(40 * MI))
        parameters = {SOURCE: f"dir://{content or source}"}
        await _stays(full, VolumeRequest("new", 32 * MI, parameters=parameters), error)


async def test_a_pool_whose_disk_was_exchanged(full: Pool, bench: Bench) -> None:
    place = full.backend.folder.directory.path  # type: ignore[attr-defined]
    mount.mount("none", place, "tmpfs")
    try:
        with pytest.raises(UnavailableError):
            await full.create(VolumeRequest("new", 32 * MI))
    finally:
        mount.umount(place)
    assert [volume.name for volume in await full.trash.list()] == ["old"]


@pytest.mark.parametrize("bench", ["ext4"], indirect=True)
async def test_a_raw_block_volume_in_use_that_cannot_be_copied(bench: Bench) -> None:
    pool = await bench.open("pool", "image:{home},size=64Mi,sparse=yes")
    staging, target = bench.disk.parent / "block", bench.disk.parent / "target"
    await pool.create(VolumeRequest("v", 16 * MI, block=True))
    await bench.use(pool, "old", 40 * MI, MI, owner=DAY)
    assert await pool.trash.discard("old")
    await pool.stage("v", staging)
    await pool.publish("v", staging, target)
    _write(target, 1)
    with pytest.raises(PreconditionError, match="is in use"):
        await pool.create(VolumeRequest("new", 16 * MI, block=True, source=VolumeOrigin(volume="v")))
    with pytest.raises(PreconditionError, match="is in use"):
        await pool.snapshots.create("s", "v")
    await pool.unpublish("v", target)
    await pool.unstage("v", staging)
    assert [volume.name for volume in await pool.trash.list()] == ["old"]


@pytest.mark.parametrize("bench", ["ext4"], indirect=True)
async def test_restored_trash_that_does_not_fit_evicts_no_other(bench: Bench) -> None:
    pool = await bench.open("pool", "image:{home},sparse=yes")
    await bench.use(pool, "large", 120 * MI, MI, owner=DAY)
    await bench.discard(pool)
    assert await pool.trash.discard("large")
    _write(bench.disk / "of-others", 200 * MI)
    with pytest.raises(DoesNotFitError):
        await pool.trash.restore("large")
    assert [volume.name for volume in await pool.trash.list()] == ["old", "large"]


async def test_a_fake_pool(real_folder: Path) -> None:
    pool = make(parse("fake,size=10Gi"))
    await pool.open()
    await pool.create(VolumeRequest("old", 8 * GI, owner=DAY))
    assert await pool.trash.discard("old")
    await _stays(pool, VolumeRequest("old", 11 * GI), OutOfRangeError)
    await _stays(pool, VolumeRequest("new", 11 * GI), OutOfRangeError)
    pool.backend.records.damaged["new"] = "its checksum is wrong"
    await _stays(pool, VolumeRequest("new", 9 * GI), HostError)
    await pool.close()
