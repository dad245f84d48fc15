"""snapshot.storage.k8s.io/v1: the fields that we read."""

from __future__ import annotations

from tonnage.api.meta import KubeObject, Object


class SnapshotSource(Object, frozen=True):
    """What a content is of: an existing snapshot, or a volume of which one is to be made."""

    snapshot_handle: str = ""
    volume_handle: str = ""


class VolumeSnapshotContentSpec(Object, frozen=True):
    """Of a VolumeSnapshotContent."""

    driver: str = ""
    deletion_policy: str = ""
    source: SnapshotSource = SnapshotSource()


class VolumeSnapshotContentStatus(Object, frozen=True):
    """Of a VolumeSnapshotContent."""

    snapshot_handle: str = ""


class VolumeSnapshotContent(KubeObject, frozen=True):
    """To a snapshot what a PersistentVolume is to a volume."""

    spec: VolumeSnapshotContentSpec = VolumeSnapshotContentSpec()
    status: VolumeSnapshotContentStatus = VolumeSnapshotContentStatus()

    @property
    def handle(self) -> str:
        """The CSI id of its snapshot, "" while there is none."""
        return self.status.snapshot_handle or self.spec.source.snapshot_handle
