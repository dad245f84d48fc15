"""Exponential back-off."""

from __future__ import annotations

from tonnage.base.aio.backoff import Backoff, Rewrites


def test_backoff() -> None:
    backoff = Backoff(initial=1, maximum=3)

    assert [backoff.next("a") for _ in range(3)] == [1, 2, 3]
    assert backoff.next("b") == 1
    backoff.forget("a")
    assert backoff.next("a") == 1, "as the first time"
    assert all(Backoff(maximum=9).next("x") <= 9 for _ in range(2000))


def test_a_write_that_is_undone_is_repeated_later_and_later() -> None:
    rewrites, now, pauses = Rewrites(initial=1, maximum=8), 100.0, []
    for _ in range(6):
        assert rewrites.left("a", now) == 0
        rewrites.made("a", now)
        pauses.append(rewrites.left("a", now))
        assert rewrites.left("b", now) == 0, "another one is not concerned"
        now += pauses[-1]
    assert pauses == [1, 2, 4, 8, 8, 8]


def test_a_write_that_was_not_undone_starts_anew_and_is_forgotten() -> None:
    rewrites = Rewrites(initial=1)
    for now in (0.0, 1.0, 20.0):
        rewrites.made("a", now)
    assert rewrites.left("a", 20.0) == 1
    rewrites.made("b", 30.0)
    assert len(rewrites) == 1
