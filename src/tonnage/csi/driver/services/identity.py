"""The CSI Identity service: the driver's name and capabilities (CSI 1.12, Identity Service)."""

from __future__ import annotations

from google.protobuf.wrappers_pb2 import BoolValue

from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.services import snapshots
from tonnage.kubernetes.api import names

_SERVICES = (
    csi_pb2.PluginCapability.Service.CONTROLLER_SERVICE,
    csi_pb2.PluginCapability.Service.VOLUME_ACCESSIBILITY_CONSTRAINTS,
)
_GROUPS = csi_pb2.PluginCapability.Service.GROUP_CONTROLLER_SERVICE


class Identity:
    """The Identity service."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def GetPluginInfo(self, _request: csi_pb2.GetPluginInfoRequest) -> csi_pb2.GetPluginInfoResponse:
        """Name and version, with a manifest: the default pool, all pools, and those with inline capacity."""
        pools = self._driver.pools.values()
        values = {
            names.MANIFEST_DEFAULT_POOL: self._driver.first_pool.name,
            names.MANIFEST_POOLS: ",".join(f"{pool.name}={pool.kind}" for pool in pools),
            names.MANIFEST_INLINE: ",".join(pool.name for pool in pools if pool.backend.inline),
        }
        manifest = {key: value for key, value in values.items() if value}
        return csi_pb2.GetPluginInfoResponse(
            name=self._driver.name, vendor_version=self._driver.version, manifest=manifest
        )

    async def GetPluginCapabilities(
        self, _request: csi_pb2.GetPluginCapabilitiesRequest
    ) -> csi_pb2.GetPluginCapabilitiesResponse:
        """A controller service, volumes with topology, group snapshots, and online expansion."""
        kinds = [*_SERVICES, *([_GROUPS] if snapshots.are_offered(self._driver) else [])]
        capabilities = [csi_pb2.PluginCapability(service=csi_pb2.PluginCapability.Service(type=kind)) for kind in kinds]
        if any(pool.features.expansion for pool in self._driver.pools.values()):
            kind = csi_pb2.PluginCapability.VolumeExpansion
            capabilities.append(csi_pb2.PluginCapability(volume_expansion=kind(type=kind.ONLINE)))
        return csi_pb2.GetPluginCapabilitiesResponse(capabilities=capabilities)

    async def Probe(self, _request: csi_pb2.ProbeRequest) -> csi_pb2.ProbeResponse:
        """Ready: the socket exists only when all pools are open."""
        return csi_pb2.ProbeResponse(ready=BoolValue(value=True))
