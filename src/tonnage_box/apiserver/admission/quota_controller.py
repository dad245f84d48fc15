"""ResourceQuota controller: counts what namespaces use, and keeps status.hard and status.used of their quotas."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tonnage.base.aio.clock import Clock
from tonnage.base.aio.tasks import Background, supervise
from tonnage.base.errors import TonnageError
from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.admission.quota import Usage, status, usage
from tonnage_box.apiserver.request.negotiate import MAX_INSIDE, run_in_thread_if_large
from tonnage_box.apiserver.storage.store import StaleError, Store, StoredObject, StoreEvent

log = logging.getLogger(__name__)
_QUOTAS = "resourcequotas"
_COUNTED = tuple(kind.key for kind in kinds.ALL if kind.namespaced and kind is not kinds.EVENTS)
_SLICE = 256
"""Objects that are counted without another turn of the event loop."""
_RETRY_SECONDS = 5.0


@dataclass(eq=False)
class _Namespace:
    """Usage of one namespace, and records still to be counted: with 1, or with -1 for deleted ones."""

    used: Counter[str] = field(default_factory=Counter)
    waiting: deque[tuple[StoredObject, int]] = field(default_factory=deque)
    counting: asyncio.Task[None] | None = None

    @property
    def is_counting(self) -> bool:
        """Whether its task runs: one that was cancelled before its first step has run no line of its own."""
        return self.counting is not None and not self.counting.done()


class QuotaController:
    """Usage of every namespace that has a ResourceQuota. No cost for namespaces without one.

    It listens to the store, so it sees each write exactly when readers do. A change of small objects is counted at
    once. Large ones, and all objects of a namespace that gets a quota, are counted in slices, outside the event loop.
    The status of quotas is written by a task that sleeps while no counted object changes; many changes at once cause
    one write for each quota. A crash loses nothing: every start counts anew.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._used: dict[str, _Namespace] = {}
        self._dirty: set[str] = set()
        self._wake = asyncio.Event()
        self._tasks = Background("quota")

    def start(self) -> None:
        """Count the namespaces that have quotas, follow the store, and begin writing. Call it with a loaded store."""
        self._store.listen(self._on_event)
        for namespace in {record.key.namespace for record in self._store.records(_QUOTAS)}:
            self._begin(namespace)
        self._tasks.start(supervise("quota status", self._run))

    async def stop(self) -> None:
        """Stop counting and writing. Idempotent."""
        await self._tasks.close()

    async def used(self, namespace: str) -> Usage:
        """Usage of a namespace, once all that is visible in the store is counted, or stop() has ended the counting."""
        if namespace not in self._used:
            self._begin(namespace)
        while (found := self._used.get(namespace)) is not None and found.is_counting:
            assert found.counting is not None
            await asyncio.wait((found.counting,))
        return found.used if found is not None else {}

    def _begin(self, namespace: str) -> None:
        self._used[namespace] = _Namespace()
        self._count(namespace, [(r, 1) for c in _COUNTED for r in self._store.records(c, namespace)])
        self._changed(namespace)

    def _on_event(self, event: StoreEvent) -> None:
        collection, namespace, _ = event.record.key
        if namespace not in self._used:
            if collection == _QUOTAS and event.type != "DELETED":
                self._begin(namespace)
            return
        if collection == _QUOTAS and event.type == "DELETED" and not self._store.records(_QUOTAS, namespace):
            del self._used[namespace]
            return
        if collection in _COUNTED:
            changes = [(event.before, -1)] if event.before else []
            self._count(namespace, changes + ([(event.record, 1)] if event.type != "DELETED" else []))
            if collection == _QUOTAS:
                self._changed(namespace)

    def _count(self, namespace: str, changes: list[tuple[StoredObject, int]]) -> None:
        found = self._used[namespace]
        if not found.is_counting and not found.waiting and _weight(changes) <= MAX_INSIDE:
            self._add(namespace, _difference(changes))
            return
        found.waiting.extend(changes)
        if not found.is_counting:
            found.counting = self._tasks.start(self._count_waiting(namespace, found))

    async def _count_waiting(self, namespace: str, found: _Namespace) -> None:
        while found.waiting and self._used.get(namespace) is found:
            some = [found.waiting.popleft() for _ in range(min(_SLICE, len(found.waiting)))]
            try:
                difference = await run_in_thread_if_large(_weight(some), _difference, some)
            except Exception:  # the others are still to be counted
                log.exception("objects not counted namespace=%s", namespace)
                continue
            if self._used.get(namespace) is found:  # else its last quota has been deleted meanwhile
                self._add(namespace, difference)

    def _add(self, namespace: str, difference: Usage) -> None:
        # Quotas change their own status all the time; only what counts is worth telling.
        if any(difference.values()):
            self._used[namespace].used.update(difference)
            self._changed(namespace)

    def _changed(self, namespace: str) -> None:
        """A namespace's use or quotas may have changed."""
        self._dirty.add(namespace)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._dirty:
                await self._write(self._dirty.pop())

    async def _write(self, namespace: str) -> None:
        used = await self.used(namespace)
        for record in self._store.records(_QUOTAS, namespace):
            quota = record.decode()
            right = status(quota, used)
            if quota.get("status") == right:
                continue
            try:
                await self._store.put(record.key, quota | {"status": right}, record.revision)
            except StaleError:
                self._changed(namespace)
            except TonnageError as error:
                log.warning(
                    "cannot write status of quota name=%s namespace=%s error=%s", record.key.name, namespace, error
                )
                await self._clock.sleep(_RETRY_SECONDS)
                self._changed(namespace)


def _weight(changes: list[tuple[StoredObject, int]]) -> int:
    return sum(len(record.data) for record, _ in changes)


def _difference(changes: Iterable[tuple[StoredObject, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for record, sign in changes:
        for resource, amount in usage(record.key.collection, record.decode()).items():
            total[resource] += sign * amount
    return total
