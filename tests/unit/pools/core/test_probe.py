"""A pool that cannot write says so, offers nothing, and comes back by itself."""

from __future__ import annotations

import asyncio

import pytest

from tonnage.aio.clock import LoopClock
from tonnage.errors import ExhaustedError, HostError
from tonnage.pools.base.contract import VolumeRequest
from tonnage.pools.core.probe import EVERY, PATIENCE, WriteProbe
from tonnage.pools.fake import FakePool
from tonnage.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30


class _Disk:
    """A disk whose writes fail with `error`, or hang while `goes` is not set."""

    def __init__(self) -> None:
        self.error = ""
        self.goes = asyncio.Event()
        self.goes.set()
        self.writes: list[float] = []

    async def write(self) -> None:
        self.writes.append(asyncio.get_running_loop().time())
        await self.goes.wait()
        if self.error:
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
