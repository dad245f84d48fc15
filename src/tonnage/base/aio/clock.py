"""Clocks. Everything that waits or records a time takes a Clock, so tests and simulation control time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
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


def hold_time() -> Callable[[], object]:
    """Let virtual time wait for a thread's work until the returned function is called; no effect on real time."""
    hold: Callable[[], Callable[[], object]] | None = getattr(asyncio.get_running_loop(), "hold", None)
    return hold() if hold is not None else lambda: None


def rfc3339(seconds: float, *, micro: bool = False) -> str:
    """Format seconds since the epoch as Kubernetes does: Time (whole seconds) or, with micro, MicroTime."""
    stamp = datetime.fromtimestamp(seconds, UTC)
    return stamp.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def parse_rfc3339(text: str) -> float:
    """Parse an RFC 3339 time into seconds since the epoch. Raises: ValueError."""
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
