"""The driver of one node of a box, or of a test: open pools behind CSI sockets, one for each driver name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.local import client_of
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.driver.filling import Fillings
from tonnage.csi.driver.hooks import Relay
from tonnage.csi.driver.inline_layers import PoolLayers
from tonnage.csi.driver.io_limits import Throttle
from tonnage.csi.server.inflight import InFlight
from tonnage.kubernetes.api import names
from tonnage.node.capacity.pool_condition import PoolFaults
from tonnage.storage.content.hosts import AllowedHost, FetchPolicy
from tonnage.storage.pools.core.pool import Pool


class NodeDriver:
    """Pools, one CSI socket for each driver name, and kubelet registration.

    sockets: a short directory for the CSI sockets, since a socket path has at most 107 bytes. registry: the kubelet's
    directory of registration sockets, `<kubelet>/plugins_registry` by default. The first pool is the default pool.
    sources: directories whose content new volumes may be populated from. fetch, image_stores: hosts and image stores
    likewise.
    """

    def __init__(  # noqa: PLR0913  # what a node's driver is made of
        self,
        pools: Sequence[Pool],
        *,
        node_name: str,
        kubelet: Path,
        sockets: Path,
        registry: Path | None = None,
        drivers: Sequence[str] = (names.DRIVER,),
        sources: Sequence[Path] = (),
        fetch: Sequence[AllowedHost] = (),
        image_stores: Sequence[Path] = (),
        clock: Clock | None = None,
    ) -> None:
        self.pools = list(pools)
        self.hooks = Relay()
        """Its `to` is the agent, once there is one."""
        self.faults = PoolFaults(lambda: self.pools)
        """Which pools are not available."""
        for pool in pools:
            pool.on_capacity, pool.on_fault = self.hooks.capacity_changed, self.hooks.pool_fault
            pool.volumes.given_up.keep_in(kubelet / "plugins" / drivers[0])
        by_name = {pool.name: pool for pool in pools}
        in_flight = InFlight()  # one volume, one call at a time, whatever the driver's name
        throttle, fillings = Throttle(), Fillings()
        registry = registry or kubelet / "plugins_registry"
        self._endpoints = [
            DriverEndpoint(
                Driver(
                    node_name,
                    by_name,
                    kubelet / "plugins" / name,
                    name=name,
                    default_pool=self.pools[0].name,
                    roots=(kubelet,),
                    sources=tuple(sources),
                    fetch=FetchPolicy(tuple(fetch)),
                    image_stores=tuple(image_stores),
                    fillings=fillings,
                    in_flight=in_flight,
                    throttle=throttle,
                    clock=clock or RealClock(),
                    hooks=self.hooks,
                ),
                sockets / f"{name}.sock",
                registry=registry,
            )
            for name in drivers
        ]

    @property
    def endpoints(self) -> list[Path]:
        """The paths of the CSI sockets."""
        return [e.socket for e in self._endpoints]

    @property
    def layers(self) -> PoolLayers:
        """What makes writable layers of inline drivers in the pools."""
        return PoolLayers(self._endpoints[0].driver)

    def clients(self) -> list[CsiClient]:
        """Return clients of the drivers in this process."""
        return [client_of(e.calls, e.socket) for e in self._endpoints]

    async def start(self) -> None:
        """Open the pools, serve and register.

        Raises: UnavailableError, HostError, and as DriverEndpoint.start.
        """
        for pool in self.pools:
            await pool.open()
        for endpoint in self._endpoints:
            await endpoint.start()

    async def contents(self) -> set[tuple[str, str]]:
        """Return pool and name of each volume and snapshot, also of damaged ones.

        Raises: as the pools' lists.
        """
        found = set()
        for pool in self.pools:
            volumes = [volume.name for volume in await pool.list()]
            snapshots = [snapshot.name for snapshot in await pool.snapshots.list()]
            found |= {(pool.name, name) for name in (*volumes, *snapshots, *await pool.damaged())}
        return found

    async def stop(self) -> None:
        """Stop serving and close the pools; volumes and mounts stay. Idempotent."""
        for endpoint in reversed(self._endpoints):
            await endpoint.stop()
        await asyncio.gather(*(pool.close() for pool in self.pools))  # one that hangs keeps no other
