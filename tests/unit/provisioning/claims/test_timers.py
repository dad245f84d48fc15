"""Waits."""

from __future__ import annotations

from tonnage.provisioning.claims.timers import Waits
from tonnage_box.testing.clock import ManualClock


def test_a_wait_begins_with_the_first_question(manual_clock: ManualClock) -> None:
    waits = Waits(manual_clock)
    assert waits.left("a", 3.0) == 3.0
    manual_clock.now += 1
    assert (waits.left("a", 3.0), waits.left("b", 3.0)) == (2.0, 3.0)
    manual_clock.now += 5
    assert waits.left("a", 3.0) == 0.0
    waits.over("a")
    assert waits.left("a", 3.0) == 3.0
    waits.over("a")
    waits.over("b")
    waits.over("never")
    assert len(waits) == 0


def test_no_wait_is_not_remembered(manual_clock: ManualClock) -> None:
    waits = Waits(manual_clock)
    assert waits.left("a", 0.0) == 0.0
    assert len(waits) == 0


def test_the_same_is_said_once(manual_clock: ManualClock) -> None:
    waits = Waits(manual_clock)
    told = [waits.news("a", text) for text in ("x", "x", "y", "x")]
    assert told == [True, False, True, True]
    waits.over("a")
    assert waits.news("a", "x")


def test_news_may_come_only_so_often(manual_clock: ManualClock) -> None:
    waits = Waits(manual_clock)
    assert not waits.has_said("a")
    assert waits.news("a", "x", pause=60)
    assert waits.has_said("a")
    assert not waits.news("a", "y", pause=60)
    manual_clock.now += 60
    assert waits.news("a", "y", pause=60)
