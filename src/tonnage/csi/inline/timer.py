"""When volumes are due, and how many are filled at once. Used by inline drivers.

One heap for all volumes of a driver. The clock is the wall clock, since content expires by it; a sleep is short enough
to notice that the clock was set.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tonnage.base.aio.clock import Clock

AT_ONCE, A_SECOND = 8, 20
LONGEST_SLEEP = 30.0


class DueTimes:
    """Keys and when each is due. No I/O."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}

    def set(self, key: str, at: float | None) -> None:
        """Set when a key is due; None: never. Idempotent."""
        if at is None:
            self._due.pop(key, None)
        elif self._due.get(key) != at:
            self._due[key] = at
            heapq.heappush(self._heap, (at, key))

    def next(self) -> float | None:
        """Return when the first key is due."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> list[str]:
        """Return the keys that are due, and forget their times."""
        found = []
        while (first := self.next()) is not None and first <= now:
            key = heapq.heappop(self._heap)[1]
            del self._due[key]
            found.append(key)
        return found


class FillRate:
    """At most 20 fills in a second, of all drivers of a node together: a signer or registry is asked by all of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._starts: deque[float] = deque(maxlen=A_SECOND)

    async def wait(self) -> None:
        """Wait for one's turn."""
        start = now = self._clock.monotonic()
        if len(self._starts) == A_SECOND:
            start = max(now, self._starts[0] + 1.0)
        self._starts.append(start)
        if start > now:
            await self._clock.sleep(start - now)


class FillLimits:
    """The rate of the node, and at most 8 fills of one driver at a time: one that hangs delays no other driver.

    rate: None for a source that sends no requests.
    """

    def __init__(self, rate: FillRate | None) -> None:
        self._rate, self._running = rate, asyncio.Semaphore(AT_ONCE)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Wait for one's turn, and hold it."""
        async with self._running:
            if self._rate is not None:
                await self._rate.wait()
            yield
