"""Schedule of projected tokens: each is renewed before it ends (pkg/kubelet/token).

A token is renewed after 80 % of its life, and after 24 hours at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tonnage.aio.clock import Clock
from tonnage.api.pods import Pod, Volume
from tonnage.errors import TonnageError

log = logging.getLogger(__name__)
_MAX_SECONDS = 24 * 3600.0
_SHARE = 0.8
_RETRY_SECONDS = 60.0
Rewrite = Callable[[Pod, Volume], Awaitable[object]]
"""Write the files of a volume again, with new tokens."""


class TokenSchedule:
    """Volumes with tokens of one node, and when each is written again."""

    def __init__(self, clock: Clock, rewrite: Rewrite) -> None:
        self._clock, self._rewrite = clock, rewrite
        self._due: dict[tuple[str, str], tuple[float, Pod, Volume]] = {}
        self._changed = asyncio.Event()
        self._working = ""
        self._lock = asyncio.Lock()

    def put(self, pod: Pod, volume: Volume, seconds: float) -> None:
        """Note a volume that was just written; seconds: life of its shortest token."""
        due = self._clock.time() + min(seconds * _SHARE, _MAX_SECONDS)
        self._due[pod.metadata.uid, volume.name] = (due, pod, volume)
        self._changed.set()

    async def forget(self, uid: str) -> None:
        """Drop the volumes of a pod; on return none of them is being written. Idempotent."""
        for key in [key for key in self._due if key[0] == uid]:
            del self._due[key]
        if self._working == uid:
            async with self._lock:
                pass

    async def step(self) -> float | None:
        """Renew what is due; seconds until the next one, None without any."""
        now = self._clock.time()
        for key in [key for key, (due, _, _) in self._due.items() if due <= now]:
            async with self._lock:
                if key in self._due:  # its pod may have gone meanwhile
                    await self._renew(key)
        return max(min(due for due, _, _ in self._due.values()) - self._clock.time(), 0.0) if self._due else None

    async def _renew(self, key: tuple[str, str]) -> None:
        _, pod, volume = self._due[key]
        self._working = key[0]
        try:
            await self._rewrite(pod, volume)
        except (TonnageError, OSError) as failure:
            if key in self._due:
                self._due[key] = (self._clock.time() + _RETRY_SECONDS, pod, volume)
            log.warning("token not renewed pod=%s volume=%s error=%s", pod.key, volume.name, failure)
        finally:
            self._working = ""

    async def run(self) -> None:
        """Renew until cancelled. Idle between renewals."""
        while True:
            self._changed.clear()
            wait = await self.step()
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue
