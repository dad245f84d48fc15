"""Locks of volumes with a call under way: a second call is rejected, not queued (CSI: ABORTED).

One InFlight is shared by all drivers that serve the same pools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tonnage.base.errors import BusyError


class InFlight:
    """The locked keys."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}
        self._released = asyncio.Event()

    @contextmanager
    def hold(self, key: str, doing: str) -> Iterator[None]:
        """Lock key while the body runs. Raises: BusyError when it is locked."""
        if (running := self._keys.get(key)) is not None:
            raise BusyError(f"operation pending for volume {key}: {running} is under way, repeat {doing} later")
        self._keys[key] = doing
        try:
            yield
        finally:
            del self._keys[key]
            self._released.set()

    async def drained(self) -> None:
        """Wait until the present calls have ended; later ones are not awaited."""
        waiting = set(self._keys)
        while waiting := waiting & set(self._keys):
            self._released.clear()
            await self._released.wait()
