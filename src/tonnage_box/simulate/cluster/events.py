"""Event queue on virtual time. Events at one moment run in the order in which they were planned."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from functools import partial

Action = Callable[[], None]


class Events:
    """Virtual clock (time and monotonic, as that of base.aio) that advances to the next event without waiting."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Action]] = []
        self._number = 0

    def time(self) -> float:
        """Seconds since the trace's midnight."""
        return self.now

    monotonic = time

    def at(self, when: float, action: Action) -> None:
        """Plan an event; one in the past runs next."""
        self._number += 1
        heapq.heappush(self._planned, (max(when, self.now), self._number, action))

    def after(self, seconds: float, action: Action) -> None:
        """Plan something for later."""
        self.at(self.now + seconds, action)

    def start(self, steps: Iterator[float]) -> None:
        """Run steps, each of which yields the seconds until the next one."""
        seconds = next(steps, None)
        if seconds is not None:
            self.after(seconds, partial(self.start, steps))

    def run(self, until: float) -> None:
        """Do all that is planned up to a moment, and what that plans."""
        planned = self._planned
        while planned and planned[0][0] <= until:
            self.now, _, action = heapq.heappop(planned)
            action()
        self.now = max(self.now, until)
