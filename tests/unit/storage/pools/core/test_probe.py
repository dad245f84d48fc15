"""A pool that cannot write says so, offers nothing, and comes back by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.hanging import HangingPool

from tonnage.base.errors import ExhaustedError, HostError
from tonnage.storage.pools.base.contract import SnapshotRequest, VolumeRequest
from tonnage.storage.pools.core import group
from tonnage.storage.pools.core.group import MemberRequest
from tonnage.storage.pools.core.probe import EVERY, PATIENCE, DiskHangsError, DiskProbe, WriteProbe
from tonnage.storage.pools.core.work import SLOW
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30


class _Disk:
    """A disk whose writes fail with `error`, or hang while `goes` is not set; after `is_mended_by` writes they succeed."""

    def __init__(self) -> None:
        self.error = ""
        self.goes = asyncio.Event()
        self.goes.set()
        self.is_mended_by = 1 << 30
        self.writes: list[float] = []

    async def write(self) -> None:
        self.writes.append(asyncio.get_running_loop().time())
        number = len(self.writes)
        await self.goes.wait()
        if self.error and number <= self.is_mended_by:
            raise HostError(self.error)


@pytest.fixture
async def disk() -> _Disk:
    return _Disk()


def _probe(disk: _Disk) -> tuple[WriteProbe, list[str]]:
    probe, told = WriteProbe("p", disk.write, LoopClock()), list[str]()
    probe.changed = lambda: told.append(probe.fault)
    return probe, told


async def test_it_comes_back_by_itself_and_asks_less_and_less_often(disk: _Disk) -> None:
    probe, told = _probe(disk)
    disk.error = "Input/output error"
    await probe.run()
    with pytest.raises(
        ExhaustedError, match=r"pool 'p' makes no volumes: it cannot write: Input/output error; look at"
    ):
        probe.check()
    await asyncio.sleep(3600)
    pauses = [later - earlier for earlier, later in zip(disk.writes, disk.writes[1:], strict=False)]
    assert pauses[0] < 3
    assert max(pauses) < 2 * EVERY
    disk.error = ""
    await asyncio.sleep(2 * EVERY)
    probe.check()
    assert told == ["Input/output error", ""]
    count = len(disk.writes)
    await asyncio.sleep(3600)
    assert len(disk.writes) == count, "idle"
    await probe.close()


async def test_a_disk_that_hangs_counts_as_one_that_fails(disk: _Disk, eventually: Eventually) -> None:
    probe, told = _probe(disk)
    disk.goes.clear()
    await asyncio.gather(probe.run(), probe.run())
    assert probe.fault == f"a write has not ended for {PATIENCE:.0f} s"
    await asyncio.sleep(600)
    assert len(disk.writes) == 1, "a second one would hang too, and need one more thread"
    disk.goes.set()

    async def well() -> bool:
        return not probe.fault

    await eventually(well)
    assert told[-1] == ""
    await probe.close()


async def test_who_asks_during_a_try_that_fails_gets_one_of_its_own(disk: _Disk) -> None:
    """That try began before: a descriptor may be free since."""
    probe, _ = _probe(disk)
    disk.error = "Too many open files"
    await probe.run()
    disk.goes.clear()
    begun = asyncio.ensure_future(probe.run())
    await asyncio.sleep(0.1)
    asked = [asyncio.ensure_future(probe.retry()) for _ in range(5)]
    await asyncio.sleep(0.1)
    disk.is_mended_by = len(disk.writes)
    disk.goes.set()
    await asyncio.gather(begun, *asked)
    probe.check()
    assert len(disk.writes) == disk.is_mended_by + 1, "the five share one"
    await probe.close()


async def test_it_is_tried_now_and_then_while_somebody_asks(disk: _Disk) -> None:
    probe, _ = _probe(disk)
    for _ in range(10):
        await probe.run_if_due()
    assert disk.writes == []
    await asyncio.sleep(EVERY)
    for _ in range(10):
        await probe.run_if_due()
    assert len(disk.writes) == 1
    await probe.close()


class _Dead(FakePool):
    def __init__(self) -> None:
        super().__init__("p", 10 * GIB)
        self.error = ""
        self.backend.probe = self._write  # type: ignore[method-assign]
        create = self.backend.create

        def made(*given: object) -> object:
            self._write()
            return create(*given)  # type: ignore[arg-type]

        self.backend.create = made  # type: ignore[assignment,method-assign]

    def _write(self) -> None:
        if self.error:
            raise HostError(self.error)


async def test_a_failed_creation_makes_the_pool_offer_nothing_until_it_can_write() -> None:
    pool, told = _Dead(), list[tuple[str, str]]()
    pool.on_fault = lambda name, why: told.append((name, why))
    await pool.open()
    await pool.create(VolumeRequest("old", GIB))
    pool.error = "Read-only file system"
    for _ in range(2):
        with pytest.raises(ExhaustedError, match="it cannot write: Read-only file system"):
            await pool.create(VolumeRequest("new", GIB))
        assert (await pool.capacity()).free == (await pool.capacity()).largest == 0
    assert (await pool.create(VolumeRequest("old", GIB))).size == GIB, "what is there is answered"
    assert any("Read-only file system" in problem for problem in await pool.problems())
    pool.error = ""
    await asyncio.sleep(2 * EVERY)
    assert (await pool.capacity()).free == 9 * GIB
    await pool.create(VolumeRequest("new", GIB))
    assert told == [("p", "Read-only file system"), ("p", "")]
    await pool.close()


async def test_a_fault_of_a_moment_costs_one_call() -> None:
    pool = _Dead()
    await pool.open()
    pool.error = "Too many open files"
    with pytest.raises(ExhaustedError):
        await pool.create(VolumeRequest("new", GIB))
    pool.error = ""
    await pool.create(VolumeRequest("new", GIB))
    assert (await pool.capacity()).free == 9 * GIB
    await pool.close()


async def test_a_creation_that_fails_on_a_disk_that_can_write_is_of_that_volume() -> None:
    pool = _Dead()
    await pool.open()
    pool.error = "no room in a directory"
    pool.backend.probe = lambda: None  # type: ignore[method-assign]
    with pytest.raises(HostError, match="no room in a directory"):
        await pool.create(VolumeRequest("new", GIB))
    assert (await pool.capacity()).free == 10 * GIB
    await pool.close()


class _Hanging(HangingPool):
    """All of it hangs."""

    def __init__(self) -> None:
        super().__init__("p", 10 * GIB)
        self.hung = lambda work: True

    async def settle(self, name: str) -> Exception | None:
        """Create a volume; what it ends with."""
        try:
            await self.create(VolumeRequest(name, GIB))
        except ExhaustedError as failure:
            return failure
        return None


@pytest.fixture
async def hanging() -> AsyncIterator[_Hanging]:
    pool = _Hanging()
    await pool.open()
    yield pool
    pool.goes.set()
    await pool.close()


async def test_a_creation_on_a_disk_that_hangs_has_a_limit_and_is_finished_later(hanging: _Hanging) -> None:
    told = list[tuple[str, str]]()
    hanging.on_fault = lambda name, why: told.append((name, why))
    await hanging.create(VolumeRequest("old", GIB))
    hanging.goes.clear()
    loop = asyncio.get_running_loop()
    before = loop.time()
    failures = await asyncio.gather(*(hanging.settle(name) for name in ("new", "new", "other")))
    assert loop.time() - before <= SLOW + PATIENCE + 1
    assert all("it cannot write: a write has not ended for 20 s" in str(failure) for failure in failures)
    before = loop.time()
    assert (await hanging.capacity()).largest == (await hanging.overall()).free == 0
    assert await hanging.problems() == ["it cannot write, and offers no capacity: a write has not ended for 20 s"]
    assert await hanging.settle("late") is not None
    assert await hanging.get("old")
    assert loop.time() == before, "nothing waits for the disk any more"
    hanging.goes.set()
    await asyncio.sleep(2 * EVERY)
    assert [why for _, why in told] == ["a write has not ended for 20 s", ""]
    assert await hanging.settle("new") is None, "its lock is free"
    assert (await hanging.capacity()).free == 10 * GIB - sum(v.size for v in await hanging.list())


async def test_a_caller_whose_time_is_over_does_not_end_the_look_at_the_disk(hanging: _Hanging) -> None:
    """As of an agent, which waits for 10 s: shorter than the probe."""
    hanging.goes.clear()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await hanging.probe.run()
    await hanging.probe.run()
    assert loop.time() - began < PATIENCE + 5, "it is one look"
    assert hanging.probe.fault
    hanging.goes.set()
    await asyncio.sleep(EVERY)
    hanging.goes.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await hanging.create(VolumeRequest("new", GIB))
    assert hanging.probe.fault, "the call has ended, and its work has not"


CALLS: dict[str, Callable[[_Hanging, str], Coroutine[Any, Any, Any]]] = {
    "delete": lambda pool, name: pool.delete(name),
    "delete_unused": lambda pool, name: pool.delete_unused(name, copies=False),
    "stage": lambda pool, name: pool.stage(name, Path("/s")),
    "unstage": lambda pool, name: pool.unstage(name, Path("/s")),
    "publish": lambda pool, name: pool.publish(name, Path("/s"), Path("/t")),
    "unpublish": lambda pool, name: pool.unpublish(name, Path("/t")),
    "stats": lambda pool, name: pool.stats(name, Path("/t")),
    "expand": lambda pool, name: pool.growth.expand(name, 2 * GIB),
    "grow": lambda pool, name: pool.growth.grow(name, Path("/t")),
    "modify": lambda pool, name: pool.modify(name, {}),
    "annotate": lambda pool, name: pool.annotate(name, {"a": "b"}),
    "in_use": lambda pool, name: pool.in_use(name),
    "create_snapshot": lambda pool, name: pool.snapshots.create(f"of-{name}", name),
    "delete_snapshot": lambda pool, name: pool.snapshots.delete(f"of-{name}"),
    "group": lambda pool, name: group.take([MemberRequest(pool, SnapshotRequest(f"of-{name}", name))]),
}


@pytest.mark.parametrize("call", CALLS)
async def test_each_call_gives_up_and_few_of_them_are_stuck(hanging: _Hanging, call: str) -> None:
    names = [f"v{number}" for number in range(8)]
    for name in names:
        await hanging.create(VolumeRequest(name, GIB))
    hanging.goes.clear()
    loop = asyncio.get_running_loop()

    async def gives_up(name: str) -> float:
        before = loop.time()
        with pytest.raises(
            DiskHangsError, match="'p' does not answer: a write has not ended for 20 s; look at its disk"
        ):
            await CALLS[call](hanging, name)
        return loop.time() - before

    assert await gives_up(names[0]) <= SLOW + PATIENCE + 1
    stuck = []
    for _ in range(5):  # as the kubelet and the agent repeat them
        took = [await gives_up(name) for name in names]
        assert max(took) <= SLOW + 1, "that the disk hangs is known"
        stuck.append(hanging.waiting)
    assert stuck == [stuck[0]] * 5, "a call that is repeated is not begun twice"
    if call not in ("unstage", "unpublish"):
        assert stuck[0] <= 3
        assert sum(took) == 0, "nor tried"
    hanging.goes.set()
    await asyncio.sleep(2 * EVERY)
    assert hanging.waiting == 0
    for name in names:  # no lock is held
        await hanging.delete(name)
    assert await hanging.list() == []


async def test_what_a_call_makes_that_has_given_up_is_deleted_unless_somebody_asks_again(hanging: _Hanging) -> None:
    told = list[str]()
    delete = hanging.backend.delete

    def deleted(name: str) -> None:
        told.append(name)
        delete(name)

    hanging.backend.delete = deleted  # type: ignore[method-assign]
    await hanging.create(VolumeRequest("old", GIB))
    hanging.goes.clear()
    begun = [asyncio.ensure_future(hanging.settle(name)) for name in ("new", "wanted")]
    assert all([await call is not None for call in begun])
    hanging.probe.fault = ""  # else nobody would ask again
    again = asyncio.ensure_future(hanging.settle("wanted"))
    await asyncio.sleep(0)
    hanging.goes.set()
    assert await again is None
    await asyncio.sleep(EVERY)
    assert [volume.name for volume in await hanging.list()] == ["old", "wanted"]
    assert told == ["new"]
    hanging.goes.clear()
    assert await hanging.settle("old") is not None
    hanging.goes.set()
    await asyncio.sleep(EVERY)
    assert await hanging.settle("new") is None
    assert told == ["new"], "what was there before stays"


@pytest.mark.parametrize("other", ["o", "q"])  # before and after the pool that hangs
async def test_a_group_with_a_disk_that_hangs_gives_up_and_leaves_nothing(
    hanging: _Hanging, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it makes later is deleted before the call that is repeated begins."""
    hanging.hung = lambda work: work != hanging.snapshots.check  # it hangs with its file systems frozen
    monkeypatch.setattr(group, "Threads", lambda name, workers: hanging.work.threads)
    well = HangingPool(other, 10 * GIB)
    await well.open()
    members = [MemberRequest(pool, SnapshotRequest("s", "v")) for pool in (hanging, well)]
    for member in members:
        await member.pool.create(VolumeRequest("v", GIB))
    hanging.goes.clear()
    for _ in range(2):
        with pytest.raises(DiskHangsError):
            await group.take(members)
    again = asyncio.ensure_future(group.take(members))
    await asyncio.sleep(0)
    hanging.goes.set()
    await again
    await asyncio.sleep(EVERY)
    for member in members:
        assert [one.name for one in await member.pool.snapshots.list()] == ["s"], "by the call that was repeated"
    await well.close()


async def test_a_call_for_another_disk_than_that_which_is_tried_gives_up_too(hanging: _Hanging) -> None:
    asked, goes, loop = list[Path](), asyncio.Event(), asyncio.get_running_loop()

    async def answer(device: Path) -> None:
        asked.append(device)
        if device == Path("/dev/b"):
            await goes.wait()

    hanging.work.disks = DiskProbe("p", lambda: [Path("/dev/a"), Path("/dev/b")], answer)
    hanging.hung = lambda work: work != hanging.backend.probe
    for name in ("v", "w"):
        await hanging.create(VolumeRequest(name, GIB))
    hanging.goes.clear()
    before = loop.time()
    for _ in range(3):
        with pytest.raises(DiskHangsError, match="'p' does not answer: /dev/b has not answered for 20 s; look at its"):
            await hanging.delete("v")
    assert loop.time() - before <= 3 * SLOW + PATIENCE + 1
    with pytest.raises(ExhaustedError, match="volume new is not made: pool 'p' does not answer: /dev/b"):
        await hanging.create(VolumeRequest("new", GIB))
    assert asked.count(Path("/dev/b")) == 1, "each read that hangs needs a thread"
    hanging.goes.set()
    await hanging.delete("w")
    assert hanging.work.disks.fault, "what ends is not given up"
    goes.set()
    await asyncio.sleep(1)
    assert not hanging.work.disks.fault
    await hanging.create(VolumeRequest("new", GIB))
    assert [volume.name for volume in await hanging.list()] == ["new"]


async def test_the_condition_of_a_volume_says_that_its_disk_hangs(hanging: _Hanging) -> None:
    await hanging.create(VolumeRequest("v", GIB))
    hanging.goes.clear()
    found = await hanging.condition("v")
    assert found.abnormal
    assert "volume v: pool 'p' does not answer" in found.message
    hanging.goes.set()
    await asyncio.sleep(2 * EVERY)
    assert not (await hanging.condition("v")).abnormal


async def test_a_pool_with_work_that_hangs_is_closed_without_it(hanging: _Hanging) -> None:
    closed = list[float]()
    loop = asyncio.get_running_loop()
    hanging.backend.close = lambda: closed.append(loop.time())  # type: ignore[method-assign]
    await hanging.create(VolumeRequest("v", GIB))
    hanging.goes.clear()
    deleting = asyncio.ensure_future(hanging.delete("v"))
    await asyncio.sleep(0)
    deleting.cancel()
    await hanging.close()
    assert closed == [], "else another process might use the pool meanwhile"
    hanging.goes.set()
    await asyncio.sleep(1)
    assert len(closed) == 1
    await asyncio.wait([deleting])


async def test_the_end_waits_for_no_write_that_hangs(hanging: _Hanging) -> None:
    hanging.goes.clear()
    await hanging.probe.run()
    assert hanging.probe.hangs
    before = asyncio.get_running_loop().time()
    await hanging.probe.close()
    assert asyncio.get_running_loop().time() - before < PATIENCE
    hanging.goes.set()


async def test_the_end_waits_for_no_disk_that_is_still_asked() -> None:
    goes, asked = asyncio.Event(), asyncio.Event()

    async def answer(device: Path) -> None:
        """As a thread, which nothing ends."""
        asked.set()
        while not goes.is_set():
            with suppress(asyncio.CancelledError):
                await goes.wait()

    disks = DiskProbe("p", lambda: [Path("/dev/a")], answer)
    asking = asyncio.ensure_future(disks.run())
    await asked.wait()
    before = asyncio.get_running_loop().time()
    await disks.close()
    assert asyncio.get_running_loop().time() - before < PATIENCE
    goes.set()
    await asking


async def test_capacity_of_a_disk_that_hangs_is_none(hanging: _Hanging) -> None:
    hanging.goes.clear()
    assert (await hanging.capacity()).largest == 0


async def test_a_long_creation_on_a_disk_that_can_write_is_no_fault(hanging: _Hanging) -> None:
    """As a copy of all blocks."""
    hanging.slow.clear()
    making = asyncio.ensure_future(hanging.create(VolumeRequest("copy", GIB)))
    await asyncio.sleep(3600)
    assert not making.done()
    assert (await hanging.capacity()).free == 10 * GIB
    making.cancel()  # its caller's time is over: what is begun is waited for
    await asyncio.sleep(0)
    hanging.slow.set()
    with pytest.raises(asyncio.CancelledError):
        await making
