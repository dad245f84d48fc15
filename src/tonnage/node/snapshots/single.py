"""Single snapshots of one node: what a VolumeSnapshotContent asks of the driver, as csi-snapshotter does per node.

A content that waits to be made has the controller's finalizer, so nothing is made that could be forgotten. A member of
a group is made and deleted with its group: of its content only the label and finalizer are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tonnage.base.aio.tasks import SharedRead
from tonnage.base.errors import InUseError, NotFoundError, UnavailableError
from tonnage.csi.client import types
from tonnage.kubernetes.api.kinds import SNAPSHOT_CONTENTS
from tonnage.kubernetes.api.snapshot import MANAGED_BY, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.deletions import TakenSnapshot
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.snapshots.contents import ContentLoop
from tonnage.node.snapshots.shared import FailureReasons, has_id, has_volume, is_released, pool_of
from tonnage.provisioning.claims.node_scope import DriverInfo
from tonnage.provisioning.claims.snapshot_shape import SINGLE

_REASONS = FailureReasons(not_made="SnapshotCreationFailed", not_deleted="SnapshotDeleteError")
Loop = ContentLoop[VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotClass, types.ListedSnapshot]


def snapshotter(node: NodeContext, informers: Informers) -> Loop:
    """Return the loop over VolumeSnapshotContents of a node."""
    return ContentLoop("snapshots", node, informers, _Snapshots(node), _REASONS, SINGLE)


class _Snapshots:
    """ContentCalls of single snapshots."""

    def __init__(self, node: NodeContext) -> None:
        self._node, self._client = node, node.client
        self._users = SharedRead(self._read_users)

    def is_offered(self, driver: DriverInfo) -> bool:
        return types.CREATE_DELETE_SNAPSHOT in driver.controller

    def status_of(self, made: types.ListedSnapshot, now: float) -> dict[str, Any]:
        status: dict[str, Any] = {
            "snapshotHandle": made.id,
            "creationTime": int((made.created or now) * 1e9),
            "readyToUse": made.ready,
            "error": None,
        }
        if made.size > 0:
            status["restoreSize"] = made.size
        return status

    async def exists(self, content: VolumeSnapshotContent, driver: DriverInfo) -> bool:
        return types.LIST_SNAPSHOTS in driver.controller and await has_id(driver.client.find_snapshot(content.handle))

    async def create(
        self, content: VolumeSnapshotContent, driver: DriverInfo, name: str, **given: Mapping[str, str]
    ) -> types.ListedSnapshot:
        return await driver.client.create_snapshot(name, content.spec.source.volume_handle, **given)

    async def find(self, content: VolumeSnapshotContent, driver: DriverInfo) -> types.ListedSnapshot:
        handle = content.handle
        if types.LIST_SNAPSHOTS not in driver.controller:
            return types.ListedSnapshot(handle, "", 0, 0.0, ready=True)
        found = await driver.client.find_snapshot(handle)
        if found is None:
            node = self._node.scope.node
            raise NotFoundError(f"can not find snapshot for snapshotID {handle[:128]}: driver on node {node} has none")
        return found

    # Deletion

    def taken(self, made: types.ListedSnapshot) -> TakenSnapshot:
        return TakenSnapshot(made.id)

    async def named(self, content: VolumeSnapshotContent, driver: DriverInfo) -> TakenSnapshot | None:
        if content.status.snapshot_handle:
            return TakenSnapshot(content.status.snapshot_handle)
        given = content.spec.source.snapshot_handle
        # An agent that releases what no node owns may have a snapshot of the same name.
        if not SINGLE.named_by_uid.search(given):
            return None
        lists = types.LIST_SNAPSHOTS in driver.controller
        return TakenSnapshot(given) if not lists or await self.exists(content, driver) else None

    def ours(self, content: VolumeSnapshotContent, driver: DriverInfo, name: str) -> TakenSnapshot | None:
        source = content.spec.source.volume_handle
        if pool_of(source) in driver.pools:
            return TakenSnapshot(f"{pool_of(source)}/{name}")
        if has_volume(self._node.volumes, driver, source):
            raise UnavailableError(f"pool {pool_of(source)} of content {content.key} is not served now")
        return None

    async def other_user(self, content: VolumeSnapshotContent, taken: TakenSnapshot) -> str:
        """See ContentCalls.

        A content that never had a VolumeSnapshot was made to delete its snapshot, as Velero makes them: it waits for
        the VolumeSnapshots of other contents (InUseError), since those contents may have the policy Retain.
        """
        others = await self._other_users(content, taken.id)
        if content.spec.volume_snapshot_ref.uid:
            return others[0].key if others else ""
        for other in others:
            user = other.spec.volume_snapshot_ref
            if not user.uid or not await is_released(self._client, SINGLE, other, gone=True):
                what = f"snapshot {taken.id} is also that of VolumeSnapshot {user.namespace}/{user.name}"
                raise InUseError(f"{what}; delete that first")
        return ""

    async def _other_users(self, content: VolumeSnapshotContent, handle: str) -> list[VolumeSnapshotContent]:
        """The other contents of this node that have the snapshot and are to keep it.

        Other nodes may have snapshots of the same id: their contents have their label.
        """
        found = []
        for other in (await self._users.get(self._node.scope.label)).get(handle, ()):
            if other.metadata.uid == content.metadata.uid or other.spec.driver != content.spec.driver:
                continue
            goes = other.metadata.deleting and other.spec.deletion_policy == "Delete"
            if not goes or not await is_released(self._client, SINGLE, other):
                found.append(other)
        return found

    async def _read_users(self, label: str) -> Mapping[str, list[VolumeSnapshotContent]]:
        """Read live which contents of the node with that label, or of none, name each snapshot.

        A content gets its label once, and no other one: read in this order, none is missed that gets it meanwhile.
        """
        found: dict[str, list[VolumeSnapshotContent]] = {}
        for labels in (f"!{MANAGED_BY}", f"{MANAGED_BY}={label}"):
            for content in (await self._client.list(SNAPSHOT_CONTENTS, labels=labels)).items:
                for handle in {content.status.snapshot_handle, content.spec.source.snapshot_handle} - {""}:
                    found.setdefault(handle, []).append(content)
        return found
