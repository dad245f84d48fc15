"""Threads of a pool for its blocking calls, so that one dead disk stops only its own pool; and shared commits."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Generic, ParamSpec, TypeVar

from tonnage.base.aio.clock import hold_time
from tonnage.base.errors import HostError

log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")


class Threads:
    """At most `workers` threads, started when there is work."""

    def __init__(self, name: str, workers: int = 4) -> None:
        self._name = name
        self._workers = workers
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run blocking work and wait for its end, even when cancelled meanwhile.

        Started work cannot be undone, and the caller's locks must outlast it. The cancellation is raised then. Raises
        HostError for an OSError of the work: a disk may fail at any step.
        """
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._workers, thread_name_prefix=f"pool-{self._name}")
        job = _Job(partial(work, *args, **kwargs))
        self._executor.submit(job.run)
        stopped: asyncio.CancelledError | None = None
        while not job.is_done:
            try:
                await job.end()
            except asyncio.CancelledError as stop:
                stopped = stop
        if stopped is not None:
            raise stopped
        try:
            return job.outcome()
        except OSError as failure:
            log.warning("unexpected error of the machine pool=%s error=%r", self._name, failure, exc_info=failure)
            raise HostError(str(failure)) from failure

    def close(self) -> None:
        """End the threads. Idempotent; run() starts new ones."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None


class _Job(Generic[R]):
    """Work for a thread, which notifies the event loop itself when it has ended.

    An executor's future, wrapped for the loop, takes two locks and a turn of the loop more.
    """

    def __init__(self, work: Callable[[], R]) -> None:
        self.is_done = False
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._release = hold_time()
        self._waiting: asyncio.Future[None] | None = None
        self._result: list[R] = []
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Run the work. Called in a thread."""
        try:
            self._result.append(self._work())
        except BaseException as failure:
            self._failure = failure
        with suppress(RuntimeError):  # the loop is closed: no caller waits any more
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self.is_done = True
        self._release()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def end(self) -> None:
        """Wait until it has ended; the wait may be cancelled, the work is not."""
        self._waiting = self._loop.create_future()
        await self._waiting

    def outcome(self) -> R:
        """Return the result of the work. Raises: what it raised."""
        if self._failure is None:
            return self._result[0]
        try:
            raise self._failure
        finally:
            self._failure = None  # which refers to this frame


class SharedCommit:
    """Share a slow, blocking `commit` among concurrent callers.

    Each caller waits for a commit that began after its call.
    """

    def __init__(self, commit: Callable[[], None], threads: Threads) -> None:
        self._commit = commit
        self._threads = threads
        self._waiting = asyncio.Lock()
        self._running = threading.Lock()
        self._callers = 0
        self._begun = 0
        self._done = 0

    async def after(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run blocking work in a thread and return when it is committed. Raises: what work and commit raise."""
        self._callers += 1
        try:
            result, ticket = await self._threads.run(self._work, partial(work, *args, **kwargs))
            await self._until(ticket)
            return result
        finally:
            self._callers -= 1

    def _work(self, work: Callable[[], R]) -> tuple[R, int]:
        result = work()
        ticket = self._begun + 1  # one that already runs may have begun before our work ended
        if self._callers == 1:
            self._now()  # alone: the way back to the loop and here again costs as much as the work
        return result, ticket  # others are at it too: they share

    async def wait(self) -> None:
        """Return when everything done before this call is committed. Raises: what commit raises."""
        await self._until(self._begun + 1)

    async def _until(self, ticket: int) -> None:
        if self._done >= ticket:
            return
        async with self._waiting:
            if self._done < ticket:
                await self._threads.run(self._now)

    def _now(self) -> None:
        with self._running:
            self._begun += 1
            mine = self._begun
            self._commit()
            self._done = mine
