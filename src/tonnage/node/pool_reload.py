"""Reload of a serving driver's pools: add, remove, change limits.

Calls under way complete.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from tonnage.base.errors import PreconditionError, TonnageError
from tonnage.csi.driver.driver import Driver
from tonnage.node.config import preflight
from tonnage.node.config.driver import DriverConfig
from tonnage.storage.pools import config as pool_config
from tonnage.storage.pools import kubelet_disk
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.kind import PoolConfig

log = logging.getLogger(__name__)


class PoolChange:
    """Changes the pools of one driver.

    config: what the driver serves. pools: the driver's own table, by name, which every service uses. disks: those under
    its pools.
    """

    def __init__(
        self,
        driver: Driver,
        pools: dict[str, Pool],
        config: DriverConfig,
        disks: Disks,
    ) -> None:
        assert driver.openings is not None
        self.config, self._disks = config, disks
        self._driver, self._pools, self._openings = driver, pools, driver.openings
        self._openings.ready = self._check_disk
        self._never_open: set[str] = set()

    async def add(self, wanted: PoolConfig) -> str:
        """Open one more pool; return why it is not open yet, or "".

        If it is not open, later calls try again.

        Raises: InvalidError and others for a pool that can never be opened as described.
        """
        finding = await asyncio.to_thread(preflight.pool, wanted, self.config.roots)
        if finding.fault is not None and not preflight.may_come(finding):
            raise finding.fault
        pool = await asyncio.to_thread(preflight.make_pool, wanted, self.config.roots, self._disks)
        hooks = self._driver.hooks
        pool.on_capacity, pool.on_fault = hooks.capacity_changed, hooks.pool_fault
        pool.volumes.given_up.keep_in(self.config.state)
        self._serve(wanted)
        self._pools[wanted.name] = pool
        await self._openings.add(wanted.name)
        if why := self._openings.why(wanted.name):
            self._never_open.add(wanted.name)
        return why

    async def remove(self, name: str) -> None:
        """Stop serving an empty pool.

        A new pool that was never open is removed without a check, since it has no volumes.

        Raises: PreconditionError if the pool is not empty or cannot be read.
        """
        pool = self._pools[name]
        if name in self._never_open and self._openings.why(name):
            del self._pools[name]
            await self._forget(name, pool)
            return
        await _check_empty(pool)
        place = list(self._pools).index(name)
        del self._pools[name]
        try:
            await self._driver.in_flight.drained()  # a volume may have been under way into it
            await _check_empty(pool)
        except BaseException:
            self._put_back(name, pool, place)
            raise
        await self._forget(name, pool)

    async def _forget(self, name: str, pool: Pool) -> None:
        self._openings.forget(name)
        self._never_open.discard(name)
        self.config = replace(self.config, pools=[found for found in self.config.pools if found.name != name])
        await pool.close()

    def _check_disk(self, name: str) -> None:
        """Check before opening that the pool's disk is mounted.

        Otherwise the pool would be on the node's own disk.
        """
        kubelet_disk.check(next(found for found in self.config.pools if found.name == name), self.config.roots)

    def _put_back(self, name: str, pool: Pool, place: int) -> None:
        order = list(self._pools.items())
        order.insert(place, (name, pool))
        self._pools.clear()
        self._pools.update(order)

    def rebound(self, wanted: PoolConfig) -> None:
        """Change a pool's limits. Blocking.

        Raises: UnsupportedError where its kind fixes them at the start; UnavailableError and InvalidError as
        nodedisk.settle.
        """
        settled = kubelet_disk.settle(wanted, self.config.roots)
        pool_config.make(settled)  # rejects what could not have been made
        pool = self._pools[wanted.name]
        pool.rebound(settled.limits, erase_rate=settled.erase_rate)
        pool.backend.inline = settled.inline
        self._serve(wanted)

    def _serve(self, wanted: PoolConfig) -> None:
        """Store the pool's description, at its position or as the last one."""
        have = {pool.name: pool for pool in self.config.pools}
        self.config = replace(self.config, pools=list({**have, wanted.name: wanted}.values()))


async def _check_empty(pool: Pool) -> None:
    try:
        volumes, snapshots = await pool.list(), await pool.snapshots.list()
        damaged, erasing = await pool.damaged(), await pool.erasing()
    except TonnageError as failure:
        raise PreconditionError(f"it cannot be looked into: {failure}") from failure
    counts = {"volumes": len(volumes) + len(damaged), "snapshots": len(snapshots), "erasures": len(erasing)}
    found = [*(v.name for v in volumes), *damaged, *(s.name for s in snapshots), *(e.name for e in erasing)]
    if found:
        contents = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        raise PreconditionError(f"it has {contents} ({found[0]}{', ...' if len(found) > 1 else ''})")
