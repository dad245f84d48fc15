"""A client with the CSI calls that only other orchestrators and sidecars make: snapshots, growth, usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tonnage.csi._proto import csi_pb2
from tonnage.csi.client import convert
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.convert import volume_capability
from tonnage.csi.client.types import ListedSnapshot, VolumeCapability


@dataclass(frozen=True)
class VolumeUsage:
    """Response of NodeGetVolumeStats: bytes and inodes; inodes are 0 where the driver reports none."""

    total: int = 0
    used: int = 0
    available: int = 0
    inodes: int = 0
    inodes_used: int = 0
    inodes_free: int = 0
    abnormal: bool = False
    message: str = ""


class FullCsiClient(CsiClient):
    """All calls of the Controller and Node services."""

    async def list_snapshots(
        self, *, volume_id: str = "", snapshot_id: str = "", page: int = 500
    ) -> list[ListedSnapshot]:
        """All snapshots, or those of a volume or with an id, fetched `page` at a time (0: all at once)."""
        request = csi_pb2.ListSnapshotsRequest(max_entries=page, source_volume_id=volume_id, snapshot_id=snapshot_id)
        entries = await self._pages(self._controller.ListSnapshots, request)
        return [convert.snapshot(entry.snapshot) for entry in entries]

    async def get_snapshot(self, snapshot_id: str) -> ListedSnapshot:
        """One snapshot, of a driver with GET_SNAPSHOT."""
        answer = await self._call(self._controller.GetSnapshot, csi_pb2.GetSnapshotRequest(snapshot_id=snapshot_id))
        return convert.snapshot(answer.snapshot)

    async def group_capabilities(self) -> frozenset[str]:
        """Capabilities of the group controller service by name ("CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT")."""
        request = csi_pb2.GroupControllerGetCapabilitiesRequest()
        answer = await self._call(self._groups.GroupControllerGetCapabilities, request)
        kinds = csi_pb2.GroupControllerServiceCapability.RPC.Type
        return convert.names_of(kinds, (item.rpc.type for item in answer.capabilities))

    async def volume_stats(self, volume_id: str, path: Path | str, *, staging: Path | str = "") -> VolumeUsage:
        """Usage of a volume as mounted at path."""
        request = csi_pb2.NodeGetVolumeStatsRequest(
            volume_id=volume_id, volume_path=str(path), staging_target_path=str(staging)
        )
        return usage(await self._call(self._node.NodeGetVolumeStats, request, self._node_timeout))

    async def expand_on_node(
        self,
        volume_id: str,
        path: Path | str,
        *,
        size: int = 0,
        limit: int = 0,
        staging: Path | str = "",
        capability: VolumeCapability | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> int:
        """Grow the file system at path to the expanded size; return its size, 0 if unknown."""
        request = csi_pb2.NodeExpandVolumeRequest(
            volume_id=volume_id,
            volume_path=str(path),
            capacity_range=csi_pb2.CapacityRange(required_bytes=size, limit_bytes=limit),
            staging_target_path=str(staging),
            volume_capability=None if capability is None else volume_capability(capability),
            secrets=secrets or {},
        )
        answer = await self._call(self._node.NodeExpandVolume, request, self._node_timeout)
        return answer.capacity_bytes


def usage(answer: csi_pb2.NodeGetVolumeStatsResponse) -> VolumeUsage:
    """Bytes and inodes."""
    by_unit = {item.unit: item for item in answer.usage}
    size = by_unit.get(csi_pb2.VolumeUsage.BYTES, csi_pb2.VolumeUsage())
    inodes = by_unit.get(csi_pb2.VolumeUsage.INODES, csi_pb2.VolumeUsage())
    return VolumeUsage(
        total=size.total,
        used=size.used,
        available=size.available,
        inodes=inodes.total,
        inodes_used=inodes.used,
        inodes_free=inodes.available,
        abnormal=answer.volume_condition.abnormal,
        message=answer.volume_condition.message,
    )
