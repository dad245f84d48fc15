"""Trash against a model: any order of calls, with time that passes and restarts."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.examples import DEFAULT, examples

from tonnage.base.errors import ExhaustedError, NotFoundError
from tonnage.storage.pools.base.contract import SnapshotRequest, VolumeRequest
from tonnage.storage.pools.base.record import UNDELETE
from tonnage.storage.pools.core import group
from tonnage.storage.pools.core.group import MemberRequest
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.simulate.virtual_time import LoopClock, VirtualLoop

R = TypeVar("R")
TOTAL = 1000
SIZES, CHOICE = st.integers(1, TOTAL), st.integers(0, 100)


class TrashMachine(RuleBasedStateMachine):
    """No volume is rejected for trash, the oldest goes first, and none goes that did not have to.

    live: size and seconds to stay. trash: size and when it ends, the oldest first. snapshots: size.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop, self.count = VirtualLoop(), 0
        self.live: dict[str, tuple[int, int]] = {}
        self.trash: dict[str, tuple[int, float]] = {}
        self.snapshots: dict[str, int] = {}
        self.clock = LoopClock()
        self.pool = self.run(self._opened())

    async def _opened(self) -> FakePool:
        pool = FakePool("m", TOTAL, directories=False, clock=self.clock)
        await pool.open()
        return pool

    def run(self, call: Coroutine[Any, Any, R]) -> R:
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        self.run(self.pool.close())
        self.loop.close()

    def _now(self) -> float:
        return self.clock.epoch + self.loop.time()

    def _new(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def _reserved(self) -> int:
        return sum(size for size, _ in self.live.values()) + sum(self.snapshots.values())

    def _make_way(self, more: int) -> bool:
        """Whether so many bytes fit; if so, the trash that has them is gone."""
        if self._reserved() + more > TOTAL:
            return False
        while self._reserved() + more + sum(size for size, _ in self.trash.values()) > TOTAL:
            del self.trash[next(iter(self.trash))]
        return True

    def _tried(self, call: Coroutine[Any, Any, object], more: int) -> bool:
        """Make a call that needs so many bytes; whether it was to succeed, and did."""
        if self._make_way(more):
            self.run(call)
            return True
        with pytest.raises(ExhaustedError):
            self.run(call)
        return False

    def _pick(self, names: dict[str, Any], choice: int) -> str:
        return list(names)[choice % len(names)]

    @rule(size=SIZES, stays=st.sampled_from([0, 30, 300]))
    def create(self, size: int, stays: int) -> None:
        name = self._new()
        request = VolumeRequest(name, size, owner={UNDELETE: str(stays)} if stays else {})
        if self._tried(self.pool.create(request), size):
            self.run(self._use(name))
            self.live[name] = size, stays

    async def _use(self, name: str) -> None:
        await self.pool.stage(name, Path("/s"))
        await self.pool.unstage(name, Path("/s"))

    @precondition(lambda self: self.live)
    @rule(choice=CHOICE)
    def discard(self, choice: int) -> None:
        name = self._pick(self.live, choice)
        size, stays = self.live.pop(name)
        assert self.run(self.pool.trash.discard(name)) == bool(stays)
        if stays:
            self.trash[name] = size, self._now() + stays
        else:
            self.run(self.pool.delete(name))
        self.wait(1)  # two of one moment have no order

    @precondition(lambda self: self.trash)
    @rule(choice=CHOICE)
    def restore(self, choice: int) -> None:
        name = self._pick(self.trash, choice)
        size, _ = self.trash.pop(name)
        self.run(self.pool.trash.restore(name))
        self.live[name] = size, int(self.run(self.pool.get(name)).owner[UNDELETE])

    @precondition(lambda self: self.live)
    @rule(choice=CHOICE, more=SIZES)
    def expand(self, choice: int, more: int) -> None:
        name = self._pick(self.live, choice)
        size, stays = self.live[name]
        if size + more <= TOTAL and self._tried(self.pool.growth.expand(name, size + more), more):
            self.live[name] = size + more, stays

    @precondition(lambda self: self.live)
    @rule(choice=CHOICE)
    def snapshot(self, choice: int) -> None:
        volume, name = self._pick(self.live, choice), self._new()
        size, _ = self.live[volume]
        if self._tried(self.pool.snapshots.create(name, volume), size):
            self.snapshots[name] = size

    @precondition(lambda self: len(self.live) > 1)
    @rule()
    def snapshot_group(self) -> None:
        volumes = list(self.live)[:2]
        wanted = {self._new(): volume for volume in volumes}
        members = [MemberRequest(self.pool, SnapshotRequest(name, volume)) for name, volume in wanted.items()]
        if self._tried(group.take(members), sum(self.live[volume][0] for volume in volumes)):
            self.snapshots.update({name: self.live[volume][0] for name, volume in wanted.items()})

    @precondition(lambda self: self.snapshots)
    @rule(choice=CHOICE)
    def delete_snapshot(self, choice: int) -> None:
        name = self._pick(self.snapshots, choice)
        del self.snapshots[name]
        self.run(self.pool.snapshots.delete(name))

    @rule(seconds=st.sampled_from([5, 40, 400]))
    def wait(self, seconds: int) -> None:
        self.run(self.clock.sleep(seconds))
        self.trash = {name: one for name, one in self.trash.items() if one[1] > self._now()}

    @rule()
    def restart(self) -> None:
        self.run(self.pool.open())

    @rule()
    def restore_what_is_gone(self) -> None:
        with pytest.raises(NotFoundError):
            self.run(self.pool.trash.restore(f"v{self.count + 1}"))

    @invariant()
    def agrees(self) -> None:
        volumes, trash = self.run(self.pool.list()), self.run(self.pool.trash.list())
        assert {volume.name: volume.size for volume in volumes} == {name: size for name, (size, _) in self.live.items()}
        assert {volume.name: volume.size for volume in trash} == {name: size for name, (size, _) in self.trash.items()}
        assert self.run(self.pool.capacity()).free == TOTAL - self._reserved()


TestTrash = TrashMachine.TestCase
TestTrash.settings = examples(DEFAULT, machine=True, deadline=None)
