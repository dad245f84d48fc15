"""Group commit: callers that wait while a commit runs share the next one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from tonnage.pools.base.threads import Threads

P = ParamSpec("P")
R = TypeVar("R")


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
        """Run blocking work in a thread and return when it is committed. Raises what work and commit raise."""
        self._callers += 1
        try:
            result, is_committed = await self._threads.run(self._work, partial(work, *args, **kwargs))
            if not is_committed:
                await self.wait()
            return result
        finally:
            self._callers -= 1

    def _work(self, work: Callable[[], R]) -> tuple[R, bool]:
        result = work()
        if self._callers > 1:
            return result, False  # others are at it too: they share
        self._now()  # alone: the way back to the loop and here again costs as much as the work
        return result, True

    async def wait(self) -> None:
        """Return when everything done before this call is committed. Raises what commit raises."""
        ticket = self._begun + 1  # one that already runs may have begun too early for us
        async with self._waiting:
            if self._done < ticket:
                await self._threads.run(self._now)

    def _now(self) -> None:
        with self._running:
            self._begun += 1
            mine = self._begun
            self._commit()
            self._done = mine
