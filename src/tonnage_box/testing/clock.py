"""Time for tests: a clock that only the test moves, and event loops whose sleeps take no time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from tonnage_box.simulate.virtual_time import VirtualLoop

T = TypeVar("T")


@dataclass
class ManualClock:
    """A base.aio.clock.Clock that only the test moves: `now` in seconds since the epoch; a sleep moves it too."""

    now: float = 1_800_000_000.0

    def time(self) -> float:
        """Seconds since the epoch."""
        return self.now

    def monotonic(self) -> float:
        """The same."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Return at once, that much later."""
        self.now += seconds


class VirtualPolicy(asyncio.DefaultEventLoopPolicy):
    """An event loop policy with virtual time: for code that waits on nothing outside this process.

    slowness: see VirtualLoop.
    """

    def __init__(self, slowness: random.Random | None = None) -> None:
        super().__init__()
        self._slowness = slowness

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """A VirtualLoop."""
        return VirtualLoop(self._slowness)


def run_virtual(main: Awaitable[T]) -> T:
    """Run a coroutine on a fresh VirtualLoop and return its result. Blocking, but sleeps take no time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()
