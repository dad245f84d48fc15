"""The CSI Controller service of a Cinder back end (CSI 1.12). No topology: every node may use every volume."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import Int64Value

from tonnage.base.errors import AlreadyExistsError, InvalidError, NotFoundError, OutOfRangeError, PreconditionError
from tonnage.cinder.child import Child
from tonnage.cinder.names import GI, connector, gibibytes, wanted
from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.driver import safe_name
from tonnage.csi.driver.parameters import Use, check_capabilities
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api.names import CSI_PREFIX

CONNECTION = "connection"
"""Key of the publish context: how the node reaches the volume, as JSON. It holds secrets."""
COPY = "copy"
"""Key of the volume context: "true" where the volume began as a copy, whose file system has its source's UUID."""
_AFTER = "after:"
FSTYPES = ("ext4", "xfs")
_RPC = csi_pb2.ControllerServiceCapability.RPC
_OFFERED = (
    _RPC.CREATE_DELETE_VOLUME,
    _RPC.PUBLISH_UNPUBLISH_VOLUME,
    _RPC.LIST_VOLUMES,
    _RPC.LIST_VOLUMES_PUBLISHED_NODES,
    _RPC.GET_CAPACITY,
    _RPC.CREATE_DELETE_SNAPSHOT,
    _RPC.LIST_SNAPSHOTS,
    _RPC.CLONE_VOLUME,
    _RPC.EXPAND_VOLUME,
)


class CinderController:
    """The Controller service."""

    def __init__(self, child: Child, backends: Sequence[str]) -> None:
        """backends: their names, the default one first."""
        self._child, self._backends = child, backends

    async def ControllerGetCapabilities(
        self, _request: csi_pb2.ControllerGetCapabilitiesRequest
    ) -> csi_pb2.ControllerGetCapabilitiesResponse:
        """Capabilities of the service."""
        offered = [csi_pb2.ControllerServiceCapability(rpc=_RPC(type=kind)) for kind in _OFFERED]
        return csi_pb2.ControllerGetCapabilitiesResponse(capabilities=offered)

    async def CreateVolume(self, request: csi_pb2.CreateVolumeRequest) -> csi_pb2.CreateVolumeResponse:
        """Create a volume of whole GiB. Idempotent by name.

        Raises: InvalidError, ExhaustedError, OutOfRangeError, AlreadyExistsError; NotFoundError without its source.
        """
        check_use(request.volume_capabilities)
        about = wanted(request.parameters, self._backends)
        name, source = safe_name(request.name), _source(request)
        asked = request.capacity_range
        found = await self._child.call("get", name=name)
        if found is None:
            size = gibibytes(asked, await self._least(source, asked.required_bytes))
            found = await self._child.call("create", name=name, size=size, source=source, **vars(about))
        size = found["size"] * GI
        if size < asked.required_bytes or 0 < asked.limit_bytes < size:
            raise AlreadyExistsError(f"volume {name} exists with {size} bytes")
        if (found["backend"], found["source"]) != (about.backend, source):
            was = f"on back end {found['backend']}, from {found['source'] or 'nothing'}"
            raise AlreadyExistsError(f"volume {name} exists {was}: use another name")
        return csi_pb2.CreateVolumeResponse(volume=_volume(found))

    async def _least(self, source: str, required: int) -> int:
        """The least size of a volume in GiB. Raises: NotFoundError, OutOfRangeError for less than its source has."""
        if not source:
            return 1
        kind, _, name = source.partition("/")
        found = await self._child.call("get-snapshot" if kind == "snapshot" else "get", name=name)
        if found is None:
            raise NotFoundError(f"{kind} {name} does not exist")
        if 0 < required < found["size"] * GI:
            raise OutOfRangeError(f"{kind} {name} has {found['size'] * GI} bytes, requested {required}: want as much")
        return int(found["size"])

    async def DeleteVolume(self, request: csi_pb2.DeleteVolumeRequest) -> csi_pb2.DeleteVolumeResponse:
        """Delete a volume; an unknown one is success. Raises: PreconditionError while attached or with snapshots."""
        await self._child.call("delete", name=request.volume_id)
        return csi_pb2.DeleteVolumeResponse()

    async def ControllerPublishVolume(
        self, request: csi_pb2.ControllerPublishVolumeRequest
    ) -> csi_pb2.ControllerPublishVolumeResponse:
        """Export a volume to a node. Idempotent. Raises: NotFoundError, PreconditionError while another node has it."""
        if request.readonly:
            raise InvalidError("readonly is not offered (no PUBLISH_READONLY)")
        check_use([request.volume_capability])
        node = connector(request.node_id)
        found = await self._child.call("connect", name=request.volume_id, connector=node)
        return csi_pb2.ControllerPublishVolumeResponse(publish_context={CONNECTION: json.dumps(found)})

    async def ControllerUnpublishVolume(
        self, request: csi_pb2.ControllerUnpublishVolumeRequest
    ) -> csi_pb2.ControllerUnpublishVolumeResponse:
        """End the export to a node, or to all without node_id; success where there is none."""
        await self._child.call("disconnect", name=request.volume_id, node=request.node_id)
        return csi_pb2.ControllerUnpublishVolumeResponse()

    async def ValidateVolumeCapabilities(
        self, request: csi_pb2.ValidateVolumeCapabilitiesRequest
    ) -> csi_pb2.ValidateVolumeCapabilitiesResponse:
        """Whether a volume has these capabilities. Raises: NotFoundError."""
        await self._get(request.volume_id)
        try:
            check_use(request.volume_capabilities)
        except InvalidError as reason:
            if not request.volume_capabilities:
                raise
            return csi_pb2.ValidateVolumeCapabilitiesResponse(message=str(reason))
        confirmed = csi_pb2.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
        )
        return csi_pb2.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    async def ControllerExpandVolume(
        self, request: csi_pb2.ControllerExpandVolumeRequest
    ) -> csi_pb2.ControllerExpandVolumeResponse:
        """Expand a volume to whole GiB; success where it is large enough. Raises: NotFoundError, OutOfRangeError."""
        size = gibibytes(request.capacity_range)
        found = await self._get(request.volume_id)
        if size > found["size"]:
            found = await self._child.call("extend", name=request.volume_id, size=size)
        return csi_pb2.ControllerExpandVolumeResponse(capacity_bytes=found["size"] * GI, node_expansion_required=True)

    async def ListVolumes(self, request: csi_pb2.ListVolumesRequest) -> csi_pb2.ListVolumesResponse:
        """Volumes by id, with the nodes that have them."""
        kinds = csi_pb2.ListVolumesResponse
        page, token = _page(await self._child.call("list-volumes"), request)
        entries = [
            kinds.Entry(volume=_volume(found), status=kinds.VolumeStatus(published_node_ids=found["nodes"]))
            for found in page
        ]
        return kinds(entries=entries, next_token=token)

    async def GetCapacity(self, request: csi_pb2.GetCapacityRequest) -> csi_pb2.GetCapacityResponse:
        """Free bytes of a back end's pool, for every node.

        Raises: InvalidError for unknown parameters and pools, PreconditionError where the storage gives no number.
        """
        about = wanted(request.parameters, self._backends)
        pools: Mapping[str, Any] = await self._child.call("stats", backend=about.backend)
        pool = about.pool or next(iter(pools), "")
        if pool not in pools:
            raise InvalidError(f"back end {about.backend} has no pool {pool[:60]!r}: it has {', '.join(pools)}")
        free = pools[pool]
        if isinstance(free, bool) or not isinstance(free, int | float):
            raise PreconditionError(
                f"pool {pool} of back end {about.backend}: the storage says that {str(free)[:40]!r} is free,"
                " which is no number; set storageCapacity: false in the CSIDriver"
            )
        least, free = Int64Value(value=GI), max(0, int(free)) * GI
        return csi_pb2.GetCapacityResponse(
            available_capacity=free, maximum_volume_size=Int64Value(value=free), minimum_volume_size=least
        )

    async def CreateSnapshot(self, request: csi_pb2.CreateSnapshotRequest) -> csi_pb2.CreateSnapshotResponse:
        """Create a snapshot. Idempotent by name. Raises: InvalidError, NotFoundError, AlreadyExistsError."""
        if unknown := [key for key in request.parameters if not key.startswith(CSI_PREFIX)]:
            raise InvalidError(f"unknown parameter {unknown[0][:60]!r} of a VolumeSnapshotClass: there are none")
        if not request.source_volume_id:
            raise InvalidError("source_volume_id is missing")
        name = safe_name(request.name)
        found = await self._child.call("get-snapshot", name=name)
        if found is None:
            await self._get(request.source_volume_id)
            found = await self._child.call("snapshot", name=name, volume=request.source_volume_id)
        if found["volume"] != request.source_volume_id:
            raise AlreadyExistsError(f"snapshot {name} exists and is of volume {found['volume']}")
        return csi_pb2.CreateSnapshotResponse(snapshot=_snapshot(found))

    async def DeleteSnapshot(self, request: csi_pb2.DeleteSnapshotRequest) -> csi_pb2.DeleteSnapshotResponse:
        """Delete a snapshot; an unknown one is success."""
        await self._child.call("delete-snapshot", name=request.snapshot_id)
        return csi_pb2.DeleteSnapshotResponse()

    async def ListSnapshots(self, request: csi_pb2.ListSnapshotsRequest) -> csi_pb2.ListSnapshotsResponse:
        """Snapshots by id, filtered by id and by volume."""
        found = [
            snapshot
            for snapshot in await self._child.call("list-snapshots")
            if request.snapshot_id in ("", snapshot["name"]) and request.source_volume_id in ("", snapshot["volume"])
        ]
        page, token = _page(found, request)
        entries = [csi_pb2.ListSnapshotsResponse.Entry(snapshot=_snapshot(one)) for one in page]
        return csi_pb2.ListSnapshotsResponse(entries=entries, next_token=token)

    async def _get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] | None = await self._child.call("get", name=name)
        if found is None:
            raise NotFoundError(f"volume {name} does not exist")
        return found


def check_use(capabilities: Sequence[csi_pb2.VolumeCapability]) -> Use:
    """Check capabilities. Raises: InvalidError for more than one node, and for other file systems than ext4 and xfs."""
    use = check_capabilities(capabilities)
    if use.fstype not in ("", *FSTYPES):
        raise InvalidError(f"file system {use.fstype[:40]!r} is not offered: want {' or '.join(FSTYPES)}")
    return use


def _source(request: csi_pb2.CreateVolumeRequest) -> str:
    """The content source, as `snapshot/NAME` or `volume/NAME`, "" for none."""
    if not request.HasField("volume_content_source"):
        return ""
    given = request.volume_content_source
    if given.WhichOneof("type") == "snapshot":
        return f"snapshot/{given.snapshot.snapshot_id}"
    return f"volume/{given.volume.volume_id}"


def _volume(found: Mapping[str, Any]) -> csi_pb2.Volume:
    answer = csi_pb2.Volume(volume_id=found["name"], capacity_bytes=found["size"] * GI)
    kind, _, name = found["source"].partition("/")
    if not kind:
        return answer
    answer.volume_context[COPY] = "true"
    kinds = csi_pb2.VolumeContentSource
    snapshot = kinds(snapshot=kinds.SnapshotSource(snapshot_id=name))
    answer.content_source.CopyFrom(snapshot if kind == "snapshot" else kinds(volume=kinds.VolumeSource(volume_id=name)))
    return answer


def _snapshot(found: Mapping[str, Any]) -> csi_pb2.Snapshot:
    made = Timestamp()
    made.FromMilliseconds(int(found["created"] * 1000))
    return csi_pb2.Snapshot(
        snapshot_id=found["name"],
        source_volume_id=found["volume"],
        size_bytes=found["size"] * GI,
        creation_time=made,
        ready_to_use=True,
    )


def _page(
    found: Sequence[dict[str, Any]], request: csi_pb2.ListVolumesRequest | csi_pb2.ListSnapshotsRequest
) -> tuple[list[dict[str, Any]], str]:
    """The page that a request names, and the token of the next one: the last name, so it stays valid meanwhile.

    Raises: InvalidError, CsiError for a token that is not of ours.
    """
    if request.max_entries < 0:
        raise InvalidError(f"max_entries is {request.max_entries}, want 0 or more")
    if request.starting_token and not request.starting_token.startswith(_AFTER):
        raise CsiError(Code.ABORTED, f"starting_token {request.starting_token!r} is not of ours: start again without")
    after = request.starting_token.removeprefix(_AFTER)
    rest = sorted((one for one in found if one["name"] > after), key=itemgetter("name"))
    page = rest[: request.max_entries or None]
    return page, f"{_AFTER}{page[-1]['name']}" if len(page) < len(rest) else ""
