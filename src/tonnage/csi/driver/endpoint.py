"""A driver with its sockets: the CSI socket and, for a kubelet, the registration socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tonnage.csi._proto import csi_pb2, inventory_pb2
from tonnage.csi.driver.driver import Driver, lock_key
from tonnage.csi.driver.registration import RegisteredServer
from tonnage.csi.driver.services import inventory, reclaim, trash
from tonnage.csi.driver.services.controller import ControllerService
from tonnage.csi.driver.services.groups import GroupControllerService
from tonnage.csi.driver.services.identity import identity_of
from tonnage.csi.driver.services.node import NodeService
from tonnage.csi.server.dispatch import Calls
from tonnage.csi.server.server import CsiServer
from tonnage.csi.server.service import Service, offered


def services(driver: Driver) -> list[Service]:
    """The CSI services of a driver, and our own. SnapshotMetadata is not offered (UNIMPLEMENTED)."""
    more: dict[str, Any] = {
        "key": lock_key,
        "before": driver.openings.retry_open if driver.openings is not None else None,
    }
    standard = {
        "Identity": identity_of(driver),
        "Controller": ControllerService(driver),
        "GroupController": GroupControllerService(driver),
        "Node": NodeService(driver),
    }
    ours = inventory_pb2.DESCRIPTOR.services_by_name
    return [
        *offered(csi_pb2.DESCRIPTOR, standard, **more),
        inventory.service(driver.pools),
        Service(ours["Reclaim"], reclaim.Reclaim(driver), check=reclaim.check, **more),
        Service(ours["Trash"], trash.Trash(driver), **more),
    ]


class DriverEndpoint:
    """Serves a driver at `socket`, and registers it in `registry` if given. The caller opens the pools."""

    def __init__(self, driver: Driver, socket: Path, *, registry: Path | None = None) -> None:
        self.driver = driver
        self.socket = socket
        self._server = CsiServer(
            socket, services(driver), in_flight=driver.in_flight, clock=driver.clock, driver=driver.name
        )
        self._served = RegisteredServer(driver.name, self._server, registry)

    @property
    def calls(self) -> Calls:
        """The driver's calls, for clients in this process."""
        return self._server.calls

    async def start(self) -> None:
        """Restore I/O limits, serve, then register. Raises: as sockets.bind_private."""
        await self.driver.throttle.restore(self.driver.pools.values())
        await self._served.start()

    async def stop(self) -> None:
        """Unregister, then stop serving (in less than a second). Idempotent."""
        await self._served.stop()
        await self.driver.fillings.close()
        await self.driver.throttle.close()

    async def __aenter__(self) -> DriverEndpoint:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
