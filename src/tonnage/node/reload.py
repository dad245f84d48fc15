"""Reload of a serving node's configuration, as far as that is safe.

What a reload cannot change is reported by Events on the Node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from tonnage.errors import TonnageError
from tonnage.kube.events import NORMAL, WARNING
from tonnage.node.config import diff
from tonnage.node.config.node import NodeConfig
from tonnage.node.plain_driver import StandaloneDriver
from tonnage.pools.config import PoolConfig

log = logging.getLogger(__name__)
CHANGED, REFUSED = "ConfigurationChanged", "ConfigurationRefused"
"""Reasons of the Events."""

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

    def refuse(self, reason: str) -> None:
        """Report that the file cannot be read; nothing changes."""
        self._tell(WARNING, REFUSED, f"{reason}; everything stays as it was: correct the configuration")

    async def apply(self, wanted: NodeConfig) -> None:
        """Apply what a reload can change, report the rest. Idempotent."""
        found = diff.compare(self.config, wanted)
        for sentence in found.refused:
            self._tell(WARNING, REFUSED, sentence)
        if found.level:
            logging.getLogger().setLevel(wanted.log_level.upper())
            self.config = replace(self.config, log_level=wanted.log_level)
            log.info("log level changed level=%s", wanted.log_level)
        done = [await self._remove(pool.name) for pool in found.removed]
        done += [await self._rebound(pool.name, wanted) for pool in found.bounds]
        done += [await self._add(pool.name, wanted) for pool in found.added]
        if found.metrics:
            await self._serve_metrics(wanted)
        self.config = replace(
            self.config, driver=replace(self._driver.change.config, metrics=self.config.driver.metrics)
        )
        if any(done):
            await self._after()

    async def _add(self, name: str, wanted: NodeConfig) -> bool:
        try:
            why = await self._driver.change.add(_pool(wanted, name))
        except TonnageError as failure:
            self._tell(WARNING, REFUSED, f"pool {name} is not added: {failure}")
            return False
        if why:
            self._tell(WARNING, CHANGED, f"pool {name} is added, but not open yet: {why}; it is tried again")
        else:
            self._tell(NORMAL, CHANGED, f"pool {name} is added: {_pool(wanted, name)}")
        return True

    async def _remove(self, name: str) -> bool:
        try:
            await self._driver.change.remove(name)
        except TonnageError as failure:
            hint = "put it back into the configuration, or delete what is in it first (tonnage volumes list)"
            self._tell(WARNING, REFUSED, f"pool {name} is not removed: {failure}; {hint}")
            return False
        self._tell(NORMAL, CHANGED, f"pool {name} is no longer served: it was empty; its path is unchanged")
        return True

    async def _rebound(self, name: str, wanted: NodeConfig) -> bool:
        try:
            await asyncio.to_thread(self._driver.change.rebound, _pool(wanted, name))
        except TonnageError as failure:
            self._tell(WARNING, REFUSED, f"pool {name} keeps its limits: {failure}; {diff.RESTART}")
            return False
        self._tell(NORMAL, CHANGED, f"pool {name} has new limits: {_pool(wanted, name)}")
        return True

    async def _serve_metrics(self, wanted: NodeConfig) -> None:
        address = wanted.driver.metrics
        try:
            await self._driver.serve_metrics(address)
        except TonnageError as failure:
            self._tell(WARNING, REFUSED, f"metrics stay where they are: {failure}")
            return
        self.config = replace(self.config, driver=replace(self.config.driver, metrics=address))
        self._tell(NORMAL, CHANGED, f"metrics and health are served at {address or 'no address any more'}")


def _pool(config: NodeConfig, name: str) -> PoolConfig:
    return next(pool for pool in config.driver.pools if pool.name == name)
