"""The CSI Identity service: a driver's name and capabilities (CSI 1.12, Identity Service)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from google.protobuf.wrappers_pb2 import BoolValue

from tonnage import __version__
from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.services import snapshots
from tonnage.kubernetes.api import names

PluginService = csi_pb2.PluginCapability.Service


class Identity:
    """The Identity service of any driver.

    services: which it has, asked for each call. expands: whether volumes grow while they are in use. manifest: what
    GetPluginInfo says besides name and version.
    """

    def __init__(
        self,
        name: str,
        version: str = __version__,
        *,
        services: Callable[[], Sequence[PluginService.Type.ValueType]] = tuple,
        expands: Callable[[], bool] = lambda: False,
        manifest: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._name, self._version = name, version
        self._services, self._expands, self._manifest = services, expands, manifest

    async def GetPluginInfo(self, _request: csi_pb2.GetPluginInfoRequest) -> csi_pb2.GetPluginInfoResponse:
        """Name, version and manifest."""
        return csi_pb2.GetPluginInfoResponse(name=self._name, vendor_version=self._version, manifest=self._manifest())

    async def GetPluginCapabilities(
        self, _request: csi_pb2.GetPluginCapabilitiesRequest
    ) -> csi_pb2.GetPluginCapabilitiesResponse:
        """The services, and online expansion."""
        kinds = csi_pb2.PluginCapability
        capabilities = [kinds(service=PluginService(type=kind)) for kind in self._services()]
        if self._expands():
            capabilities.append(kinds(volume_expansion=kinds.VolumeExpansion(type=kinds.VolumeExpansion.ONLINE)))
        return csi_pb2.GetPluginCapabilitiesResponse(capabilities=capabilities)

    async def Probe(self, _request: csi_pb2.ProbeRequest) -> csi_pb2.ProbeResponse:
        """Ready: the socket exists only once the driver can be used."""
        return csi_pb2.ProbeResponse(ready=BoolValue(value=True))


def identity_of(driver: Driver) -> Identity:
    """The Identity service of a driver with pools: its manifest has the default pool, all, and inline capacity."""

    def services() -> list[PluginService.Type.ValueType]:
        groups = [PluginService.GROUP_CONTROLLER_SERVICE] if snapshots.are_offered(driver) else []
        return [PluginService.CONTROLLER_SERVICE, PluginService.VOLUME_ACCESSIBILITY_CONSTRAINTS, *groups]

    def manifest() -> dict[str, str]:
        pools = driver.pools.values()
        values = {
            names.MANIFEST_DEFAULT_POOL: driver.first_pool.name,
            names.MANIFEST_POOLS: ",".join(f"{pool.name}={pool.kind}" for pool in pools),
            names.MANIFEST_INLINE: ",".join(pool.name for pool in pools if pool.backend.inline),
        }
        return {key: value for key, value in values.items() if value}

    def expands() -> bool:
        return any(pool.features.expansion for pool in driver.pools.values())

    return Identity(driver.name, driver.version, services=services, expands=expands, manifest=manifest)
