"""Plugin registration (pluginregistration/v1): how a kubelet learns of a driver."""

from __future__ import annotations

import logging
from pathlib import Path

from tonnage.csi._proto import registration_pb2
from tonnage.csi.server.server import CsiServer
from tonnage.csi.server.service import Service

log = logging.getLogger(__name__)

CSI_PLUGIN = "CSIPlugin"
VERSIONS = ("1.0.0",)
SUFFIX = "-reg.sock"


def _anything(_request: object) -> None:
    """No limits: those are CSI's, and a kubelet's error text may be longer."""


class Registration:
    """The driver's side: answers the kubelet at `<registry>/<driver>-reg.sock`."""

    def __init__(self, driver: str, endpoint: Path, registry: Path) -> None:
        self._driver = driver
        self._endpoint = endpoint
        descriptor = registration_pb2.DESCRIPTOR.services_by_name["Registration"]
        self._server = CsiServer(registry / f"{driver}{SUFFIX}", [Service(descriptor, self, check=_anything)])
        self.registered: bool | None = None
        """The kubelet's last registration status, None before."""
        self.error = ""
        """The kubelet's reason not to register it."""

    async def start(self) -> None:
        """Make the socket, which the kubelet discovers. Raises: as CsiServer.start."""
        await self._server.start()

    async def stop(self) -> None:
        """Remove the socket; the kubelet then unregisters the driver. Idempotent."""
        await self._server.stop()

    async def GetInfo(self, _request: registration_pb2.InfoRequest) -> registration_pb2.PluginInfo:
        """Name, endpoint and versions."""
        return registration_pb2.PluginInfo(
            type=CSI_PLUGIN, name=self._driver, endpoint=str(self._endpoint), supported_versions=VERSIONS
        )

    async def NotifyRegistrationStatus(
        self, request: registration_pb2.RegistrationStatus
    ) -> registration_pb2.RegistrationStatusResponse:
        """Record and log the status. A kubelet that rejected the driver retries, so the process continues."""
        self.registered, self.error = request.plugin_registered, request.error
        if request.plugin_registered:
            log.info("registered driver=%s", self._driver)
        else:
            log.error("registration rejected driver=%s error=%r", self._driver, request.error)
        return registration_pb2.RegistrationStatusResponse()


class RegisteredServer:
    """A driver's server and, where there is a registry, its registration."""

    def __init__(self, driver: str, server: CsiServer, registry: Path | None) -> None:
        self.registration = Registration(driver, server.path, registry) if registry is not None else None
        self._parts = [part for part in (server, self.registration) if part is not None]

    async def start(self) -> None:
        """Serve, then register. Raises: as CsiServer.start."""
        for part in self._parts:
            await part.start()

    async def stop(self) -> None:
        """Unregister, then stop serving. Idempotent."""
        for part in reversed(self._parts):
            await part.stop()
