"""Promises: how long they count, and against what."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.controllers.promises import Promise, Promises


@pytest.fixture
def promises(manual_clock: Any) -> Promises:
    return Promises(manual_clock)


def test_a_promise_counts_from_before_its_write_until_it_is_counted(promises: Promises) -> None:
    promises.book("a", Promise("n1", "ssd", 5))
    assert promises.open("n1", "ssd", 10**9) == 5
    promises.written("a", 42)
    assert promises.open("n1", "ssd", 41) == 5
    assert promises.open("n1", "ssd", None) == 5
    assert promises.open("n1", "ssd", 42) == 0
    assert promises.open("n1", "ssd", 41) == 5  # another class's object, written a moment later


def test_rooms_and_nodes_are_apart_but_for_the_unknown(promises: Promises) -> None:
    promises.book("a", Promise("n1", "ssd", 5, 1))
    promises.book("b", Promise("n1", "", 7, 1))
    assert promises.open("n1", "ssd", 0) == 12
    assert promises.open("n1", "disk", 0) == 7
    assert promises.open("n1", "", 0) == 12
    assert promises.open("n2", "ssd", 0) == 0


def test_old_news_give_nothing_back(promises: Promises) -> None:
    promises.book("a", Promise("n1", "ssd", 5))
    promises.returned("a", 100)  # the write is under way
    promises.written("a", 42)
    promises.returned("a", 41)
    assert promises.open("n1", "ssd", 0) == 5
    promises.returned("a", 43)
    assert len(promises) == 0


@pytest.mark.parametrize(("counted", "later", "still"), [(None, 0.0, 0), (1, 1.9, 5), (1, 2.1, 0)])
def test_bound(promises: Promises, manual_clock: Any, counted: int | None, later: float, still: int) -> None:
    promises.book("a", Promise("n1", "ssd", 5, 42))
    promises.bound("a")
    promises.bound("unknown")
    manual_clock.now += later
    assert promises.open("n1", "ssd", counted) == still


def test_booking_again_replaces(promises: Promises) -> None:
    promises.book("a", Promise("n1", "ssd", 5, 1))
    promises.book("a", Promise("n2", "ssd", 6, 1))
    assert (promises.open("n1", "ssd", 0), promises.open("n2", "ssd", 0)) == (0, 6)
    promises.drop("a")
    promises.drop("a")
    assert len(promises) == 0
