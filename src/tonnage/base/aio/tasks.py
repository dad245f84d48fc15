"""Supervised background tasks, locks by key, and reads that several callers share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Generic, TypeVar

from tonnage.base.aio.backoff import Backoff

log = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class KeyedLocks:
    """One lock for each key, created when needed and dropped when unused."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Hold key's lock."""
        lock, users = self._locks.get(key, (None, 0))
        lock = lock or asyncio.Lock()
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)

    @asynccontextmanager
    async def hold_all(self, *keys: str) -> AsyncIterator[None]:
        """Hold the locks of one or more keys, always taken in the same order, which prevents deadlocks."""
        async with AsyncExitStack() as held:
            for key in sorted(set(keys)):
                await held.enter_async_context(self.hold(key))
            yield

    def held(self, key: Hashable) -> bool:
        """Whether key's lock is held or awaited."""
        return key in self._locks


class SharedRead(Generic[K, T]):
    """Reads that callers share, one at a time for each key: all who ask while one runs get the next.

    A write of what is true now may be shared as well.

    After a read, the next of its key begins no sooner than it took: reads of many objects leave time for other work.
    """

    def __init__(self, read: Callable[[K], Awaitable[T]]) -> None:
        self._read = read
        self._locks = KeyedLocks()
        self._next: dict[K, asyncio.Task[T]] = {}
        self._rests: dict[K, asyncio.Event] = {}

    async def get(self, key: K) -> T:
        """Return what a read that begins from now on finds. Raises: what the read raises."""
        if key not in self._next:
            self._next[key] = asyncio.get_running_loop().create_task(self._run(key))
            self._next[key].add_done_callback(_note_failure)  # all who asked may be cancelled
        return await asyncio.shield(self._next[key])

    async def _run(self, key: K) -> T:
        async with self._locks.hold(key):
            if key in self._rests:
                await self._rests[key].wait()
            del self._next[key]  # who asks from here on needs a later read
            loop = asyncio.get_running_loop()
            began = loop.time()
            try:
                return await self._read(key)
            finally:
                self._rests[key] = asyncio.Event()
                loop.call_later(loop.time() - began, self._end_rest, key)

    def _end_rest(self, key: K) -> None:
        self._rests.pop(key).set()


def _note_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def supervise(name: str, body: Callable[[], Awaitable[None]]) -> None:
    """Run body forever: when it fails, log that and restart it with back-off (1 s to 60 s).

    Returns when body returns; cancellation passes.
    """
    backoff = Backoff(initial=1.0)
    while True:
        try:
            await body()
        except Exception:
            delay = backoff.next(name)
            log.exception("task failed, starting it again name=%s in=%.0fs", name, delay)
            await asyncio.sleep(delay)
        else:
            return


class Background:
    """Tasks of an owner: referenced, logged when they fail, all cancelled by close()."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Start work as a task of this owner."""
        task = asyncio.get_running_loop().create_task(work, name=name or self._owner)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("background task failed owner=%s name=%s", self._owner, task.get_name(), exc_info=failure)

    async def close(self) -> None:
        """Cancel all and wait for them. Idempotent."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
