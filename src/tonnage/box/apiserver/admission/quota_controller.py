"""ResourceQuota controller: updates status.hard and status.used after changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from tonnage.aio.clock import Clock
from tonnage.aio.tasks import Background, supervise
from tonnage.box.apiserver.admission import quota
from tonnage.box.apiserver.storage.store import StaleError, Store
from tonnage.errors import TonnageError

log = logging.getLogger(__name__)
_RETRY_SECONDS = 5.0


class QuotaController:
    """Writes the status of quotas; call start() after the store is loaded.

    Sleeps while no counted object changes. Many changes at once cause one write for each quota. A crash loses nothing:
    every start counts the ledger anew.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._dirty: set[str] = set()
        self._wake = asyncio.Event()
        self._tasks = Background("quota")
        self.ledger = quota.QuotaLedger(store, quota.COUNTED, self._changed)

    async def used(self, namespace: str) -> Mapping[str, int]:
        """Current usage of a namespace."""
        await self.ledger.settle(namespace)
        return self.ledger.used(namespace)

    def start(self) -> None:
        """Count, follow the store, and begin writing."""
        self.ledger.listen()
        self._tasks.start(supervise("quota status", self._run))

    async def stop(self) -> None:
        """Stop writing. Idempotent."""
        await self._tasks.close()
        await self.ledger.close()

    def _changed(self, namespace: str) -> None:
        self._dirty.add(namespace)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._dirty:
                await self._write(self._dirty.pop())

    async def _write(self, namespace: str) -> None:
        await self.ledger.settle(namespace)
        for key, obj, revision in quota.stale(self._store, self.ledger, namespace):
            try:
                await self._store.put(key, obj, revision)
            except StaleError:
                self._changed(namespace)
            except TonnageError as error:
                log.warning("cannot write status of quota name=%s namespace=%s error=%s", key.name, namespace, error)
                await self._clock.sleep(_RETRY_SECONDS)
                self._changed(namespace)
