"""Controller: informers enqueue keys, and reconcile(key) runs for each.

reconcile reads the state from caches and may be repeated at any time. It returns None or the seconds after which to
reconcile again. After an exception, the key is retried with back-off. A reconcile that keeps the event loop for longer
than a second is named in the log and counted, and its key waits before its next one, so that others get their turn.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.deferred import Deferred
from tonnage.base.errors import ApiConflictError, BusyError, TonnageError
from tonnage.base.observe import metrics
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.client.busy import BusyWatch, in_steps
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.informer import Informer
from tonnage.kubernetes.client.queue import WorkQueue

log = logging.getLogger(__name__)
_busy = BusyWatch()
_REST, _LONGEST_REST = 9.0, 10.0
"""Seconds for which a key rests, for each second that it held the event loop, and at most.

Others have most of the time. A machine that stood still looks the same, and must not delay anything for long."""
K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=KubeObject)
Keys = Callable[[T | None, T | None], Iterable[K]]
"""Keys to reconcile after a change from old to new; None: there was, or is, no object. It only computes."""


def on_add(keys: Callable[[T], Iterable[K]]) -> Keys[T, K]:
    """Ignore all changes but objects that appear."""
    return lambda old, new: keys(new) if old is None and new is not None else ()


def on_difference(shape: Callable[[T], object], keys: Callable[[T], Iterable[K]]) -> Keys[T, K]:
    """Ignore changes after which shape(object) is the same. keys: of the object, or of the one that is gone."""

    def changed(old: T | None, new: T | None) -> Iterable[K]:
        if old is not None and new is not None and shape(old) == shape(new):
            return ()
        obj = old if new is None else new
        return keys(obj) if obj is not None else ()

    return changed


async def settle(obj: T | None, step: Callable[[T], Awaitable[T | None]], *, most: int = 8) -> None:
    """Run steps, each on the object that the last one has left, until one leaves none.

    most: after so many, writes seem to be undone by somebody, and back-off is due. Raises: BusyError.
    """
    for _ in range(most):
        if obj is None:
            return
        obj = await step(obj)
    if obj is not None:
        raise BusyError(f"{obj.key}: not settled after {most} writes: another program seems to undo them")


class Controller(Generic[K]):
    """Runs reconcile for keys, at most `workers` at once and never concurrently for one key."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        workers: int = 8,
        backoff: Backoff | None = None,
    ) -> None:
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue(backoff or Backoff(initial=0.005, maximum=300.0))
        self._reconcile = reconcile
        self._free = workers
        self._informers: list[Informer[Any]] = []
        self._wake = asyncio.Event()
        self._deferred: Deferred[K] = Deferred(self.enqueue)
        self._timer: asyncio.TimerHandle | None = None
        self._ok = metrics.RECONCILES.labels(name, "ok")
        self._failed = metrics.RECONCILES.labels(name, "error")
        metrics.QUEUES.count(self.queue, name, lambda queue: queue.counts)

    def watch(
        self, informer: Informer[T], keys: Keys[T, K] = lambda old, new: (), *, deferred: bool = False
    ) -> Cache[T]:
        """Enqueue keys(old, new) for each change of the informer's cache, by default none; return the cache.

        deferred: for keys that nothing waits for: while the event loop is busy, up to a second later.
        """
        self._informers.append(informer)
        informer.on_restored(self.retry_now)

        take = self._deferred.add if deferred else self.enqueue

        def changed(old: T | None, new: T | None) -> None:
            for key in keys(old, new):
                take(key)

        informer.cache.on_change(changed)
        return informer.cache

    def enqueue(self, key: K, *, after: float = 0.0) -> None:
        """Enqueue key, now or after some seconds."""
        if after > 0:
            self.queue.add_at(key, asyncio.get_running_loop().time() + after)
        else:
            self.queue.add(key)
        self._wake.set()

    def retry_now(self) -> None:
        """Retry failed keys now, when the server is back: their back-off may be long."""
        self.queue.retry_now(asyncio.get_running_loop().time())
        self._wake.set()

    async def run(self) -> None:
        """Run until cancelled, starting when all watched informers have listed once. May be called again afterwards."""
        for informer in self._informers:
            await informer.wait_synced()
        loop = asyncio.get_running_loop()
        _busy.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._deferred.run())
            while True:
                self.queue.advance(loop.time())
                while self._free and (key := self.queue.get()) is not None:
                    self._free -= 1
                    tasks.create_task(self._work(key))
                self._set_timer(loop)
                await self._wake.wait()
                self._wake.clear()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self.queue.next_due()
        self._timer = None if due is None else loop.call_at(due, self._wake.set)

    async def _work(self, key: K) -> None:
        loop, busy = asyncio.get_running_loop(), list[float]()
        try:
            after = await in_steps(_busy, self.name, key, self._reconcile(key), busy.append)
            self.queue.forget(key)
            if after is not None:
                self.queue.add_at(key, loop.time() + after)
            self._ok.inc()
        except asyncio.CancelledError:
            self.queue.add(key)  # run() may be called again: it begins with what was not finished
            busy.clear()
            raise
        except Exception as failure:
            delay = self.queue.add_limited(key, loop.time())
            self._failed.inc()
            self._report(key, failure, delay)
        finally:
            self._free += 1
            self._wake.set()
            if busy:
                loop.call_later(min(sum(busy) * _REST, _LONGEST_REST), self._done, key)
            else:
                self._done(key)

    def _done(self, key: K) -> None:
        """The key may be reconciled again; what was enqueued meanwhile is then."""
        self.queue.done(key)
        self._wake.set()

    def _report(self, key: K, failure: Exception, delay: float) -> None:
        if isinstance(
            failure, ApiConflictError
        ):  # another writer was first, which is usual: the next reconcile sees it
            log.debug("reconcile again controller=%s key=%s reason=%s", self.name, key, failure)
        elif isinstance(failure, TonnageError):
            log.info("reconcile failed controller=%s key=%s retry=%.2fs error=%s", self.name, key, delay, failure)
        else:
            log.error("reconcile failed controller=%s key=%s retry=%.2fs", self.name, key, delay, exc_info=failure)


class Reconciler(ABC, Generic[K]):
    """Base of a controller's class: reconcile() runs for each key that its watches enqueue."""

    def __init__(self, name: str, *, workers: int = 8, backoff: Backoff | None = None) -> None:
        self._controller: Controller[K] = Controller(name, self.reconcile, workers=workers, backoff=backoff)
        self.watch, self.enqueue = self._controller.watch, self._controller.enqueue

    @abstractmethod
    async def reconcile(self, key: K) -> float | None:
        """Bring the state of one key to what it should be. Idempotent.

        Returns seconds after which to reconcile again, None for not before the next change.
        """

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()
