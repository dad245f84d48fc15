"""Work counted, not timed: calls of functions, in Python and in C, between two turns of the event loop."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any


class CallCounter:
    """Counts the calls and returns of one thread. The counting itself is C: it makes the code a few times slower."""

    def __init__(self) -> None:
        self._take = lru_cache(maxsize=0)("".format)  # takes any arguments, and counts how often

    @property
    def count(self) -> int:
        """So far."""
        return self._take.cache_info().misses

    def start(self) -> None:
        """Count in the thread that calls this, from now on."""
        sys.setprofile(self._take)

    def stop(self) -> None:
        """Count no more in the thread that calls this."""
        sys.setprofile(None)


class Turns:
    """The longest turn of an event loop since take(): in calls, and for people in milliseconds of processor."""

    def __init__(self, loop: Any) -> None:
        self._loop, self._counter = loop, CallCounter()
        self._run: Callable[[], None] = loop._run_once
        self.calls, self.milliseconds, self._not_counted = 0, 0.0, 0.0

    def _turn(self) -> None:
        before, start = self._counter.count, time.thread_time()
        self._not_counted = 0.0
        self._run()
        self.calls = max(self.calls, self._counter.count - before)
        self.milliseconds = max(self.milliseconds, (time.thread_time() - start - self._not_counted) * 1000)

    def take(self) -> tuple[int, float]:
        """Calls and milliseconds of the longest turn; it begins anew."""
        found = self.calls, self.milliseconds
        self.calls, self.milliseconds = 0, 0.0
        return found

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count what is done within the block, which awaits nothing."""
        self._counter.stop()
        start = time.thread_time()
        try:
            yield
        finally:
            self._not_counted += time.thread_time() - start
            self._counter.start()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count within the block, which awaits."""
        self._loop._run_once = self._turn
        self._counter.start()
        try:
            yield
        finally:
            self._counter.stop()
            del self._loop._run_once
