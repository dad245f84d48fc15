"""Time for tests: one that stands still until it is moved, and one in which sleeps take none."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from tonnage.aio.clock import VirtualLoop


@dataclass
class ManualClock:
    """Time that stands still until it is moved; who sleeps moves it."""

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
    """Loops whose sleeps take no time: for what is sockets within one process at most."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """One of them."""
        return VirtualLoop()


def run_virtual(main: Any) -> Any:
    """Run a coroutine on a fresh VirtualLoop and return its result."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()
