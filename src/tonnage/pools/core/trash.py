"""Trash: deleted volumes that stay for a while, count as free, and are evicted as soon as their bytes are needed.

The mark is in the volume's own record, so a kill leaves either a volume or trash. The oldest trash of the pool is
evicted first, then that of pools on the same disk. When its time is over, as its class says, a timer deletes it.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from tonnage.aio.clock import Clock
from tonnage.aio.tasks import Background
from tonnage.errors import TonnageError
from tonnage.observe import metrics

if TYPE_CHECKING:
    from tonnage.pools.base.record import VolumeRecord
    from tonnage.pools.core.pool import Pool

log = logging.getLogger(__name__)
EPHEMERAL = "tonnage.dev/ephemeral"
"""Key of a volume's owner record that a restored volume loses: no pod ends it."""
_LONGEST, _RETRY = 86400.0, 60.0  # seconds
_OPEN: weakref.WeakKeyDictionary[Pool, asyncio.AbstractEventLoop] = weakref.WeakKeyDictionary()


async def evict_oldest(pool: Pool, part: str, *, spare: bool = False) -> bool:
    """Delete the oldest trash of a pool, else of one that shares its disk; whether there was any.

    part: of the pool, whose bytes are needed (Backend.part): trash that has others goes only when no more of these is
    left. spare: what is being restored stays. One that cannot be deleted is passed over. Raises: as Pool.delete, when
    none can be deleted.
    """
    here, disk = asyncio.get_running_loop() if _OPEN else None, pool.backend.disk
    others = [p for p, loop in _OPEN.items() if loop is here and p is not pool and p.backend.disk is disk is not None]
    found = [(False, r.trashed, r.name, p) for p in others for r in _evictable(p, spare)]
    own = [(pool.backend.part_of(r) != part, r.trashed, r.name, pool) for r in _evictable(pool, spare)]
    failed: TonnageError | None = None
    for *_, name, victim in [*sorted(own, key=lambda one: one[:3]), *sorted(found, key=lambda one: one[:3])]:
        try:
            await victim.evict(name)
        except TonnageError as failure:
            log.warning("trash not evicted pool=%s volume=%s error=%s", victim.name, name, failure)
            failed = failure
        else:
            metrics.TRASH_EVICTED.labels(victim.name, victim.kind).inc()
            log.info("deleted what=trash name=%s pool=%s proof=pool %s needs its bytes", name, victim.name, pool.name)
            return True
    if failed is not None:
        raise failed
    return False


def _evictable(pool: Pool, spare: bool) -> list[VolumeRecord]:
    return [record for record in pool.backend.records.trash() if not (spare and pool.restoring[record.name])]


class Expiry:
    """Evicts the trash of one pool when its time is over."""

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool, self._clock = weakref.proxy(pool), clock
        self._owner = weakref.ref(pool)
        self._background = Background(f"trash {pool.name}")
        self._task: asyncio.Task[None] | None = None
        self._more = asyncio.Event()

    def start(self) -> None:
        """Wait for the next end, where there is trash. Idempotent; called for each new trash."""
        pool = self._owner()
        if pool is not None and pool.backend.records.trash():
            _OPEN[pool] = asyncio.get_running_loop()
            self._more.set()
            if self._task is None or self._task.done():
                self._task = self._background.start(self._run())

    async def close(self) -> None:
        """Stop waiting; the trash stays. Idempotent."""
        if (pool := self._owner()) is not None:
            _OPEN.pop(pool, None)
        await self._background.close()

    async def _run(self) -> None:
        while records := self._pool.backend.records.trash():
            now = self._clock.time()
            left = {record.name: record.trashed + record.undelete - now for record in records}
            failed = False
            for name in [name for name, seconds in left.items() if seconds <= 0]:
                try:
                    await self._pool.evict(name)
                except TonnageError as failure:
                    failed = True
                    log.warning("trash not deleted volume=%s retry=%.0fs error=%s", name, _RETRY, failure)
                else:
                    log.info("deleted what=trash name=%s pool=%s proof=its time is over", name, self._pool.name)
            waiting = [seconds for seconds in left.values() if seconds > 0]
            with suppress(TimeoutError):  # the time may also be that of new trash
                async with asyncio.timeout(min([*waiting, _RETRY if failed else _LONGEST])):
                    await self._more.wait()
            self._more.clear()
