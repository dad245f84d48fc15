"""snapshot.storage.k8s.io/v1, with only the fields that we read."""

from __future__ import annotations

from tonnage.kubernetes.api.meta import KubeObject, Object, ObjectReference

FINALIZER_PREFIX = "snapshot.storage.kubernetes.io/"
AS_SOURCE = FINALIZER_PREFIX + "volumesnapshot-as-source-protection"
"""Finalizer of every VolumeSnapshot."""
BOUND = FINALIZER_PREFIX + "volumesnapshot-bound-protection"
"""Finalizer of a VolumeSnapshot whose content has the policy Delete."""
PROVISIONER_SOURCE = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
"""Finalizer of a VolumeSnapshot that an external-provisioner restores; tonnage writes none."""
CONTENT_BOUND = FINALIZER_PREFIX + "volumesnapshotcontent-bound-protection"
"""Finalizer of a content: its snapshot is to be deleted first, or stays by its policy."""
MANAGED_BY = FINALIZER_PREFIX + "managed-by"
"""Label of a content: the name of the node whose driver has the snapshot."""
BEING_DELETED = FINALIZER_PREFIX + "volumesnapshot-being-deleted"
"""Annotation of a content whose VolumeSnapshot is being deleted: "yes"."""
SECRET_NAME = FINALIZER_PREFIX + "deletion-secret-name"
SECRET_NAMESPACE = FINALIZER_PREFIX + "deletion-secret-namespace"
"""Annotations of a content: the Secret of its class, as the snapshot controller resolved it."""
DEFAULT_CLASS = FINALIZER_PREFIX + "is-default-class"
ALLOW_MODE_CHANGE = FINALIZER_PREFIX + "allow-volume-mode-change"
"""Annotation of a content, by an administrator: its restore may change the volume mode."""


def content_name(uid: str) -> str:
    """The name of the content of a VolumeSnapshot with that uid."""
    return f"snapcontent-{uid}"


def snapshot_name(uid: str) -> str:
    """The CSI name of the snapshot of a VolumeSnapshot with that uid."""
    return f"snapshot-{uid}"


class SnapshotError(Object, frozen=True):
    """Why a snapshot is not ready."""

    message: str = ""
    time: str = ""


class VolumeSnapshotSource(Object, frozen=True):
    """Source of a VolumeSnapshot: a claim, or an existing content."""

    persistent_volume_claim_name: str = ""
    volume_snapshot_content_name: str = ""


class VolumeSnapshotSpec(Object, frozen=True):
    """Spec of a VolumeSnapshot."""

    source: VolumeSnapshotSource = VolumeSnapshotSource()
    volume_snapshot_class_name: str | None = None


class VolumeSnapshotStatus(Object, frozen=True):
    """Status of a VolumeSnapshot. restore_size: a quantity."""

    bound_volume_snapshot_content_name: str = ""
    creation_time: str = ""
    ready_to_use: bool | None = None
    restore_size: str = ""
    error: SnapshotError | None = None
    volume_group_snapshot_name: str = ""


class VolumeSnapshot(KubeObject, frozen=True):
    """A snapshot, as the user of a namespace sees it."""

    spec: VolumeSnapshotSpec = VolumeSnapshotSpec()
    status: VolumeSnapshotStatus = VolumeSnapshotStatus()


class VolumeSnapshotContentSource(Object, frozen=True):
    """Source of a content: a volume to be snapshotted, or an existing snapshot."""

    volume_handle: str = ""
    snapshot_handle: str = ""


class VolumeSnapshotContentSpec(Object, frozen=True):
    """Spec of a VolumeSnapshotContent."""

    volume_snapshot_ref: ObjectReference = ObjectReference()
    deletion_policy: str = ""
    driver: str = ""
    source: VolumeSnapshotContentSource = VolumeSnapshotContentSource()
    volume_snapshot_class_name: str = ""
    source_volume_mode: str = ""


class VolumeSnapshotContentStatus(Object, frozen=True):
    """Status of a VolumeSnapshotContent. creation_time: nanoseconds since 1970; restore_size: bytes."""

    snapshot_handle: str = ""
    creation_time: int | None = None
    ready_to_use: bool | None = None
    restore_size: int | None = None
    error: SnapshotError | None = None
    volume_group_snapshot_handle: str = ""


class VolumeSnapshotContent(KubeObject, frozen=True):
    """The counterpart of a PersistentVolume for a snapshot."""

    spec: VolumeSnapshotContentSpec = VolumeSnapshotContentSpec()
    status: VolumeSnapshotContentStatus = VolumeSnapshotContentStatus()

    @property
    def handle(self) -> str:
        """The CSI id of its snapshot, "" while there is none."""
        return self.status.snapshot_handle or self.spec.source.snapshot_handle


class VolumeSnapshotClass(KubeObject, frozen=True):
    """The counterpart of a StorageClass for snapshots."""

    driver: str = ""
    deletion_policy: str = ""
    parameters: dict[str, str] = {}
