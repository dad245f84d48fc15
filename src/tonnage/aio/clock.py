"""Clocks. Everything that waits or records a time takes a Clock, so tests and simulation control time."""

from __future__ import annotations

import asyncio
import selectors
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A clock: time and sleep."""

    def time(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds of a monotonic clock."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class RealClock:
    """The machine's clock."""

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for real."""
        await asyncio.sleep(seconds)


class LoopClock:
    """A clock that follows the running loop; with a VirtualLoop it is a virtual one.

    `epoch` is time() at the loop's time 0.
    """

    def __init__(self, epoch: float = 1_800_000_000.0) -> None:
        self.epoch = epoch

    def time(self) -> float:
        """Seconds since the epoch, by the loop."""
        return self.epoch + self.monotonic()

    def monotonic(self) -> float:
        """The loop's own time."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Wait by the loop's time."""
        await asyncio.sleep(seconds)


class _InstantSelector(selectors.DefaultSelector):
    """A selector that polls sockets without waiting; an idle wait advances the loop's time instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:  # nothing is scheduled: only a socket or a thread can wake the loop
            return super().select(None)
        self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose sleeps take no time. Not for code that waits for threads with a timeout."""

    def __init__(self) -> None:
        self._instant = _InstantSelector()
        super().__init__(self._instant)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._instant.now

    def advance(self, seconds: float) -> None:
        """Advance the time now, as if the running code had taken so long."""
        self._instant.now += seconds


def rfc3339(seconds: float, *, micro: bool = False) -> str:
    """Format seconds since the epoch as Kubernetes does: Time (whole seconds) or, with micro, MicroTime."""
    stamp = datetime.fromtimestamp(seconds, UTC)
    return stamp.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def parse_rfc3339(text: str) -> float:
    """Parse an RFC 3339 time into seconds since the epoch. Raises ValueError."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except OverflowError as error:  # year 1 or 9999, in another time zone
        raise ValueError(str(error)) from None


def time_of(text: str | None) -> float | None:
    """Read an RFC 3339 time as seconds since the epoch, None if it is missing or invalid."""
    try:
        return parse_rfc3339(text or "")
    except ValueError:
        return None
