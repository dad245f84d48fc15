"""Exponential back-off."""

from __future__ import annotations

from tonnage.aio.backoff import Backoff


def test_backoff() -> None:
    backoff = Backoff(initial=1, maximum=3)

    assert [backoff.next("a") for _ in range(3)] == [1, 2, 3]
    assert backoff.next("b") == 1
    backoff.forget("a")
    assert backoff.next("a") == 1, "as the first time"
    assert all(Backoff(maximum=9).next("x") <= 9 for _ in range(2000))
