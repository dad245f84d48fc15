"""Where a pool's blocking calls run: a few threads of its own, so that one dead disk stops only its own pool."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

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
        """Run blocking work and wait for its end, even when cancelled meanwhile: what it began cannot be taken back,
        and the caller's locks must outlast it. The cancellation is raised then.

        Raises HostError for an OSError of the work: a disk may fail at any step.
        """
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._workers, thread_name_prefix=f"pool-{self._name}")
        future = self._executor.submit(partial(work, *args, **kwargs))
        stopped: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await _end_of(future)
            except asyncio.CancelledError as stop:
                stopped = stop
        if stopped is not None:
            raise stopped
        try:
            return future.result()
        except OSError as failure:
            log.warning("unforeseen error of the machine pool=%s error=%r", self._name, failure, exc_info=failure)
            raise HostError(str(failure)) from failure

    def close(self) -> None:
        """End the threads. May be repeated; run() starts new ones."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None


async def _end_of(future: Future[R]) -> None:
    """Wait until a thread's work has ended; the wait may be cancelled, the work is not. One turn of the loop fewer than
    asyncio's own ways take, which hand the outcome from future to future."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def wake() -> None:
        if not ended.done():
            ended.set_result(None)

    def tell(_future: Future[R]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(tell)
    await ended
