"""Conversion between the client's types and protobuf."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from tonnage.csi._proto import csi_pb2
from tonnage.csi.client import types


def volume_capability(capability: types.VolumeCapability) -> csi_pb2.VolumeCapability:
    """One capability."""
    mode = csi_pb2.VolumeCapability.AccessMode(mode=_MODES[capability.mode])
    if capability.block:
        return csi_pb2.VolumeCapability(access_mode=mode, block=csi_pb2.VolumeCapability.BlockVolume())
    mount = csi_pb2.VolumeCapability.MountVolume(
        fs_type=capability.fstype, mount_flags=capability.mount_flags, volume_mount_group=capability.mount_group
    )
    return csi_pb2.VolumeCapability(access_mode=mode, mount=mount)


_MODES = {mode: csi_pb2.VolumeCapability.AccessMode.Mode.Value(mode.name) for mode in types.AccessMode}


def topology_requirement(requirement: types.CsiTopologyRequirement | None) -> csi_pb2.TopologyRequirement | None:
    """A topology requirement; None leaves the field out."""
    if requirement is None:
        return None
    return csi_pb2.TopologyRequirement(
        requisite=[csi_pb2.Topology(segments=place) for place in requirement.requisite],
        preferred=[csi_pb2.Topology(segments=place) for place in requirement.preferred],
    )


def content_source(source: types.ContentSource | None) -> csi_pb2.VolumeContentSource | None:
    """A volume content source; None leaves the field out."""
    if source is None:
        return None
    kinds = csi_pb2.VolumeContentSource
    if source.snapshot_id:
        return kinds(snapshot=kinds.SnapshotSource(snapshot_id=source.snapshot_id))
    return kinds(volume=kinds.VolumeSource(volume_id=source.volume_id))


def created_volume(volume: csi_pb2.Volume) -> types.CreatedVolume:
    """A created volume of a response."""
    source = None
    if volume.HasField("content_source"):
        raw = volume.content_source
        source = types.ContentSource(raw.snapshot.snapshot_id, raw.volume.volume_id)
    return types.CreatedVolume(
        id=volume.volume_id,
        size=volume.capacity_bytes,
        context=dict(volume.volume_context),
        topologies=tuple(dict(place.segments) for place in volume.accessible_topology),
        content=source,
    )


def snapshot(raw: csi_pb2.Snapshot) -> types.ListedSnapshot:
    """A snapshot of a response."""
    return types.ListedSnapshot(
        raw.snapshot_id,
        raw.source_volume_id,
        raw.size_bytes,
        _seconds(raw.creation_time),
        raw.ready_to_use,
        raw.group_snapshot_id,
    )


def group(raw: csi_pb2.VolumeGroupSnapshot) -> types.ListedGroup:
    """A group snapshot of a response."""
    members = tuple(map(snapshot, raw.snapshots))
    return types.ListedGroup(raw.group_snapshot_id, _seconds(raw.creation_time), raw.ready_to_use, members)


def _seconds(time: Timestamp) -> float:
    """Seconds since the epoch."""
    return time.seconds + time.nanos / 1e9


def health(condition: csi_pb2.VolumeCondition) -> types.Health:
    """A condition of a response; a missing one means healthy."""
    return types.Health(condition.abnormal, condition.message)


def volume_use(answer: csi_pb2.NodeGetVolumeStatsResponse) -> types.VolumeUse:
    """Stats of a response; a unit that is missing counts 0."""
    by_unit = {usage.unit: usage for usage in answer.usage}
    size = by_unit.get(csi_pb2.VolumeUsage.BYTES, csi_pb2.VolumeUsage())
    inodes = by_unit.get(csi_pb2.VolumeUsage.INODES, csi_pb2.VolumeUsage())
    return types.VolumeUse(
        size.total,
        size.used,
        size.available,
        inodes.total,
        inodes.used,
        inodes.available,
        health(answer.volume_condition) if answer.HasField("volume_condition") else None,
    )


def capacity(answer: csi_pb2.GetCapacityResponse) -> types.GetCapacityResult:
    """A GetCapacity result; fields that the driver leaves out are None."""
    return types.GetCapacityResult(
        available=answer.available_capacity,
        maximum=answer.maximum_volume_size.value if answer.HasField("maximum_volume_size") else None,
        minimum=answer.minimum_volume_size.value if answer.HasField("minimum_volume_size") else None,
    )


def plugin_capabilities(answer: csi_pb2.GetPluginCapabilitiesResponse) -> frozenset[str]:
    """Names of services, and of kinds of expansion with the prefix "EXPANSION_"."""
    kinds = csi_pb2.PluginCapability
    raw = list(answer.capabilities)
    services = (item.service.type for item in raw if item.HasField("service"))
    expansions = (item.volume_expansion.type for item in raw if item.HasField("volume_expansion"))
    expands = names_of(kinds.VolumeExpansion.Type, expansions)
    return names_of(kinds.Service.Type, services) | {f"EXPANSION_{name}" for name in expands}


def names_of(kinds: Any, values: Iterable[int]) -> frozenset[str]:
    """Names of an enum's values, without those of a newer CSI, which have no name here."""
    known = {number: name for name, number in kinds.items()}
    return frozenset(known[value] for value in values if known.get(value, "UNKNOWN") != "UNKNOWN")
