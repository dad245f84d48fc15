"""Schedule of projected volumes: each is written again when its tokens, certificates or trust bundles want it.

A kubelet of Kubernetes writes all of them each minute; here a volume is written when it is due or something changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import TonnageError
from tonnage.kubernetes.api.pods import Pod, Volume

log = logging.getLogger(__name__)
_MAX_SECONDS = 24 * 3600.0
_SHARE = 0.8
_RETRY_SECONDS = 60.0
Rewrite = Callable[[Pod, Volume], Awaitable[object]]
"""Write the files of a volume again."""


def token_wait(life: float) -> float:
    """Seconds until a new token is renewed: 80 % of its life, 24 hours at most (pkg/kubelet/token)."""
    return min(life * _SHARE, _MAX_SECONDS)


class ProjectedSchedule:
    """Volumes of one node whose files change, and when each is written again."""

    def __init__(self, clock: Clock, rewrite: Rewrite) -> None:
        self._clock, self._rewrite = clock, rewrite
        self._due: dict[tuple[str, str], tuple[float, Pod, Volume]] = {}
        self._hastened: set[tuple[str, str]] = set()
        self._changed = asyncio.Event()
        self._working = ""
        self._lock = asyncio.Lock()

    def put(self, pod: Pod, volume: Volume, seconds: float) -> None:
        """Note a volume that was just written, or could not be; seconds: until it is written again."""
        key = (pod.metadata.uid, volume.name)
        # A change during the write may have come too late for it.
        due = self._clock.time() + (0.0 if key in self._hastened else seconds)
        self._due[key] = (due, pod, volume)
        self._changed.set()

    def hasten(self, wanted: Callable[[Pod, Volume], bool]) -> None:
        """Write the wanted volumes again now: what they show has changed."""
        for key, (_, pod, volume) in self._due.items():
            if wanted(pod, volume):
                self._hastened.add(key)
                self._due[key] = (self._clock.time(), pod, volume)
                self._changed.set()

    async def forget(self, uid: str) -> None:
        """Drop the volumes of a pod; on return none of them is being written. Idempotent."""
        self._drop(uid)
        if self._working == uid:
            async with self._lock:
                self._drop(uid)  # the write has noted it again

    def _drop(self, uid: str) -> None:
        for key in [key for key in self._due if key[0] == uid]:
            del self._due[key]
            self._hastened.discard(key)

    async def step(self) -> float | None:
        """Write what is due; seconds until the next one, None without any."""
        now = self._clock.time()
        for key in [key for key, (due, _, _) in self._due.items() if due <= now]:
            async with self._lock:
                if key in self._due:  # its pod may have gone meanwhile
                    await self._renew(key)
        return max(min(due for due, _, _ in self._due.values()) - self._clock.time(), 0.0) if self._due else None

    async def _renew(self, key: tuple[str, str]) -> None:
        _, pod, volume = self._due[key]
        self._working = key[0]
        self._hastened.discard(key)
        try:
            await self._rewrite(pod, volume)
        except (TonnageError, OSError) as failure:
            if key in self._due:
                self.put(pod, volume, _RETRY_SECONDS)
            log.warning("projected volume not renewed pod=%s volume=%s error=%s", pod.key, volume.name, failure)
        finally:
            self._working = ""

    async def run(self) -> None:
        """Write until cancelled. Idle between the times that are due."""
        while True:
            self._changed.clear()
            wait = await self.step()
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue
