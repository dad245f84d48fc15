"""Standalone CSI driver: pools, a socket, metrics; without Kubernetes.

Composition only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from tonnage.base.observe import metrics
from tonnage.base.observe.exporter import Address, Exporter
from tonnage.base.observe.process import leave, settle
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.local import client_of
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.driver.hooks import Relay
from tonnage.csi.driver.inline_layers import PoolLayers
from tonnage.node.capacity.pool_condition import PoolFaults
from tonnage.node.config import preflight
from tonnage.node.config.driver import DriverConfig
from tonnage.node.pool_reload import PoolChange
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.core import status
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.core.status import PoolStatus

log = logging.getLogger(__name__)
STOP_SECONDS = 4.0


class StandaloneDriver:
    """One driver. start() and stop() are idempotent.

    A killed driver continues when it is started again.
    """

    def __init__(self, config: DriverConfig) -> None:
        self.config = config
        self.hooks = Relay()
        """Its `to` is the agent, once there is one."""
        self.on_measure: Callable[[], Awaitable[None]] = nothing_more
        """Called when metrics are read, to update gauges of others."""
        pools = preflight.make_pools(config, disks := Disks())
        driver = replace(preflight.make(config, pools), hooks=self.hooks)
        assert driver.openings is not None
        self._openings, self._pools = driver.openings, pools
        self.faults = PoolFaults(lambda: self.pools, self._openings.why)
        """Which pools are not available."""
        self._openings.changed = lambda: self.faults.changed()
        for pool in self.pools:
            pool.on_capacity, pool.on_fault = self.hooks.capacity_changed, self.hooks.pool_fault
            pool.volumes.given_up.keep_in(config.state)
        self.change = PoolChange(driver, pools, config, disks)
        """Changes the pools while they are served."""
        self.layers = PoolLayers(driver)
        """Makes writable layers of inline drivers in the pools."""
        self._endpoint = DriverEndpoint(driver, config.endpoint, registry=config.registry)
        self._exporter = Exporter(config.metrics, self.measure)

    @property
    def pools(self) -> Sequence[Pool]:
        """The pools in their order."""
        return list(self._pools.values())

    def client(self) -> CsiClient:
        """Return a client of the driver in this process."""
        return client_of(self._endpoint.calls, self._endpoint.socket)

    @property
    def metrics_url(self) -> str:
        """URL of the metrics, "" if they are not served."""
        return self._exporter.url

    async def start(self) -> None:
        """Open the pools, then serve, then register.

        One open pool is enough: later calls try the others again.

        Raises: UnavailableError, InvalidError, PreconditionError, HostError.
        """
        await self._openings.open()
        await self._endpoint.start()
        await self._exporter.start()

    async def serve_metrics(self, address: Address | None) -> None:
        """Serve metrics at another address, or at none.

        Raises: HostError if the address is not available; the old one stays.
        """
        before, self._exporter = self._exporter, Exporter(address, self.measure)
        await before.stop()  # first: both addresses may have the same port
        try:
            await self._exporter.start()
        except BaseException:
            self._exporter = before
            await self._exporter.start()
            raise

    async def stop(self) -> None:
        """Stop serving and close the pools; volumes and mounts stay. Idempotent."""
        await self._exporter.stop()
        await self._endpoint.stop()
        await self._openings.close()
        await asyncio.gather(*(pool.close() for pool in self.pools))  # one that hangs keeps no other

    async def measure(self) -> None:
        """Update the pools' gauges. A pool that cannot be read is reported as down."""
        await measure(self.pools)
        await self.on_measure()


async def nothing_more() -> None:
    """Update nothing."""


async def measure(pools: Iterable[Pool]) -> None:
    """Read all pools and set their gauges.

    A pool that cannot be read is reported as down; its other gauges stay as they were.
    """
    for pool in pools:
        found = await status.read(pool)
        if found.problem:
            log.warning("pool cannot be read pool=%s error=%s", pool.name, found.problem)
        _show(found)


def _show(found: PoolStatus) -> None:
    labels = (found.pool, found.kind)
    metrics.POOL_UP.labels(*labels).set(0 if found.problem or found.unwritable else 1)
    if found.capacity is None:
        return
    for gauge, value in (
        (metrics.POOL_SIZE, found.capacity.total),
        (metrics.POOL_FREE, found.capacity.free),
        (metrics.POOL_LARGEST, found.capacity.largest),
        (metrics.POOL_RESERVED, found.reserved),
        (metrics.POOL_VOLUMES, len(found.volumes)),
        (metrics.POOL_SNAPSHOTS, len(found.snapshots)),
        (metrics.POOL_ABNORMAL, len(found.abnormal)),
        (metrics.POOL_ERASING, found.erasing_bytes),
        (metrics.POOL_ERASING_VOLUMES, len(found.erasing)),
        (metrics.POOL_TRASH, sum(volume.size for volume in found.trash)),
    ):
        gauge.labels(*labels).set(value)


class Serving(Protocol):
    """Interface of what serve() runs.

    stop() may be called after start() was cancelled.
    """

    async def start(self) -> None:
        """Start serving."""

    async def stop(self) -> None:
        """Stop serving."""


async def serve(driver: Serving, ended: asyncio.Event, *, name: str = "") -> None:
    """Run a driver until ended is set.

    Returns within 5 s: it does not wait for calls that block on a dead disk.
    """
    starting = asyncio.ensure_future(driver.start())
    waiting = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            settle()
            log.info("driver ready %s", name)
            await waiting
    finally:
        waiting.cancel()
        stopping = asyncio.ensure_future(_stop(driver, starting))
        await asyncio.wait([stopping], timeout=STOP_SECONDS)
        if not stopping.done():
            log.warning("not everything stopped in time seconds=%.1f", STOP_SECONDS)
            leave(0)
        stopping.result()


async def _stop(driver: Serving, starting: asyncio.Future[None]) -> None:
    starting.cancel()
    await asyncio.wait([starting])
    await driver.stop()
