"""Plugin registration, the kubelet's side (pluginregistration/v1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tonnage.csi._proto import registration_grpc, registration_pb2
from tonnage.csi.server.connection import GrpcConnection

_TIMEOUT = 10.0
"""Seconds of a call to a plugin."""


@dataclass(frozen=True)
class Registered:
    """A driver's PluginInfo. endpoint: path of its CSI socket, "" if the registration socket serves CSI too."""

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]


class RegistrationClient:
    """The kubelet's side: asks the plugin behind a registration socket. All methods raise CsiError."""

    def __init__(self, socket: Path) -> None:
        self._connection = GrpcConnection(socket)

    @cached_property
    def _stub(self) -> registration_grpc.RegistrationStub:
        return registration_grpc.RegistrationStub(self._connection.channel)

    async def get_info(self) -> Registered:
        """The driver's PluginInfo."""
        answer = await self._connection.call(self._stub.GetInfo, registration_pb2.InfoRequest(), _TIMEOUT)
        return Registered(answer.type, answer.name, answer.endpoint, tuple(answer.supported_versions))

    async def notify(self, *, registered: bool, error: str = "") -> None:
        """Report the registration status to the plugin."""
        status = registration_pb2.RegistrationStatus(plugin_registered=registered, error=error)
        await self._connection.call(self._stub.NotifyRegistrationStatus, status, _TIMEOUT)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()
