"""Many callers, one commit: whoever waits while a commit runs shares the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class SharedCommit:
    """Wraps a slow `commit` so that concurrent callers share it. Each sees a commit that began after its call."""

    def __init__(self, commit: Callable[[], Awaitable[None]]) -> None:
        self._commit = commit
        self._lock = asyncio.Lock()
        self._begun = 0
        self._done = 0

    async def wait(self) -> None:
        """Return when everything done before this call is committed. Raises what commit raises."""
        ticket = self._begun + 1  # one that already runs may have begun too early for us
        async with self._lock:
            if self._done >= ticket:
                return
            self._begun += 1
            mine = self._begun
            await self._commit()
            self._done = mine
