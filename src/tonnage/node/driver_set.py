"""CSI drivers of a node, as its agent knows them.

Each driver is asked once, through its socket only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tonnage.api import names
from tonnage.claims.node_scope import DriverInfo
from tonnage.csi.client import types
from tonnage.csi.client.client import CsiClient
from tonnage.errors import UnavailableError, UnsupportedError


async def attach(client: CsiClient, *, node: str, started_ms: int, number: int) -> DriverInfo:
    """Read a driver's name, capabilities, topology and pools. Idempotent.

    started_ms and number (0..9999) form the provisioner's identity, as external-provisioner writes it into PVs.

    Raises: CsiError; Unavailable while it is not ready; Unsupported.
    """
    if not await client.probe():
        raise UnavailableError(f"driver at {client.socket} is not ready")
    info = await client.plugin_info()
    plugin = await client.plugin_capabilities()
    controller = await client.controller_capabilities() if types.CONTROLLER_SERVICE in plugin else frozenset[str]()
    if types.CREATE_DELETE_VOLUME not in controller:
        raise UnsupportedError(
            f"driver {info.name} makes no volumes: it needs CONTROLLER_SERVICE and CREATE_DELETE_VOLUME"
        )
    segment = (await client.node_info()).topology if types.VOLUME_ACCESSIBILITY_CONSTRAINTS in plugin else {}
    return DriverInfo(
        client,
        info.name,
        info.manifest.get(names.MANIFEST_DEFAULT_POOL, ""),
        frozenset(plugin),
        frozenset(controller),
        dict(segment),
        f"{started_ms}-{number}-{info.name}-{node}",
        dict(pair.split("=", 1) for pair in info.manifest.get(names.MANIFEST_POOLS, "").split(",") if "=" in pair),
        frozenset(filter(None, info.manifest.get(names.MANIFEST_INLINE, "").split(","))),
    )


class DriverSet:
    """Drivers attached so far.

    Listeners are called for each driver, also for earlier ones.
    """

    def __init__(self) -> None:
        self.complete = False
        """Whether all drivers of this node's configuration are attached."""
        self._drivers: dict[str, DriverInfo] = {}
        self._listeners: list[Callable[[DriverInfo], None]] = []

    def __iter__(self) -> Iterator[DriverInfo]:
        return iter(list(self._drivers.values()))

    def get(self, name: str) -> DriverInfo | None:
        """Return the driver of that name, or None."""
        return self._drivers.get(name)

    def sharing_pools_with(self, name: str) -> list[str]:
        """Return other drivers with named pools.

        They are other names of the same program, over the same pools.
        """
        driver = self.get(name)
        if driver is None or not driver.default_pool:
            return []
        return [other.name for other in self._drivers.values() if other.default_pool and other.name != name]

    def add(self, driver: DriverInfo) -> None:
        """Add a driver; it replaces one of the same name."""
        self._drivers[driver.name] = driver
        for listener in self._listeners:
            listener(driver)

    def on_add(self, listener: Callable[[DriverInfo], None]) -> None:
        """Call listener for each driver, also for those that are attached."""
        self._listeners.append(listener)
        for driver in self:
            listener(driver)
