"""Threads of a pool for its blocking calls, so that one dead disk stops only its own pool."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Generic, ParamSpec, TypeVar

from tonnage.errors import HostError

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
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def end(self) -> None:
        """Wait until it has ended; the wait may be cancelled, the work is not."""
        self._waiting = self._loop.create_future()
        await self._waiting

    def outcome(self) -> R:
        """Return the result of the work. Raises what it raised."""
        if self._failure is None:
            return self._result[0]
        try:
            raise self._failure
        finally:
            self._failure = None  # which refers to this frame
