"""Clocks for tests."""

from __future__ import annotations

import asyncio

from tonnage.testing.clock import ManualClock, run_virtual


async def test_a_manual_clock_moves_with_sleeps_and_with_the_test() -> None:
    clock = ManualClock(100.0)
    await clock.sleep(5)
    clock.now += 1
    assert (clock.time(), clock.monotonic()) == (106.0, 106.0)


def test_a_day_of_sleep_takes_no_time() -> None:
    async def day() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time() - began

    assert run_virtual(day()) >= 86_400  # else this test does not end
