"""Virtual time, back-off, locks and background tasks."""

from __future__ import annotations

import asyncio
import time

import pytest

from tonnage.aio.backoff import Backoff
from tonnage.aio.clock import LoopClock, parse_rfc3339, rfc3339
from tonnage.aio.tasks import Background, KeyedLocks
from tonnage.testing.clock import run_virtual


def test_virtual_time_passes_at_once_and_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        clock, seen = LoopClock(), []

        async def sleeper(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            seen.append((name, clock.monotonic()))

        await asyncio.gather(sleeper("day", 86400), sleeper("hour", 3600))
        return seen

    began = time.monotonic()

    assert run_virtual(main()) == [("hour", 3600.0), ("day", 86400.0)]
    assert time.monotonic() - began < 60


def test_times_print_as_kubernetes_prints_them() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00Z"
    assert rfc3339(1.5, micro=True) == "1970-01-01T00:00:01.500000Z"
    assert parse_rfc3339("1970-01-01T00:01:00Z") == 60.0


def test_backoff() -> None:
    backoff = Backoff(initial=1, maximum=3)

    assert [backoff.next("a") for _ in range(3)] == [1, 2, 3]
    assert backoff.next("b") == 1
    assert backoff.failures("a") == 3
    backoff.forget("a")
    assert backoff.failures("a") == 0
    assert all(Backoff(maximum=9).next("x") <= 9 for _ in range(2000))


async def test_locks_by_key_exclude_and_are_dropped() -> None:
    locks, order = KeyedLocks(), []

    async def work(name: str) -> None:
        async with locks.hold("k"):
            order.append(f"{name} in")
            await asyncio.sleep(0)
            order.append(f"{name} out")

    await asyncio.gather(work("a"), work("b"))

    assert order == ["a in", "a out", "b in", "b out"]
    assert not locks.held("k")


async def test_background_logs_failures_and_cancels_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Background("test")

    async def fail() -> None:
        raise ValueError("boom")

    tasks.start(fail(), "failing")
    endless = tasks.start(asyncio.sleep(3600))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await tasks.close()

    assert "failing" in caplog.text
    assert endless.cancelled()
