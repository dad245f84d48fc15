"""A client for any CSI driver, with plain types instead of protobuf. Failed calls raise CsiError.

Every call may be repeated. Timeouts are `timeout` seconds (controller and identity calls) or `node_timeout` (node
calls, as the kubelet; attaching and detaching). Each call is counted in csi_sidecar_operations_seconds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, Unpack

from grpclib.client import UnaryUnaryMethod
from prometheus_client import Histogram

from tonnage.base.observe import trace
from tonnage.base.observe.metrics import CSI_OPERATIONS
from tonnage.csi._proto import csi_grpc, csi_pb2, inventory_grpc, inventory_pb2
from tonnage.csi.client import convert, types
from tonnage.csi.client.convert import volume_capability
from tonnage.csi.errors import Code, CsiError, label_of
from tonnage.csi.server import request_text
from tonnage.csi.server.connection import GrpcConnection

Answer = TypeVar("Answer")

CREATE_TIMEOUT = 10.0
NODE_TIMEOUT = 120.0
STORAGE_TIMEOUT = 120.0
"""Seconds for a call to a driver of somebody else's storage: one that is cut off says nothing about its cause."""
PAGE = 500
Context = Mapping[str, str] | types.AttachedContext | None


class CreateOptions(TypedDict, total=False):
    """What a CreateVolume may have besides name, size and capabilities. limit: bytes. timeout: seconds."""

    limit: int
    parameters: Mapping[str, str] | None
    secrets: Mapping[str, str] | None
    topology: types.CsiTopologyRequirement | None
    source: types.ContentSource | None
    mutable_parameters: Mapping[str, str] | None
    timeout: float | None


class CsiClient:
    """Calls the driver behind one socket, over one connection that opens when needed.

    timeout, node_timeout: seconds. connection: replaces the socket's connection, as for a driver in this process. The
    attribute driver is its name, for the metric, once plugin_info() has read it.
    """

    def __init__(
        self,
        socket: Path | str,
        *,
        timeout: float = CREATE_TIMEOUT,
        node_timeout: float = NODE_TIMEOUT,
        connection: GrpcConnection | None = None,
    ) -> None:
        self.socket = Path(socket)
        self.driver = "unknown-driver"
        self._connection = connection or GrpcConnection(self.socket)
        self._timeout = timeout
        self._node_timeout = node_timeout
        self._counters: dict[tuple[str, str, Code], Histogram] = {}

    def close(self) -> None:
        """Close the connection. Idempotent; a later call connects again."""
        self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # Identity

    async def plugin_info(self) -> types.PluginInfo:
        """Name and version of the driver."""
        answer = await self._call(self._identity.GetPluginInfo, csi_pb2.GetPluginInfoRequest())
        self.driver = answer.name or self.driver
        return types.PluginInfo(answer.name, answer.vendor_version, dict(answer.manifest))

    async def plugin_capabilities(self) -> frozenset[str]:
        """Services by name ("CONTROLLER_SERVICE"), expansion as "EXPANSION_ONLINE" and "EXPANSION_OFFLINE"."""
        answer = await self._call(self._identity.GetPluginCapabilities, csi_pb2.GetPluginCapabilitiesRequest())
        return convert.plugin_capabilities(answer)

    async def probe(self) -> bool:
        """Whether the driver is ready. Raises: CsiError when it is not healthy."""
        answer = await self._call(self._identity.Probe, csi_pb2.ProbeRequest())
        return answer.ready.value if answer.HasField("ready") else True

    # Controller

    async def controller_capabilities(self) -> frozenset[str]:
        """Capabilities of the controller service by name ("CREATE_DELETE_VOLUME")."""
        answer = await self._call(
            self._controller.ControllerGetCapabilities, csi_pb2.ControllerGetCapabilitiesRequest()
        )
        kinds = csi_pb2.ControllerServiceCapability.RPC.Type
        return convert.names_of(kinds, (item.rpc.type for item in answer.capabilities))

    async def create_volume(
        self,
        name: str,
        size: int,
        capabilities: Sequence[types.VolumeCapability],
        **more: Unpack[CreateOptions],
    ) -> types.CreatedVolume:
        """Create a volume of at least `size` bytes. The name is its identity: idempotent.

        The size in the response may be 0 (unknown), or smaller with a faulty driver: the caller checks it.
        """
        request = csi_pb2.CreateVolumeRequest(
            name=name,
            capacity_range=csi_pb2.CapacityRange(required_bytes=size, limit_bytes=more.get("limit", 0)),
            volume_capabilities=[volume_capability(item) for item in capabilities],
            parameters=more.get("parameters"),
            secrets=more.get("secrets"),
            volume_content_source=convert.content_source(more.get("source")),
            accessibility_requirements=convert.topology_requirement(more.get("topology")),
            mutable_parameters=more.get("mutable_parameters"),
        )
        answer = await self._call(self._controller.CreateVolume, request, more.get("timeout"))
        return convert.created_volume(answer.volume)

    async def delete_volume(self, volume_id: str, *, secrets: Mapping[str, str] | None = None) -> None:
        """Delete a volume; an unknown one is success."""
        request = csi_pb2.DeleteVolumeRequest(volume_id=volume_id, secrets=secrets or {})
        await self._call(self._controller.DeleteVolume, request)

    async def modify_volume(
        self, volume_id: str, parameters: Mapping[str, str], *, secrets: Mapping[str, str] | None = None
    ) -> None:
        """Change the mutable parameters of a volume, of a driver with MODIFY_VOLUME. Idempotent.

        Parameters that are not named stay as they are; an empty value of our own driver restores the StorageClass's.
        """
        request = csi_pb2.ControllerModifyVolumeRequest(
            volume_id=volume_id, secrets=secrets or {}, mutable_parameters=parameters
        )
        await self._call(self._controller.ControllerModifyVolume, request)

    async def get_capacity(
        self,
        parameters: Mapping[str, str] | None = None,
        *,
        topology: types.Topology | None = None,
        capabilities: Sequence[types.VolumeCapability] = (),
    ) -> types.GetCapacityResult:
        """GetCapacity for volumes of these parameters in that segment."""
        request = csi_pb2.GetCapacityRequest(
            parameters=parameters or {},
            accessible_topology=None if topology is None else csi_pb2.Topology(segments=topology),
            volume_capabilities=[volume_capability(item) for item in capabilities],
        )
        return convert.capacity(await self._call(self._controller.GetCapacity, request))

    async def list_volumes(self, *, page: int = PAGE) -> list[types.CreatedVolume]:
        """All volumes, fetched `page` at a time (0: all at once)."""
        request = csi_pb2.ListVolumesRequest(max_entries=page)
        entries = await self._pages(self._controller.ListVolumes, request)
        return [convert.created_volume(entry.volume) for entry in entries]

    async def list_conditions(self) -> dict[str, types.Health]:
        """Condition of each volume by id, of a driver with LIST_VOLUMES and VOLUME_CONDITION."""
        entries = await self._pages(self._controller.ListVolumes, csi_pb2.ListVolumesRequest(max_entries=PAGE))
        return {entry.volume.volume_id: convert.health(entry.status.volume_condition) for entry in entries}

    async def list_published(self) -> dict[str, frozenset[str]]:
        """Ids of the nodes of each volume by its id, of a driver with LIST_VOLUMES_PUBLISHED_NODES."""
        entries = await self._pages(self._controller.ListVolumes, csi_pb2.ListVolumesRequest(max_entries=PAGE))
        return {entry.volume.volume_id: frozenset(entry.status.published_node_ids) for entry in entries}

    async def attach_volume(
        self,
        volume_id: str,
        node_id: str,
        capability: types.VolumeCapability,
        *,
        read_only: bool = False,
        context: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """ControllerPublishVolume: return the publish context, for the node's calls. Idempotent.

        read_only: only of a driver with PUBLISH_READONLY.
        """
        request = csi_pb2.ControllerPublishVolumeRequest(
            volume_id=volume_id,
            node_id=node_id,
            volume_capability=volume_capability(capability),
            readonly=read_only,
            secrets=secrets or {},
            volume_context=context or {},
        )
        answer = await self._call(self._controller.ControllerPublishVolume, request, self._node_timeout)
        return dict(answer.publish_context)

    async def detach_volume(self, volume_id: str, node_id: str, *, secrets: Mapping[str, str] | None = None) -> None:
        """ControllerUnpublishVolume; success when the volume is not published to the node. Idempotent."""
        request = csi_pb2.ControllerUnpublishVolumeRequest(volume_id=volume_id, node_id=node_id, secrets=secrets or {})
        await self._call(self._controller.ControllerUnpublishVolume, request, self._node_timeout)

    async def validate(self, volume_id: str, capabilities: Sequence[types.VolumeCapability]) -> str | None:
        """None when the volume supports these capabilities, else the driver's reason ("" if it gives none)."""
        request = csi_pb2.ValidateVolumeCapabilitiesRequest(
            volume_id=volume_id,
            volume_capabilities=[volume_capability(item) for item in capabilities],
        )
        answer = await self._call(self._controller.ValidateVolumeCapabilities, request)
        return None if answer.HasField("confirmed") else answer.message

    async def create_snapshot(
        self,
        name: str,
        volume_id: str,
        *,
        parameters: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> types.ListedSnapshot:
        """Create a snapshot of a volume. The name is its identity: idempotent.

        It may not be ready yet: the caller repeats the call until it is.
        """
        request = csi_pb2.CreateSnapshotRequest(
            source_volume_id=volume_id, name=name, parameters=parameters or {}, secrets=secrets or {}
        )
        return convert.snapshot((await self._call(self._controller.CreateSnapshot, request)).snapshot)

    async def delete_snapshot(self, snapshot_id: str, *, secrets: Mapping[str, str] | None = None) -> None:
        """Delete a snapshot; an unknown one is success."""
        request = csi_pb2.DeleteSnapshotRequest(snapshot_id=snapshot_id, secrets=secrets or {})
        await self._call(self._controller.DeleteSnapshot, request)

    async def list_snapshots(self) -> list[types.ListedSnapshot]:
        """All snapshots, fetched page by page."""
        entries = await self._pages(self._controller.ListSnapshots, csi_pb2.ListSnapshotsRequest(max_entries=PAGE))
        return [convert.snapshot(entry.snapshot) for entry in entries]

    async def find_snapshot(self, snapshot_id: str) -> types.ListedSnapshot | None:
        """One snapshot, of a driver with LIST_SNAPSHOTS; None when there is none of that id."""
        request = csi_pb2.ListSnapshotsRequest(snapshot_id=snapshot_id)
        found = await self._pages(self._controller.ListSnapshots, request)
        return next((convert.snapshot(e.snapshot) for e in found if e.snapshot.snapshot_id == snapshot_id), None)

    async def get_volume(self, volume_id: str) -> tuple[types.CreatedVolume, types.Health]:
        """One volume and its condition, of a driver with GET_VOLUME."""
        request = csi_pb2.ControllerGetVolumeRequest(volume_id=volume_id)
        answer = await self._call(self._controller.ControllerGetVolume, request)
        return convert.created_volume(answer.volume), convert.health(answer.status.volume_condition)

    # GroupController

    async def reclaim_volume(self, volume_id: str, why: str = "") -> types.ReclaimState:
        """Delete the data of an unused volume of tonnage's driver for good. Idempotent.

        why: the reason with which later uses are rejected; "" only asks for the state. The first reason stays.
        """
        request = inventory_pb2.ReclaimVolumeRequest(volume_id=volume_id, why=why)
        answer = await self._call(self._reclaim.ReclaimVolume, request)
        return types.ReclaimState(answer.why, answer.in_use)

    async def delete_unused_volume(self, volume_id: str, *, copies: bool = False, ask: bool = False) -> str:
        """Delete a volume of tonnage's driver that no pod ever had, by its record. Idempotent.

        copies: also one that was made with content. ask: delete nothing. Returns why it stays, "" for a volume that is
        gone, or would be.
        """
        request = inventory_pb2.DeleteUnusedVolumeRequest(volume_id=volume_id, copies=copies, ask=ask)
        return (await self._call(self._reclaim.DeleteUnusedVolume, request)).why

    async def restore_volume(self, volume_id: str) -> None:
        """Make a volume of a deleted one of tonnage's driver. Idempotent."""
        await self._call(self._trash.RestoreVolume, inventory_pb2.RestoreVolumeRequest(volume_id=volume_id))

    async def create_group_snapshot(
        self,
        name: str,
        source_volume_ids: Sequence[str],
        *,
        parameters: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> types.ListedGroup:
        """Create snapshots of several volumes at one moment, or none. The name is its identity: idempotent.

        It may not be ready yet: the caller repeats the call until it is.
        """
        request = csi_pb2.CreateVolumeGroupSnapshotRequest(
            name=name, source_volume_ids=source_volume_ids, parameters=parameters or {}, secrets=secrets or {}
        )
        return convert.group((await self._call(self._groups.CreateVolumeGroupSnapshot, request)).group_snapshot)

    async def delete_group_snapshot(
        self, group_id: str, snapshot_ids: Sequence[str] = (), *, secrets: Mapping[str, str] | None = None
    ) -> None:
        """Delete a group snapshot with its members; an unknown one is success. snapshot_ids: its members."""
        request = csi_pb2.DeleteVolumeGroupSnapshotRequest(
            group_snapshot_id=group_id, snapshot_ids=snapshot_ids, secrets=secrets or {}
        )
        await self._call(self._groups.DeleteVolumeGroupSnapshot, request)

    async def get_group_snapshot(self, group_id: str, snapshot_ids: Sequence[str] = ()) -> types.ListedGroup:
        """One group snapshot with its members. snapshot_ids: its members. Raises: CsiError, NOT_FOUND for none."""
        request = csi_pb2.GetVolumeGroupSnapshotRequest(group_snapshot_id=group_id, snapshot_ids=snapshot_ids)
        return convert.group((await self._call(self._groups.GetVolumeGroupSnapshot, request)).group_snapshot)

    # Node

    async def node_info(self) -> types.NodeInfo:
        """The driver's name for its node, and the node's topology."""
        answer = await self._call(self._node.NodeGetInfo, csi_pb2.NodeGetInfoRequest(), self._node_timeout)
        return types.NodeInfo(answer.node_id, answer.max_volumes_per_node, dict(answer.accessible_topology.segments))

    async def node_capabilities(self) -> frozenset[str]:
        """Capabilities of the node service by name ("STAGE_UNSTAGE_VOLUME")."""
        request = csi_pb2.NodeGetCapabilitiesRequest()
        answer = await self._call(self._node.NodeGetCapabilities, request, self._node_timeout)
        kinds = csi_pb2.NodeServiceCapability.RPC.Type
        return convert.names_of(kinds, (item.rpc.type for item in answer.capabilities))

    async def stage(
        self,
        volume_id: str,
        staging: Path | str,
        capability: types.VolumeCapability,
        *,
        context: Context = None,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        """Stage a volume at the staging path, which exists."""
        request = csi_pb2.NodeStageVolumeRequest(
            volume_id=volume_id,
            staging_target_path=str(staging),
            volume_capability=volume_capability(capability),
            secrets=secrets or {},
            **_contexts(context),
        )
        await self._call(self._node.NodeStageVolume, request, self._node_timeout)

    async def unstage(self, volume_id: str, staging: Path | str) -> None:
        """Unstage a volume; success when nothing is there."""
        request = csi_pb2.NodeUnstageVolumeRequest(volume_id=volume_id, staging_target_path=str(staging))
        await self._call(self._node.NodeUnstageVolume, request, self._node_timeout)

    async def publish(
        self,
        volume_id: str,
        target: Path | str,
        capability: types.VolumeCapability,
        *,
        staging: Path | str = "",
        readonly: bool = False,
        context: Context = None,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        """Publish a volume at target, whose parent exists. staging: "" for drivers without staging."""
        request = csi_pb2.NodePublishVolumeRequest(
            volume_id=volume_id,
            staging_target_path=str(staging),
            target_path=str(target),
            volume_capability=volume_capability(capability),
            readonly=readonly,
            secrets=secrets or {},
            **_contexts(context),
        )
        await self._call(self._node.NodePublishVolume, request, self._node_timeout)

    async def unpublish(self, volume_id: str, target: Path | str) -> None:
        """Unpublish a volume; success when nothing is there."""
        request = csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=str(target))
        await self._call(self._node.NodeUnpublishVolume, request, self._node_timeout)

    async def expand(
        self,
        volume_id: str,
        path: Path | str,
        size: int,
        capability: types.VolumeCapability,
        *,
        staging: Path | str = "",
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        """Grow what is published at path to `size` bytes, of a driver whose node service has EXPAND_VOLUME."""
        request = csi_pb2.NodeExpandVolumeRequest(
            volume_id=volume_id,
            volume_path=str(path),
            capacity_range=csi_pb2.CapacityRange(required_bytes=size),
            staging_target_path=str(staging),
            volume_capability=volume_capability(capability),
            secrets=secrets or {},
        )
        await self._call(self._node.NodeExpandVolume, request, self._node_timeout)

    async def expand_volume(
        self,
        volume_id: str,
        size: int,
        *,
        limit: int = 0,
        capability: types.VolumeCapability | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> types.Expanded:
        """Expand a volume to at least `size` bytes, of a driver whose controller service has EXPAND_VOLUME."""
        request = csi_pb2.ControllerExpandVolumeRequest(
            volume_id=volume_id,
            capacity_range=csi_pb2.CapacityRange(required_bytes=size, limit_bytes=limit),
            secrets=secrets or {},
            volume_capability=None if capability is None else volume_capability(capability),
        )
        answer = await self._call(self._controller.ControllerExpandVolume, request)
        return types.Expanded(answer.capacity_bytes, answer.node_expansion_required)

    async def volume_use(self, volume_id: str, path: Path | str) -> types.VolumeUse:
        """Use and condition of a volume that is published at path, of a driver with GET_VOLUME_STATS."""
        request = csi_pb2.NodeGetVolumeStatsRequest(volume_id=volume_id, volume_path=str(path))
        return convert.volume_use(await self._call(self._node.NodeGetVolumeStats, request, self._node_timeout))

    # How

    @cached_property
    def _identity(self) -> csi_grpc.IdentityStub:
        return csi_grpc.IdentityStub(self._connection.channel)

    @cached_property
    def _controller(self) -> csi_grpc.ControllerStub:
        return csi_grpc.ControllerStub(self._connection.channel)

    @cached_property
    def _groups(self) -> csi_grpc.GroupControllerStub:
        return csi_grpc.GroupControllerStub(self._connection.channel)

    @cached_property
    def _reclaim(self) -> inventory_grpc.ReclaimStub:
        return inventory_grpc.ReclaimStub(self._connection.channel)

    @cached_property
    def _trash(self) -> inventory_grpc.TrashStub:
        return inventory_grpc.TrashStub(self._connection.channel)

    @cached_property
    def _node(self) -> csi_grpc.NodeStub:
        return csi_grpc.NodeStub(self._connection.channel)

    async def _call(
        self, method: UnaryUnaryMethod[Any, Answer], request: object, timeout: float | None = None
    ) -> Answer:
        if not trace.is_on():
            return await self._counted(method, request, timeout)
        attributes = {**request_text.attributes(request), "csi.driver": self.driver}
        with trace.span(request_text.span_name(method.name), attributes, kind="client"):
            return await self._counted(method, request, timeout)

    async def _pages(self, method: UnaryUnaryMethod[Any, Any], request: Any) -> list[Any]:
        """The entries of all pages of a list."""
        entries: list[Any] = []
        while True:
            answer = await self._call(method, request)
            entries.extend(answer.entries)
            request.starting_token = answer.next_token
            if not answer.next_token:
                return entries

    async def _counted(self, method: UnaryUnaryMethod[Any, Answer], request: object, timeout: float | None) -> Answer:
        started = time.monotonic()
        code = Code.CANCELLED
        try:
            answer = await self._connection.call(method, request, timeout or self._timeout)
        except CsiError as failure:
            code = failure.code
            raise
        else:
            code = Code.OK
            return answer
        finally:
            key = (self.driver, method.name, code)
            if (counter := self._counters.get(key)) is None:
                counter = self._counters[key] = CSI_OPERATIONS.labels(self.driver, method.name, label_of(code))
            counter.observe(time.monotonic() - started)


def _contexts(context: Context) -> dict[str, Mapping[str, str]]:
    """The fields of a request."""
    if isinstance(context, types.AttachedContext):
        return {"volume_context": context.volume, "publish_context": context.publish}
    return {"volume_context": context or {}}
