"""The CSI services and sockets of an inline driver: one source under one driver name.

A publish call that comes again after a success is answered with a success.
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf.message import Message

from tonnage.base.errors import InvalidError
from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.paths import Places, check_parent, reject_links
from tonnage.csi.driver.registration import RegisteredServer
from tonnage.csi.driver.services.identity import Identity
from tonnage.csi.driver.services.node import usage_of
from tonnage.csi.inline.driver import InlineDriver, pod_of
from tonnage.csi.inline.volume import InlineRequest
from tonnage.csi.server.server import CsiServer
from tonnage.csi.server.service import offered
from tonnage.kubernetes.api import names
from tonnage.storage.pools.base.contract import Stats

_RPC = csi_pb2.NodeServiceCapability.RPC
_OFFERED = (_RPC.GET_VOLUME_STATS, _RPC.VOLUME_CONDITION, _RPC.VOLUME_MOUNT_GROUP)
_LOCKED = ("NodePublishVolume", "NodeUnpublishVolume")
_READERS = (
    csi_pb2.VolumeCapability.AccessMode.MULTI_NODE_READER_ONLY,
    csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_READER_ONLY,
)


class InlineNodeService:
    """The Node service. roots: directories that must contain the callers' paths."""

    def __init__(self, driver: InlineDriver, node_id: str, roots: tuple[Path, ...]) -> None:
        self._driver, self._node_id, self._places = driver, node_id, Places(roots)

    async def NodeGetCapabilities(
        self, _request: csi_pb2.NodeGetCapabilitiesRequest
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
        """Statistics, conditions, and the group of the files."""
        offered = [csi_pb2.NodeServiceCapability(rpc=_RPC(type=kind)) for kind in _OFFERED]
        return csi_pb2.NodeGetCapabilitiesResponse(capabilities=offered)

    async def NodeGetInfo(self, _request: csi_pb2.NodeGetInfoRequest) -> csi_pb2.NodeGetInfoResponse:
        """The node's id."""
        return csi_pb2.NodeGetInfoResponse(node_id=self._node_id)

    async def NodePublishVolume(self, request: csi_pb2.NodePublishVolumeRequest) -> csi_pb2.NodePublishVolumeResponse:
        """Show a pod its volume. Raises: as InlineDriver.publish, InvalidError, PreconditionError."""
        target = self._places.path("target_path", request.target_path)
        asked = _asked(request, target)
        if asked.persistent and not self._driver.source.needs.persistent:
            raise InvalidError(f"driver {self._driver.name}: it has no PersistentVolumes: use it in a pod's volumes")
        check_parent(target)
        await self._driver.publish(asked)
        return csi_pb2.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        """Remove a pod's volume; success when nothing is there."""
        target = self._places.path("target_path", request.target_path)
        reject_links(target.parent)
        await self._driver.unpublish(request.volume_id, str(target))
        return csi_pb2.NodeUnpublishVolumeResponse()

    async def NodeGetVolumeStats(
        self, request: csi_pb2.NodeGetVolumeStatsRequest
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        """Usage in bytes and files, and whether the content is stale. Raises: NotFoundError."""
        path = self._places.shown(request.volume_path)
        found = await self._driver.usage(request.volume_id, str(path))
        free, free_files = max(found.total - found.used, 0), max(found.max_files - found.files, 0)
        usage = usage_of(Stats(found.total, found.used, free, found.max_files, found.files, free_files))
        condition = csi_pb2.VolumeCondition(
            abnormal=bool(found.problem), message=f"stale: {found.problem}" if found.problem else "content is current"
        )
        return csi_pb2.NodeGetVolumeStatsResponse(usage=usage, volume_condition=condition)


def _asked(request: csi_pb2.NodePublishVolumeRequest, target: Path) -> InlineRequest:
    """Return the publish call. Raises: InvalidError."""
    capability = request.volume_capability
    if capability.WhichOneof("access_type") != "mount":
        raise InvalidError("an inline volume is a folder: raw block is not offered")
    group = capability.mount.volume_mount_group
    if group and not (group.isascii() and group.isdecimal() and len(group) < 11):
        raise InvalidError(f"volume_mount_group {group[:40]!r}: want a number")
    context = dict(request.volume_context)
    attributes = {key: value for key, value in context.items() if not key.startswith(names.CSI_PREFIX)}
    return InlineRequest(
        request.volume_id,
        str(target),
        pod_of(context, request.secrets, int(group) if group else None),
        attributes,
        read_only=request.readonly or capability.access_mode.mode in _READERS or "ro" in capability.mount.mount_flags,
        persistent=context.get(names.CSI_EPHEMERAL) != "true",
    )


def _key(method: str, request: Message) -> str | None:
    return request.volume_id if method in _LOCKED else None  # type: ignore[attr-defined]


class InlineEndpoint:
    """Serves an inline driver at a socket, and registers it in `registry`."""

    def __init__(
        self, driver: InlineDriver, socket: Path, *, node_id: str, roots: tuple[Path, ...], registry: Path | None
    ) -> None:
        self.driver, self.socket = driver, socket
        ours = {"Identity": Identity(driver.name), "Node": InlineNodeService(driver, node_id, roots)}
        services = offered(csi_pb2.DESCRIPTOR, ours, key=_key)
        self._served = RegisteredServer(driver.name, CsiServer(socket, services, driver=driver.name), registry)

    async def start(self) -> None:
        """Continue the volumes, serve, then register. Raises: HostError, and as sockets.bind_private."""
        await self.driver.start()
        await self._served.start()

    async def stop(self) -> None:
        """Unregister, then stop serving; volumes and mounts stay. Idempotent."""
        await self._served.stop()
        await self.driver.stop()
