"""groupsnapshot.storage.k8s.io/v1, with only the fields that we read.

Names of members are those that external-snapshotter computes, so that either controller finds what the other made.
"""

from __future__ import annotations

import hashlib
import re

from tonnage.kubernetes.api.meta import KubeObject, LabelSelector, Object, ObjectReference, OwnerReference
from tonnage.kubernetes.api.snapshot import (
    SnapshotError,
    VolumeSnapshot,
    VolumeSnapshotContent,
    content_name,
    snapshot_name,
)

GROUP = "groupsnapshot.storage.k8s.io"
_PREFIX = "groupsnapshot.storage.kubernetes.io/"
GROUP_BOUND = _PREFIX + "volumegroupsnapshot-bound-protection"
"""Finalizer of every VolumeGroupSnapshot."""
GROUP_CONTENT_BOUND = _PREFIX + "volumegroupsnapshotcontent-bound-protection"
"""Finalizer of a group content: its snapshots are to be deleted first, or stay by its policy."""
GROUP_BEING_DELETED = _PREFIX + "volumegroupsnapshot-being-deleted"
"""Annotation of a group content whose VolumeGroupSnapshot is being deleted: "yes"."""
GROUP_SECRET_NAME = _PREFIX + "deletion-secret-name"
GROUP_SECRET_NAMESPACE = _PREFIX + "deletion-secret-namespace"
"""Annotations of a group content: the Secret of its class, as the snapshot controller resolved it."""
DEFAULT_GROUP_CLASS = _PREFIX + "is-default-class"
IN_GROUP = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection"
"""Finalizer of a VolumeSnapshot that is a member of a group."""
GROUP_HANDLE = f"{GROUP}/volumeGroupSnapshotHandle"
"""Annotation of the content of a member: the CSI id of the group."""
_MEMBER = re.compile(r"snapshot-([0-9a-f]{64})")


def group_content_name(uid: str) -> str:
    """The name of the content of a VolumeGroupSnapshot with that uid."""
    return f"groupsnapcontent-{uid}"


def group_name(uid: str) -> str:
    """The CSI name of the group snapshot of a VolumeGroupSnapshot with that uid."""
    return f"groupsnapshot-{uid}"


def member_names(uid: str, volume_handle: str) -> tuple[str, str]:
    """The names of VolumeSnapshot and content of one volume in the VolumeGroupSnapshot with that uid."""
    digest = hashlib.sha256((uid + volume_handle).encode()).hexdigest()
    return snapshot_name(digest), content_name(digest)


def has_member_name(snapshot: VolumeSnapshot) -> bool:
    """Whether a VolumeSnapshot has such a name as members have."""
    return _MEMBER.fullmatch(snapshot.metadata.name) is not None


def group_of(snapshot: VolumeSnapshot) -> OwnerReference | None:
    """The VolumeGroupSnapshot that a VolumeSnapshot is a member of, None for a single one."""
    if not has_member_name(snapshot):
        return None
    for owner in snapshot.metadata.owner_references:
        if owner.kind == "VolumeGroupSnapshot" and owner.api_version.partition("/")[0] == GROUP:
            return owner
    return None


def member_content(snapshot: VolumeSnapshot) -> str:
    """The name of a member's content, "" for a single snapshot."""
    found = _MEMBER.fullmatch(snapshot.metadata.name)
    return content_name(found[1]) if found is not None and group_of(snapshot) is not None else ""


def is_member_content(content: VolumeSnapshotContent) -> bool:
    """Whether a content is of a snapshot that is made and deleted with its group."""
    return GROUP_HANDLE in content.metadata.annotations


class VolumeGroupSnapshotSource(Object, frozen=True):
    """Source of a VolumeGroupSnapshot: claims by their labels, or an existing content."""

    selector: LabelSelector | None = None
    volume_group_snapshot_content_name: str = ""


class VolumeGroupSnapshotSpec(Object, frozen=True):
    """Spec of a VolumeGroupSnapshot."""

    source: VolumeGroupSnapshotSource = VolumeGroupSnapshotSource()
    volume_group_snapshot_class_name: str | None = None


class VolumeGroupSnapshotStatus(Object, frozen=True):
    """Status of a VolumeGroupSnapshot."""

    bound_volume_group_snapshot_content_name: str = ""
    creation_time: str = ""
    ready_to_use: bool | None = None
    error: SnapshotError | None = None


class VolumeGroupSnapshot(KubeObject, frozen=True):
    """Snapshots of several volumes of one moment, as the user of a namespace sees them."""

    spec: VolumeGroupSnapshotSpec = VolumeGroupSnapshotSpec()
    status: VolumeGroupSnapshotStatus = VolumeGroupSnapshotStatus()


class GroupSnapshotHandles(Object, frozen=True):
    """CSI ids of an existing group and of its snapshots."""

    volume_group_snapshot_handle: str = ""
    volume_snapshot_handles: list[str] = []


class VolumeGroupSnapshotContentSource(Object, frozen=True):
    """Source of a group content: volumes to be snapshotted, or existing snapshots."""

    volume_handles: list[str] = []
    group_snapshot_handles: GroupSnapshotHandles | None = None


class VolumeGroupSnapshotContentSpec(Object, frozen=True):
    """Spec of a VolumeGroupSnapshotContent."""

    volume_group_snapshot_ref: ObjectReference = ObjectReference()
    deletion_policy: str = ""
    driver: str = ""
    source: VolumeGroupSnapshotContentSource = VolumeGroupSnapshotContentSource()
    volume_group_snapshot_class_name: str = ""


class VolumeSnapshotInfo(Object, frozen=True):
    """One snapshot of a group. creation_time: nanoseconds since 1970; restore_size: bytes."""

    volume_handle: str = ""
    snapshot_handle: str = ""
    creation_time: int | None = None
    ready_to_use: bool | None = None
    restore_size: int | None = None


class VolumeGroupSnapshotContentStatus(Object, frozen=True):
    """Status of a VolumeGroupSnapshotContent."""

    volume_group_snapshot_handle: str = ""
    creation_time: str = ""
    ready_to_use: bool | None = None
    error: SnapshotError | None = None
    volume_snapshot_info_list: list[VolumeSnapshotInfo] = []


class VolumeGroupSnapshotContent(KubeObject, frozen=True):
    """The counterpart of a VolumeSnapshotContent for a group."""

    spec: VolumeGroupSnapshotContentSpec = VolumeGroupSnapshotContentSpec()
    status: VolumeGroupSnapshotContentStatus = VolumeGroupSnapshotContentStatus()

    @property
    def handle(self) -> str:
        """The CSI id of its group, "" while there is none."""
        given = self.spec.source.group_snapshot_handles
        return self.status.volume_group_snapshot_handle or (given.volume_group_snapshot_handle if given else "")

    @property
    def snapshot_handles(self) -> list[str]:
        """The CSI ids of its snapshots, empty while there are none."""
        given = self.spec.source.group_snapshot_handles
        found = [one.snapshot_handle for one in self.status.volume_snapshot_info_list]
        return found or (list(given.volume_snapshot_handles) if given else [])


class VolumeGroupSnapshotClass(KubeObject, frozen=True):
    """The counterpart of a VolumeSnapshotClass for groups."""

    driver: str = ""
    deletion_policy: str = ""
    parameters: dict[str, str] = {}
