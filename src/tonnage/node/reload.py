"""Reload of a serving node's configuration, as far as that is safe.

The file is watched by inotify, without polling. The kubelet replaces a ConfigMap's directory as a whole: it renames a
new symlink over `..data`, and the file is a symlink through that. A person's editor writes the file in place or renames
another over it. Both cause events in the directories of the path. What a reload cannot change is reported by Events on
the Node.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import InvalidError, TonnageError
from tonnage.base.observe import log as logs
from tonnage.host import inotify
from tonnage.kubernetes.client.events import NORMAL, WARNING
from tonnage.node.config import diff
from tonnage.node.config.node import NodeConfig
from tonnage.node.plain_driver import StandaloneDriver
from tonnage.storage.pools.kind import PoolConfig

log = logging.getLogger(__name__)
SETTLE = 0.3
"""Seconds from the first event of a change to its completion."""
_EVENTS = inotify.CLOSE_WRITE | inotify.CREATE | inotify.MOVED_TO | inotify.ONLYDIR
CHANGED, REJECTED = "ConfigurationChanged", "ConfigurationRefused"
"""Reasons of the Events."""
_KEEP = "; put it back into the configuration, or delete what is in it first (tonnage volumes list)"

Tell = Callable[[str, str, str], None]
"""Called with type, reason and message of an Event."""


class Reconfigure:
    """Applies configuration changes.

    config: what is served, which may differ from the file. tell: emits Events on the Node. after: awaited when pools
    have changed; the agent reads them again.
    """

    def __init__(
        self, config: NodeConfig, driver: StandaloneDriver, *, tell: Tell, after: Callable[[], Awaitable[None]]
    ) -> None:
        self.config = config
        self._driver, self._tell, self._after = driver, tell, after

    async def follow(self, file: Path, read: Callable[[], NodeConfig], clock: Clock) -> None:
        """Apply the file now and whenever it changes, until cancelled.

        read: reads it with the command line over it; blocking; raises InvalidError.

        Raises: OSError if the directory cannot be watched.
        """
        with inotify.Inotify() as watcher:
            while True:
                _watch(watcher, file)  # each time: the path may resolve to another directory now
                await self._look(read)  # includes changes from before the watch
                await watcher.wait()
                await clock.sleep(SETTLE)

    async def _look(self, read: Callable[[], NodeConfig]) -> None:
        try:
            wanted = await asyncio.to_thread(read)
        except InvalidError as reason:
            self._tell(WARNING, REJECTED, f"{reason}; everything stays as it was: correct the configuration")
            return
        await self.apply(wanted)

    async def apply(self, wanted: NodeConfig) -> None:
        """Apply what a reload can change, report the rest. Idempotent."""
        found, change, address = diff.compare(self.config, wanted), self._driver.change, wanted.driver.metrics
        for sentence in found.rejected:
            self._tell(WARNING, REJECTED, sentence)
        if found.level:
            logs.set_level(wanted.log_level)
            self.config = replace(self.config, log_level=wanted.log_level)
            log.info("log level changed level=%s", wanted.log_level)
        done = []
        for pool in found.removed:
            text = f"pool {pool.name} is no longer served: it was empty; its path is unchanged"
            done.append(await self._try(change.remove(pool.name), text, f"pool {pool.name} is not removed", _KEEP))
        for pool in found.bounds:
            text, rejected = f"pool {pool.name} has new limits: {pool}", f"pool {pool.name} keeps its limits"
            done.append(await self._try(asyncio.to_thread(change.rebound, pool), text, rejected, f"; {diff.RESTART}"))
        done += [await self._add(pool) for pool in found.added]
        if found.metrics:
            text = f"metrics and health are served at {address or 'no address any more'}"
            if await self._try(self._driver.serve_metrics(address), text, "metrics stay where they are"):
                self.config = replace(self.config, driver=replace(self.config.driver, metrics=address))
        self.config = replace(self.config, driver=replace(change.config, metrics=self.config.driver.metrics))
        if any(done):
            await self._after()

    async def _try(self, change: Awaitable[None], done: str, rejected: str, hint: str = "") -> bool:
        """Make a change and report the result; return whether it was made."""
        try:
            await change
        except TonnageError as failure:
            self._tell(WARNING, REJECTED, f"{rejected}: {failure}{hint}")
            return False
        self._tell(NORMAL, CHANGED, done)
        return True

    async def _add(self, pool: PoolConfig) -> bool:
        try:
            why = await self._driver.change.add(pool)
        except TonnageError as failure:
            self._tell(WARNING, REJECTED, f"pool {pool.name} is not added: {failure}")
            return False
        if why:
            self._tell(WARNING, CHANGED, f"pool {pool.name} is added, but not open yet: {why}; it is tried again")
        else:
            self._tell(NORMAL, CHANGED, f"pool {pool.name} is added: {pool}")
        return True


def _watch(watcher: inotify.Inotify, file: Path) -> None:
    watcher.add(str(file.parent), _EVENTS)
    with suppress(OSError):  # a dangling symlink, until the kubelet replaces it
        real = Path(os.path.realpath(file, strict=True))
        if real.parent != file.parent:
            watcher.add(str(real.parent), _EVENTS)
