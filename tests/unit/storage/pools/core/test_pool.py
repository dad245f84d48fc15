"""The half of a pool that waits, over a store that keeps its records in memory: what a new kind gets for nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tonnage.base.errors import (
    AlreadyExistsError,
    ExhaustedError,
    HostError,
    InvalidError,
    NotFoundError,
    OutOfRangeError,
    UnavailableError,
    UnsupportedError,
)
from tonnage.storage.pools.base.contract import (
    Capacity,
    Features,
    PoolVolume,
    SnapshotRequest,
    Stats,
    VolumeOrigin,
    VolumeRequest,
)
from tonnage.storage.pools.base.record import Records, VolumeRecord
from tonnage.storage.pools.base.reservation import LARGEST
from tonnage.storage.pools.core.backend import Backend, Mounts, RequestedVolume
from tonnage.storage.pools.core.growth import expanded_size
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.fake.backend import FakePool

MI = 1024**2


class Shelf(Backend, Mounts):
    """Records of 100 MiB in all, and nothing else."""

    shares_commit = True
    features = Features(
        "shelf",
        fstypes=("ext4",),
        parameters=frozenset({"reserve", "colour", "iops"}),
        modifiable=frozenset({"iops"}),
    )

    def __init__(self) -> None:
        self.mounts = self
        self.records = Records("shelf pool", most=100 * MI)
        self.settled = 0
        self.is_there = False
        self.gate = threading.Event()
        self.gate.set()
        self.calls: list[str] = []

    def load(self) -> None:
        self.is_there = True

    def close(self) -> None:
        self.is_there = False

    @property
    def is_open(self) -> bool:
        return self.is_there

    def check(self, parameters: Mapping[str, str], fstype: str, *, block: bool) -> None:
        super().check(parameters, fstype, block=block)
        if parameters.get("colour", "red") != "red":
            raise InvalidError("parameter colour: want red")

    def commit(self) -> None:
        self.settled += 1

    def capacity(self, fstype: str, parameters: Mapping[str, str], *, block: bool) -> Capacity:
        free = self.records.most - self.records.used
        return Capacity(self.records.most, free, free, 4096, self.records.used)

    def create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> VolumeRecord:
        self.gate.wait(60)
        self.calls.append(f"create {request.name}")
        record = VolumeRecord(request.name, want.size, uuid4(), fstype=want.fstype, parameters=dict(request.parameters))
        self.records.reserve(record.name, record.size)
        self.write(record)
        return record

    def delete(self, name: str) -> None:
        self.calls.append(f"delete {name}")
        if record := self.records.volumes.pop(name, None):
            self.records.reserve(name, -record.size)

    def write(self, record: VolumeRecord) -> None:
        self.records.volumes[record.name] = record

    def check_unused(self, name: str) -> None:
        pass

    def stage(self, record: VolumeRecord, path: Path, options: Sequence[str]) -> None:
        pass

    def unstage(self, name: str, path: Path) -> None:
        pass

    def publish(self, record: VolumeRecord, staging: Path, target: Path, *, readonly: bool) -> None:
        pass

    def unpublish(self, name: str, target: Path) -> None:
        pass

    def stats(self, record: VolumeRecord, path: Path) -> Stats:
        return Stats(record.size, 0, 0)


class ShelfPool(Pool):
    """A pool of it."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        super().__init__("p", self.shelf)


@pytest.fixture
async def pool() -> ShelfPool:
    """A pool of that kind, open."""
    made = ShelfPool()
    await made.open()
    return made


async def test_what_is_not_open_is_not_said_to_be_gone() -> None:
    closed = ShelfPool()
    for call in (closed.create(VolumeRequest("a", MI)), closed.get("a"), closed.list(), closed.growth.expand("a", MI)):
        with pytest.raises(UnavailableError, match="shelf pool is not open"):
            await call


async def test_answers_wait_until_all_is_settled(pool: ShelfPool) -> None:
    request = VolumeRequest("a", MI)
    for call in (pool.create(request), pool.create(request), pool.modify("a", {"iops": "5"}), pool.delete("a")):
        before = pool.shelf.settled
        await call
        assert pool.shelf.settled == before + 1
    assert pool.shelf.calls == ["create a", "delete a"]


async def test_calls_for_one_name_wait_for_each_other(pool: ShelfPool) -> None:
    pool.shelf.gate.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(pool.create(VolumeRequest("a", MI)))
        group.create_task(pool.create(VolumeRequest("b", MI)))
        await asyncio.sleep(0)
        group.create_task(pool.delete("a"))
        pool.shelf.gate.set()
    assert pool.shelf.calls.index("delete a") > pool.shelf.calls.index("create a")
    assert [volume.name for volume in await pool.list()] == ["b"]


async def test_parameters_are_checked_before_anything_is_done(pool: ShelfPool) -> None:
    for wrong, words in (
        ({"colour": "blue"}, "want red"),
        ({"shape": "round"}, "does not know the parameter 'shape'"),
        ({"reserve": "much"}, "reserve"),
    ):
        with pytest.raises(InvalidError, match=words):
            await pool.create(VolumeRequest("a", MI, parameters=wrong))
    with pytest.raises(InvalidError, match="want red"):
        await pool.capacity_for({"colour": "blue"})
    with pytest.raises(InvalidError, match="cannot change the parameter 'colour': what can be changed is iops"):
        await pool.create(VolumeRequest("a", MI, mutable={"colour": "red"}))
    assert pool.shelf.calls == []


async def test_room_is_counted(pool: ShelfPool) -> None:
    await pool.create(VolumeRequest("a", 60 * MI))
    with pytest.raises(ExhaustedError):
        await pool.create(VolumeRequest("b", 41 * MI))
    assert (await pool.capacity_for({"reserve": "10Mi"})).largest == 30 * MI
    with pytest.raises(ExhaustedError, match="do not fit any more into shelf pool"):
        pool.shelf.records.reserve("c", 41 * MI)
    assert pool.shelf.records.used == 60 * MI


async def test_a_damaged_record_stops_only_its_volume(pool: ShelfPool) -> None:
    await pool.create(VolumeRequest("a", MI))
    pool.shelf.records.damaged["b"] = "it is blank"
    with pytest.raises(
        HostError, match=r"record of volume b in shelf pool is damaged \(it is blank\), nothing was touched: put a copy"
    ):
        await pool.get("b")
    assert (await pool.condition("b")).abnormal
    assert not (await pool.condition("a")).abnormal
    assert (await pool.get("a")).size == MI


async def test_what_a_kind_does_not_offer(pool: ShelfPool, tmp_path: Path) -> None:
    await pool.create(VolumeRequest("a", MI))
    for call, what in (
        (pool.snapshots.create("s", "a"), "snapshots"),
        (pool.snapshots.delete("s"), "snapshots"),
        (pool.create(VolumeRequest("b", MI, source=VolumeOrigin(volume="a"))), "made from a volume a"),
        (pool.growth.expand("a", 2 * MI), "larger volumes"),
        (pool.growth.grow("a", tmp_path), "larger volumes"),
        (pool.device("a"), "block devices"),
    ):
        with pytest.raises(UnsupportedError, match=what):
            await call
    with pytest.raises(NotFoundError):
        await pool.snapshots.get("s")
    with pytest.raises(NotFoundError):
        await pool.device("b")
    assert (list(await pool.snapshots.list()), list(await pool.erasing()), await pool.volume_limit()) == ([], [], 0)


def test_a_volume_that_grows_has_whole_blocks_within_the_limit() -> None:
    pool, volume = FakePool("p", 1 << 30), PoolVolume("v", 4096)
    assert expanded_size(pool, volume, 5000, 8192, step=4096) == 8192
    assert expanded_size(pool, volume, 1, 4096, step=4096) == 4096
    with pytest.raises(OutOfRangeError, match=r"8192 bytes \(whole blocks\) are more than the limit 8191"):
        expanded_size(pool, volume, 5000, 8191, step=4096)
    with pytest.raises(OutOfRangeError, match="never made smaller"):
        expanded_size(pool, volume, 1, 4095, step=4096)
    for size, limit in ((-1, 0), (0, -1), (LARGEST + 1, 0), (0, LARGEST + 1)):
        with pytest.raises(InvalidError, match="want 0 to"):
            expanded_size(pool, volume, size, limit)


async def test_a_volume_that_the_driver_fills_is_not_in_use_by_a_pod(tmp_path: Path) -> None:
    pool = FakePool("p", 10 * MI, directories=False)
    await pool.create(VolumeRequest("v", MI))
    await pool.stage("v", tmp_path, fills=True)
    await pool.unstage("v", tmp_path)
    assert await pool.delete_unused("v", copies=False, ask=True) == ""
    await pool.stage("v", tmp_path)
    await pool.unstage("v", tmp_path)
    assert "it was first staged at" in await pool.delete_unused("v", copies=False)
    assert (await pool.get("v")).name == "v"


async def test_a_copy_is_of_the_source_that_was_asked_for_first() -> None:
    pool = FakePool("p", 10 * MI, directories=False)
    await pool.create(VolumeRequest("empty", MI))
    for name in ("s", "t"):
        await pool.snapshots.create(name, "empty")
    source = VolumeOrigin(snapshot="s")
    made = await pool.create(VolumeRequest("copy", MI, source=source))
    assert await pool.create(VolumeRequest("copy", MI, source=source)) == made
    for name, other in (("copy", VolumeOrigin(snapshot="t")), ("copy", None), ("empty", source)):
        with pytest.raises(AlreadyExistsError, match="it was made from"):
            await pool.create(VolumeRequest(name, MI, source=other))


async def test_a_pool_that_is_closed_holds_nothing_for_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = FakePool("p", 10 * MI, directories=False)
    await pool.create(VolumeRequest("v", MI))
    monkeypatch.setattr(pool.backend, "is_open", False)
    with pytest.raises(UnavailableError):
        async with pool.snapshots.hold([SnapshotRequest("s", "v")]):
            pytest.fail("it is closed")


ZEROED = {"erase": "zero"}
HAS = VolumeRequest("v", 2 * MI, fstype="xfs", parameters=ZEROED)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"size": MI}, ""),
        ({"size": MI, "limit": 2 * MI}, ""),
        ({"fstype": ""}, "its file system is xfs, requested ext4"),
        ({"size": 3 * MI}, "its size is 2097152, requested 3145728 to any bytes"),
        ({"size": MI, "limit": MI}, "its size is 2097152, requested 1048576 to 1048576 bytes"),
        ({"block": True, "fstype": ""}, "it is a file system"),
        ({"parameters": {}}, "its parameters are"),
    ],
)
async def test_a_volume_that_exists_serves_only_what_it_fits(change: dict[str, Any], words: str) -> None:
    pool = FakePool("p", 10 * MI, directories=False)
    made = await pool.create(HAS)
    if not words:
        assert await pool.create(replace(HAS, **change)) == made
        return
    with pytest.raises(AlreadyExistsError, match=words):
        await pool.create(replace(HAS, **change))


@pytest.mark.parametrize(
    ("change", "failure"),
    [({"block": True}, InvalidError), ({"fstype": "ext4"}, InvalidError), ({"size": MI}, OutOfRangeError)],
)
async def test_a_copy_is_of_the_kind_of_its_source_and_no_smaller(
    change: dict[str, Any], failure: type[Exception]
) -> None:
    pool = FakePool("p", 10 * MI, directories=False)
    await pool.create(HAS)
    request = VolumeRequest("copy", 2 * MI, source=VolumeOrigin(volume="v"))
    with pytest.raises(failure, match="its source"):
        await pool.create(replace(request, **change))
    assert (await pool.create(request)).fstype == "xfs"


async def test_the_owner_record_is_added_to(pool: Pool) -> None:
    await pool.create(VolumeRequest("v", MI))
    await pool.annotate("v", {"claim": "a", "content": "filling"})
    for _ in range(2):
        volume = await pool.annotate("v", {"content": "filled"})
        assert volume.owner == {"claim": "a", "content": "filled"}
    assert (await pool.get("v")).owner == volume.owner
    with pytest.raises(NotFoundError):
        await pool.annotate("w", {})
