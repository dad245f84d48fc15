"""Tombstones: what is known to be gone, and how much of it."""

from __future__ import annotations

from tonnage_box.controllers.tombstones import Tombstones


def test_the_newest_10000_are_remembered() -> None:
    absent = Tombstones()
    for number in range(10_000):
        absent.add(number)
    absent.add(0)  # again: not the oldest any more
    absent.add("new")
    assert 0 in absent
    assert "new" in absent
    assert 1 not in absent
    assert 2 in absent


def test_the_oldest_is_forgotten() -> None:
    absent = Tombstones()
    for number in range(10_001):
        absent.add(number)
    assert 0 not in absent
    assert 1 in absent
    assert 10_000 in absent
