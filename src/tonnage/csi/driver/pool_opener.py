"""Opens pools. A pool that cannot be opened does not stop the others, and is retried on later calls.

Nothing runs at rest: the next call notices a disk that comes back. A disk that never answers blocks its own pool only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import HostError, TonnageError, UnavailableError
from tonnage.storage.pools.core.pool import Pool

log = logging.getLogger(__name__)

PAUSE = 5.0
"""Minimum seconds between two attempts to open a pool."""


async def _nothing(_pool: Pool) -> None:
    """Default for drivers that do nothing when a pool opens."""


class Openings:
    """Opens pools, now or later.

    opened: called for each pool that was opened late, before calls reach it; failures are logged. ready: called in a
    thread before each attempt, with the pool's name; raises where it must not be opened now.
    """

    pause = PAUSE
    patience = 2.0
    """Maximum seconds that a call waits for an attempt: its own pool may be another one."""
    start_patience = 20.0
    """Maximum seconds that the start waits for a pool when another one is open: a large pool takes long."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        *,
        opened: Callable[[Pool], Awaitable[None]] = _nothing,
        ready: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.ready = ready
        self._pools = pools
        self._opened = opened
        self._clock = clock or RealClock()
        self.failures: dict[str, TonnageError] = {}
        """Why pools are not open, by name."""
        self.changed: Callable[[], None] = lambda: None
        """Called when an attempt has ended, and when a pool was removed."""
        self._attempts: dict[str, asyncio.Task[None]] = {}
        self._tried: dict[str, float] = {}
        self._background = Background("pools that are opened")

    def why(self, pool: str) -> str:
        """Why a pool is not open, "" for one that is."""
        return str(self.failures.get(pool, ""))

    async def open(self) -> None:
        """Open all pools concurrently. Raises the first error if none can be opened."""
        for name in self._pools:
            self._start(name, late=False)
        waiting = set(self._attempts.values())
        while waiting:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if len(self.failures) < len(self._pools):  # one is open
                await self._wait(self.start_patience)
                return
        raise next(iter(self.failures.values()))

    async def retry_open(self) -> None:
        """Retry those that are not open, if the last attempt is long enough ago, and wait briefly for the result."""
        if not self.failures:
            return
        now = self._clock.monotonic()
        due = [name for name in self.failures if name not in self._attempts and now - self._tried[name] >= self.pause]
        for name in due:
            self._start(name, late=True)
        if due:
            await self._wait(self.patience)

    async def add(self, name: str) -> None:
        """Open a pool that was added later; on failure it is retried as the others."""
        self._start(name, late=True)
        if (task := self._attempts.get(name)) is not None:
            await asyncio.wait([task], timeout=self.start_patience)

    def forget(self, name: str) -> None:
        """Stop retrying a removed pool."""
        self.failures.pop(name, None)
        if (task := self._attempts.pop(name, None)) is not None:
            task.cancel()
        self.changed()

    def _start(self, name: str, *, late: bool) -> None:
        self.failures.setdefault(
            name, UnavailableError(f"pool {name!r} is being opened: its disk has not answered yet")
        )
        self._tried[name] = self._clock.monotonic()
        task = self._background.start(self._open(name, late=late), f"pool {name}")
        self._attempts[name] = task
        task.add_done_callback(lambda _: self._ended(name))

    def _ended(self, name: str) -> None:
        self._attempts.pop(name, None)
        self.changed()

    async def _wait(self, seconds: float) -> None:
        if self._attempts:
            await asyncio.wait(set(self._attempts.values()), timeout=seconds)

    async def _open(self, name: str, *, late: bool) -> None:
        pool = self._pools[name]
        try:
            if self.ready is not None:
                await asyncio.to_thread(self.ready, name)
            await pool.open()
            if late:
                await self._opened(pool)
        except Exception as reason:
            failure = reason if isinstance(reason, TonnageError) else HostError(f"{type(reason).__name__}: {reason}")
            if str(self.failures.get(name)) != str(failure):
                unexpected = None if failure is reason else reason
                log.error("pool not open pool=%s kind=%s error=%s", name, pool.kind, failure, exc_info=unexpected)
            self.failures[name] = failure
            return
        del self.failures[name]
        log.info("pool open pool=%s kind=%s volumes=%d", name, pool.kind, len(await pool.list()))

    async def close(self) -> None:
        """Stop retrying. Does not wait for an attempt that hangs. Idempotent."""
        await self._background.close()
