"""The fake pool beyond the common contract, and against a model."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.examples import examples

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import ExhaustedError, InvalidError, OutOfRangeError, PreconditionError
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing.clock import run_virtual

R = TypeVar("R")
NAMES = st.sampled_from(["a", "b", "c", "d"])
PLACES = st.sampled_from([Path("/p/1"), Path("/p/2")])


def _now(call: Coroutine[Any, Any, R]) -> R:
    """Run a call that never waits, without a loop."""
    try:
        call.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    raise AssertionError("the fake pool waited")


class MemoryMachine(RuleBasedStateMachine):
    """Any order of calls: what is promised is the sum of what exists, and what is in use is never deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = FakePool("m", 1000, largest=600, directories=False)
        self.model: dict[str, int] = {}
        self.staged: set[tuple[str, Path]] = set()

    @rule(name=NAMES, size=st.integers(1, 700))
    def create(self, name: str, size: int) -> None:
        taken = sum(self.model.values())
        request = VolumeRequest(name, size)
        if name in self.model:
            if self.model[name] >= size:
                assert _now(self.pool.create(request)).size == self.model[name]
        elif size > 600:
            with pytest.raises(OutOfRangeError):
                _now(self.pool.create(request))
        elif taken + size > 1000:
            with pytest.raises(ExhaustedError):
                _now(self.pool.create(request))
        else:
            _now(self.pool.create(request))
            self.model[name] = size

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if any(staged == name for staged, _ in self.staged):
            with pytest.raises(PreconditionError):
                _now(self.pool.delete(name))
        else:
            _now(self.pool.delete(name))
            self.model.pop(name, None)

    @rule(name=NAMES, place=PLACES)
    def stage(self, name: str, place: Path) -> None:
        if name in self.model:
            _now(self.pool.stage(name, place))
            self.staged.add((name, place))

    @rule(name=NAMES, place=PLACES)
    def unstage(self, name: str, place: Path) -> None:
        _now(self.pool.unstage(name, place))
        self.staged.discard((name, place))

    @invariant()
    def counted(self) -> None:
        room = _now(self.pool.capacity())
        assert room.used == sum(self.model.values())
        assert room.free == 1000 - room.used
        assert room.largest == min(room.free, 600)
        assert {v.name: v.size for v in _now(self.pool.list())} == self.model


TestMachine = MemoryMachine.TestCase
TestMachine.settings = examples(40, machine=True, deadline=None)


def test_created_by_the_clock_it_was_given() -> None:
    async def main() -> float:
        pool = FakePool("m", 1000, clock=LoopClock(epoch=500.0))
        await asyncio.sleep(60)
        return (await pool.create(VolumeRequest("a", 1))).created

    assert run_virtual(main()) == pytest.approx(560.0)


async def test_least_size_rounds_up_and_keeps_the_limit() -> None:
    pool = FakePool("m", 1000, smallest=10)
    assert (await pool.create(VolumeRequest("a", 1))).size == 10
    with pytest.raises(OutOfRangeError, match="at least"):
        await pool.create(VolumeRequest("b", 1, limit=5))


async def test_without_directories_nothing_is_made(tmp_path: Path) -> None:
    pool = FakePool("m", 1000, directories=False)
    await pool.create(VolumeRequest("a", 1))
    await pool.stage("a", tmp_path / "s")
    await pool.publish("a", tmp_path / "s", tmp_path / "t")
    await pool.unpublish("a", tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


async def test_what_a_pod_left_goes_with_its_directory(tmp_path: Path) -> None:
    pool = FakePool("m", 1000)
    outside = tmp_path / "outside"
    outside.write_text("kept")
    await pool.create(VolumeRequest("a", 1))
    await pool.stage("a", tmp_path / "s")
    await pool.publish("a", tmp_path / "s", tmp_path / "t")
    (tmp_path / "t" / "deep").mkdir()
    (tmp_path / "t" / "deep" / "link").symlink_to(outside)
    await pool.unpublish("a", tmp_path / "t")
    assert not (tmp_path / "t").exists()
    assert outside.read_text() == "kept"


async def test_raw_block_shows_a_file(tmp_path: Path) -> None:
    pool = FakePool("m", 1000)
    await pool.create(VolumeRequest("a", 1, block=True))
    await pool.stage("a", tmp_path / "s")
    await pool.publish("a", tmp_path / "s", tmp_path / "t")
    assert (tmp_path / "t").is_file()
    await pool.unpublish("a", tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


class _Now(RealClock):
    """A clock that stands still until it is moved."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


async def test_what_is_erased_is_seen_as_time_goes_by() -> None:
    clock = _Now()
    pool = FakePool("p", 100, erase_rate=10, clock=clock)
    for name, size, erase in (("a", 20, "zero"), ("b", 10, "shred"), ("c", 30, "none")):
        await pool.create(VolumeRequest(name, size, parameters={"erase": erase}))
    clock.now += 1000
    for name in ("b", "a", "c"):
        await pool.delete(name)
    assert [(e.name, e.done, e.total, e.reserved) for e in await pool.erasing()] == [("a", 0, 20, 20), ("b", 0, 40, 10)]
    assert (await pool.capacity()).used == 30
    clock.now += 3
    assert [(e.name, e.percent) for e in await pool.erasing()] == [("a", 0), ("b", 75)]
    clock.now += 2
    assert [(e.name, e.percent) for e in await pool.erasing()] == [("a", 50)]
    await pool.create(VolumeRequest("a", 80))
    with pytest.raises(ExhaustedError):
        await pool.create(VolumeRequest("d", 1))
    clock.now += 1
    assert await pool.erasing() == []
    assert (await pool.capacity()).free == 20
    with pytest.raises(InvalidError, match="erase"):
        await pool.create(VolumeRequest("d", 1, parameters={"erase": "burn"}))
