"""Promises: how long they count, and against what."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tonnage.capacity.assumed import AssumedClaim, Promises
from tonnage.testing.clock import ManualClock


@pytest.fixture
def promises(manual_clock: Any) -> Promises:
    return Promises(manual_clock)


def test_a_promise_counts_from_before_its_write_until_it_is_counted(promises: Promises) -> None:
    promises.book("a", AssumedClaim("n1", "ssd", 5))
    assert promises.open("n1", "ssd", 10**9) == 5
    promises.written("a", 42)
    assert promises.open("n1", "ssd", 41) == 5
    assert promises.open("n1", "ssd", None) == 5
    assert promises.open("n1", "ssd", 42) == 0
    assert promises.open("n1", "ssd", 41) == 5  # another class's object, written a moment later


def test_rooms_and_nodes_are_apart_but_for_the_unknown(promises: Promises) -> None:
    promises.book("a", AssumedClaim("n1", "ssd", 5, 1))
    promises.book("b", AssumedClaim("n1", "", 7, 1))
    assert promises.open("n1", "ssd", 0) == 12
    assert promises.open("n1", "disk", 0) == 7
    assert promises.open("n1", "", 0) == 12
    assert promises.open("n2", "ssd", 0) == 0


def test_old_news_give_nothing_back(promises: Promises) -> None:
    promises.book("a", AssumedClaim("n1", "ssd", 5))
    promises.returned("a", 100)  # the write is under way
    promises.written("a", 42)
    promises.returned("a", 41)
    assert promises.open("n1", "ssd", 0) == 5
    promises.returned("a", 43)
    assert len(promises) == 0


@pytest.mark.parametrize(("counted", "later", "still"), [(None, 0.0, 0), (1, 1.9, 5), (1, 2.1, 0)])
def test_bound(promises: Promises, manual_clock: Any, counted: int | None, later: float, still: int) -> None:
    promises.book("a", AssumedClaim("n1", "ssd", 5, 42))
    promises.bound("a")
    promises.bound("unknown")
    manual_clock.now += later
    assert promises.open("n1", "ssd", counted) == still


def test_booking_again_replaces(promises: Promises) -> None:
    promises.book("a", AssumedClaim("n1", "ssd", 5, 1))
    promises.book("a", AssumedClaim("n2", "ssd", 6, 1))
    assert (promises.open("n1", "ssd", 0), promises.open("n2", "ssd", 0)) == (0, 6)
    promises.drop("a")
    promises.drop("a")
    assert len(promises) == 0


class NodeOfTwoClasses(RuleBasedStateMachine):
    """A node whose agent publishes one object for each of two classes of a pool, one after the other and late; claims
    are sent by what is published and promised. Whatever comes when: no more is sent than there is, and when all is
    told, all that is free can be sent."""

    ROOM = 20

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(1000.0)
        self.promises = Promises(self.clock)
        self.version = 10
        self.sent: dict[str, tuple[int, int]] = {}  # claims that take room: size, version
        self.on_the_way: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
        self.published = {"a": (self.ROOM, 0), "b": (self.ROOM, 0)}

    def free(self, storage_class: str) -> int:
        free, counted = self.published[storage_class]
        return free - self.promises.open("n", "pool", counted)

    @rule(storage_class=st.sampled_from("ab"), size=st.integers(1, 12))
    def send(self, storage_class: str, size: int) -> None:
        if self.free(storage_class) < size:
            return
        self.version += 1
        uid = f"claim-{self.version}"
        self.promises.book(uid, AssumedClaim("n", "pool", size))
        self.sent[uid] = (size, self.version)
        self.promises.written(uid, self.version)

    @rule()
    def publish(self) -> None:
        """The agent has seen all that was sent so far."""
        free = self.ROOM - sum(size for size, _ in self.sent.values())
        for storage_class in "ab":
            self.on_the_way[storage_class].append((free, self.version))

    @rule(storage_class=st.sampled_from("ab"))
    def arrive(self, storage_class: str) -> None:
        if self.on_the_way[storage_class]:
            self.published[storage_class] = self.on_the_way[storage_class].pop(0)

    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        if self.sent:
            self.promises.bound(data.draw(st.sampled_from(sorted(self.sent))))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """A claim goes, and its room is told later."""
        if self.sent:
            uid = data.draw(st.sampled_from(sorted(self.sent)))
            del self.sent[uid]
            self.promises.drop(uid)

    @rule()
    def settle(self) -> None:
        """All is told, and some seconds pass: what is free can be sent, to the byte."""
        self.publish()
        for storage_class in "ab":
            self.published[storage_class] = self.on_the_way[storage_class].pop()
            self.on_the_way[storage_class].clear()
        self.clock.now += 5
        free = self.ROOM - sum(size for size, _ in self.sent.values())
        assert [self.free(storage_class) for storage_class in "ab"] == [free, free]

    @invariant()
    def never_more_than_there_is(self) -> None:
        assert sum(size for size, _ in self.sent.values()) <= self.ROOM


TestNodeOfTwoClasses = NodeOfTwoClasses.TestCase
TestNodeOfTwoClasses.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
