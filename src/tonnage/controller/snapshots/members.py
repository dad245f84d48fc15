"""The members of a group: a VolumeSnapshot and a content for each snapshot that the driver took. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tonnage.kubernetes.api.core import PersistentVolume
from tonnage.kubernetes.api.group_snapshot import (
    GROUP_HANDLE,
    IN_GROUP,
    VolumeGroupSnapshot,
    VolumeGroupSnapshotContent,
    VolumeSnapshotInfo,
    group_of,
    member_names,
)
from tonnage.kubernetes.api.kinds import GROUP_SNAPSHOTS, SNAPSHOT_CONTENTS, SNAPSHOTS
from tonnage.kubernetes.api.snapshot import (
    AS_SOURCE,
    BOUND,
    CONTENT_BOUND,
    MANAGED_BY,
    VolumeSnapshot,
    VolumeSnapshotContent,
)
from tonnage.kubernetes.client.object_write import has_fields

MEMBERS = "snapshots: members by uid of their group"


def members(snapshot: VolumeSnapshot) -> Iterable[str]:
    """The uid of the group that a snapshot is a member of."""
    owner = group_of(snapshot)
    return (owner.uid,) if owner is not None else ()


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """One snapshot of a group: what the driver said, and the objects that there are. volume: its PV, while known."""

    info: VolumeSnapshotInfo
    snapshot: VolumeSnapshot | None = None
    content: VolumeSnapshotContent | None = None
    volume: PersistentVolume | None = None


def is_complete(member: MemberFacts) -> bool:
    """Whether nothing of a member is left to make."""
    content = member.content
    return member.snapshot is not None and content is not None and has_fields(content.status, member_status(member))


def member_body(group: VolumeGroupSnapshot, member: MemberFacts) -> dict[str, Any]:
    """The whole VolumeSnapshot of a member. Without its claim it names its content."""
    meta = group.metadata
    name, content = member_names(meta.uid, member_of(member.info))
    claim = member.volume.spec.claim_ref if member.volume is not None else None
    source = {"volumeSnapshotContentName": content}
    if claim is not None and claim.namespace == meta.namespace:
        source = {"persistentVolumeClaimName": claim.name}
    owner = {
        "apiVersion": GROUP_SNAPSHOTS.api_version, "kind": GROUP_SNAPSHOTS.kind, "name": meta.name, "uid": meta.uid,
    }  # fmt: skip
    head = {"name": name, "finalizers": [AS_SOURCE, BOUND, IN_GROUP], "ownerReferences": [owner]}
    return {**SNAPSHOTS.head(), "metadata": head, "spec": {"source": source}}


def member_content_body(
    content: VolumeGroupSnapshotContent, member: MemberFacts, snapshot: VolumeSnapshot
) -> dict[str, Any]:
    """The whole content of a member, but for its status. snapshot: its VolumeSnapshot."""
    meta = snapshot.metadata
    made: dict[str, Any] = {
        "name": member_names(content.spec.volume_group_snapshot_ref.uid, member_of(member.info))[1],
        "finalizers": [CONTENT_BOUND],
        "annotations": {GROUP_HANDLE: content.handle},
    }
    if node := content.metadata.labels.get(MANAGED_BY):
        made["labels"] = {MANAGED_BY: node}
    ref = {
        "apiVersion": SNAPSHOTS.api_version, "kind": SNAPSHOTS.kind, "namespace": meta.namespace, "name": meta.name,
        "uid": meta.uid,
    }  # fmt: skip
    info, is_new = member.info, content.spec.source.group_snapshot_handles is None
    spec: dict[str, Any] = {
        "volumeSnapshotRef": ref,
        "source": {"volumeHandle": info.volume_handle} if is_new else {"snapshotHandle": info.snapshot_handle},
        "driver": content.spec.driver,
        "deletionPolicy": content.spec.deletion_policy,
    }
    if member.volume is not None:
        spec["sourceVolumeMode"] = member.volume.spec.volume_mode or "Filesystem"
    return {**SNAPSHOT_CONTENTS.head(), "metadata": made, "spec": spec}


def member_status(member: MemberFacts) -> dict[str, Any]:
    """The status of a member's content, as the driver answered for the group."""
    info = member.info
    status: dict[str, Any] = {"snapshotHandle": info.snapshot_handle, "readyToUse": bool(info.ready_to_use)}
    if member.content is not None:
        status["volumeGroupSnapshotHandle"] = member.content.metadata.annotations.get(GROUP_HANDLE, "")
    if info.creation_time:
        status["creationTime"] = info.creation_time
    if info.restore_size:
        status["restoreSize"] = info.restore_size
    return status


def member_of(info: VolumeSnapshotInfo) -> str:
    """What the name of a member is made of: the volume, or the snapshot where the driver does not tell the volume."""
    return info.volume_handle or info.snapshot_handle
