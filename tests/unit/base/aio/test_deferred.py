"""Deferred: each item once, in order, at the latest after a second, and after the work of a busy loop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from tests.unit.fixture_types import Running

from tonnage.base.aio.deferred import LONGEST, Deferred


def _deferred() -> tuple[Deferred[str], list[str], asyncio.Event]:
    """One that notes what it passes on, and sets the event."""
    passed: list[str] = []
    done = asyncio.Event()

    def note(item: str) -> None:
        passed.append(item)
        done.set()

    return Deferred(note), passed, done


@dataclass
class _Busy:
    """Holds the loop for 20 ms at a time, then notes that."""

    order: list[str]
    seconds: float

    async def run(self) -> None:
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            time.sleep(0.02)  # noqa: ASYNC251 - it is to hold the loop
            await asyncio.sleep(0)
        self.order.append("work")


async def test_each_item_is_passed_on_once_in_order(running: Running) -> None:
    deferred, passed, done = _deferred()
    for item in ("b", "a", "b", "c"):
        deferred.add(item)
    assert not passed

    async with running(deferred), asyncio.timeout(30):
        await done.wait()

    assert passed == ["b", "a", "c"]


async def test_items_come_after_the_work_of_a_busy_loop(running: Running) -> None:
    deferred, order, done = _deferred()
    deferred.add("report")

    async with running(deferred, _Busy(order, LONGEST / 4)), asyncio.timeout(30):
        await done.wait()

    assert order == ["work", "report"]


async def test_a_loop_that_stays_busy_holds_nothing_for_good(running: Running) -> None:
    deferred, order, done = _deferred()
    deferred.add("report")

    async with running(deferred, _Busy(order, 4 * LONGEST)), asyncio.timeout(30):
        await done.wait()

    assert order == ["report"]


async def test_what_waits_when_it_is_cancelled_is_passed_on_by_the_next_run(running: Running) -> None:
    deferred, passed, done = _deferred()
    deferred.add("a")
    async with running(deferred):
        await asyncio.sleep(0)
    assert not passed
    async with running(deferred), asyncio.timeout(30):
        await done.wait()
    assert passed == ["a"]
