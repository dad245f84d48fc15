"""snapshot.storage.k8s.io/v1, with only the fields that we read."""

from __future__ import annotations

from tonnage.api.meta import KubeObject, Object


class SnapshotSource(Object, frozen=True):
    """Source of a content: an existing snapshot, or none where a volume is to be snapshotted."""

    snapshot_handle: str = ""


class VolumeSnapshotContentSpec(Object, frozen=True):
    """Spec of a VolumeSnapshotContent."""

    driver: str = ""
    source: SnapshotSource = SnapshotSource()


class VolumeSnapshotContentStatus(Object, frozen=True):
    """Status of a VolumeSnapshotContent."""

    snapshot_handle: str = ""


class VolumeSnapshotContent(KubeObject, frozen=True):
    """The counterpart of a PersistentVolume for a snapshot."""

    spec: VolumeSnapshotContentSpec = VolumeSnapshotContentSpec()
    status: VolumeSnapshotContentStatus = VolumeSnapshotContentStatus()

    @property
    def handle(self) -> str:
        """The CSI id of its snapshot, "" while there is none."""
        return self.status.snapshot_handle or self.spec.source.snapshot_handle
