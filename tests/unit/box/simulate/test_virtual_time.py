"""Virtual time passes at once, and waits for threads."""

from __future__ import annotations

import asyncio
import threading
import time

from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing.clock import run_virtual


def test_virtual_time_passes_at_once_and_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        clock, seen = LoopClock(), []

        async def sleeper(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            seen.append((name, clock.monotonic()))

        await asyncio.gather(sleeper("day", 86400), sleeper("hour", 3600))
        return seen

    assert run_virtual(main()) == [("hour", 3600.0), ("day", 86400.0)]


def test_the_time_stands_still_while_a_thread_works() -> None:
    async def main() -> float:
        async with asyncio.timeout(3600):
            await asyncio.to_thread(time.sleep, 0.2)
        return LoopClock().monotonic()

    assert run_virtual(main()) == 0.0


def test_a_thread_that_waits_for_the_time_does_not_hold_it_up() -> None:
    async def main() -> float:
        passed = threading.Event()
        asyncio.get_running_loop().call_later(3600, passed.set)
        assert await asyncio.to_thread(passed.wait, 300)
        return LoopClock().monotonic()

    assert run_virtual(main()) == 3600.0
