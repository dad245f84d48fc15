"""Limit on what is being sent or received: memory holds each answer and body until its client has done with it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from tonnage.base.errors import ApiError

log = logging.getLogger(__name__)
SLOW_SECONDS, FAST_BYTES = 2.0, 1 << 20
"""A client is too slow when it is more than so many seconds behind one that moves so many bytes a second."""


@dataclass(eq=False)
class Transfer:
    """One answer that is being sent to its client, or body that comes from it. moved: bytes so far."""

    size: int
    transport: asyncio.Transport | None
    since: float
    moved: int = 0


class Transfers:
    """All answers, or all bodies. total: bytes of those that have begun and not ended."""

    def __init__(self, limit: int, what: str, remedy: str, *, slow: float = SLOW_SECONDS) -> None:
        """limit: bytes of all together; one alone may be larger. what, remedy: words of the rejection.

        slow: seconds behind a fast client after which a client gives way.
        """
        self.limit, self.slow = limit, slow
        self.total = 0
        self._what, self._remedy = what, remedy
        self._running: dict[Transfer, None] = {}

    def begin(self, size: int, transport: asyncio.Transport | None) -> Transfer:
        """Count one until end(). Clients that are too slow give way to it, the slowest first.

        Raises: ApiError (429).
        """
        now = asyncio.get_running_loop().time()
        slow = sorted((t for t in self._running if _lag(t, now) > self.slow), key=lambda t: -_lag(t, now))
        while self._is_full(size) and slow:
            last = slow.pop(0)
            log.debug("a client is too slow what=%s bytes=%d moved=%d", self._what, last.size, last.moved)
            if last.transport is not None:
                last.transport.abort()
            self.end(last)
        if self._is_full(size):
            why = f"{self._what} of more than {self.limit} bytes {self._remedy}"
            raise ApiError(why, code=429, reason="TooManyRequests", retry_after=1)
        transfer = Transfer(size, transport, now)
        self._running[transfer] = None
        self.total += size
        return transfer

    def end(self, transfer: Transfer) -> None:
        """Release one that is done or whose client is gone. Idempotent."""
        if transfer in self._running:
            del self._running[transfer]
            self.total -= transfer.size

    def _is_full(self, size: int) -> bool:
        return bool(self._running) and self.total + size > self.limit


def _lag(transfer: Transfer, now: float) -> float:
    """Seconds that a client is behind one that is fast enough."""
    return now - transfer.since - transfer.moved / FAST_BYTES
