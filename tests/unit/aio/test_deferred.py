"""Deferred: each item once, in order, at the latest after a second, and after the work of a busy loop."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tonnage.aio.deferred import LONGEST, Deferred

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine


def _deferred() -> tuple[Deferred[str], list[str], asyncio.Event]:
    """One that notes what it passes on, and sets the event."""
    passed: list[str] = []
    done = asyncio.Event()

    def note(item: str) -> None:
        passed.append(item)
        done.set()

    return Deferred(note), passed, done


@asynccontextmanager
async def _running(*work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _busy(order: list[str], seconds: float) -> None:
    """Hold the loop for 20 ms at a time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)  # noqa: ASYNC251 - it is to hold the loop
        await asyncio.sleep(0)
    order.append("work")


async def test_each_item_is_passed_on_once_in_order() -> None:
    deferred, passed, done = _deferred()
    for item in ("b", "a", "b", "c"):
        deferred.add(item)
    assert not passed

    async with _running(deferred.run()), asyncio.timeout(30):
        await done.wait()

    assert passed == ["b", "a", "c"]


async def test_items_come_after_the_work_of_a_busy_loop() -> None:
    deferred, order, done = _deferred()
    deferred.add("report")

    async with _running(deferred.run(), _busy(order, LONGEST / 4)), asyncio.timeout(30):
        await done.wait()

    assert order == ["work", "report"]


async def test_a_loop_that_stays_busy_holds_nothing_for_good() -> None:
    deferred, order, done = _deferred()
    deferred.add("report")

    async with _running(deferred.run(), _busy(order, 4 * LONGEST)), asyncio.timeout(30):
        await done.wait()

    assert order == ["report"]


async def test_what_waits_when_it_is_cancelled_is_passed_on_by_the_next_run() -> None:
    deferred, passed, done = _deferred()
    deferred.add("a")
    async with _running(deferred.run()):
        await asyncio.sleep(0)
    assert not passed
    async with _running(deferred.run()), asyncio.timeout(30):
        await done.wait()
    assert passed == ["a"]
