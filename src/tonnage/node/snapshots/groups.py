"""Groups of snapshots of one node: what a VolumeGroupSnapshotContent asks of the driver.

Our snapshot controller labels contents with their node; upstream's never does, so the agent that has all volumes of a
content takes it. The driver takes all snapshots at one moment or none, under a name that comes from the
VolumeGroupSnapshot's uid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tonnage.base.aio.clock import rfc3339
from tonnage.csi.client import types
from tonnage.csi.driver.driver import id_of
from tonnage.csi.driver.group_members import member_name
from tonnage.kubernetes.api.group_snapshot import (
    GROUP_HANDLE,
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
)
from tonnage.kubernetes.api.kinds import GROUP_CONTENTS, SNAPSHOT_CONTENTS
from tonnage.kubernetes.api.snapshot import MANAGED_BY
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.deletions import TakenSnapshot
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.snapshots.contents import ContentLoop
from tonnage.node.snapshots.shared import FailureReasons, has_id, pool_of
from tonnage.provisioning.claims.node_scope import DriverInfo
from tonnage.provisioning.claims.snapshot_shape import GROUP

_REASONS = FailureReasons(not_made="GroupSnapshotCreationFailed", not_deleted="GroupSnapshotDeleteError")
Loop = ContentLoop[VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeGroupSnapshotClass, types.ListedGroup]


def group_snapshotter(node: NodeContext, informers: Informers) -> Loop:
    """Return the loop over VolumeGroupSnapshotContents of a node."""
    return ContentLoop("group_snapshots", node, informers, _GroupSnapshots(node), _REASONS, GROUP)


class _GroupSnapshots:
    """ContentCalls of groups."""

    def __init__(self, node: NodeContext) -> None:
        self._node, self._client = node, node.client

    def is_offered(self, driver: DriverInfo) -> bool:
        return types.GROUP_CONTROLLER_SERVICE in driver.plugin

    def status_of(self, made: types.ListedGroup, now: float) -> dict[str, Any]:
        listed = [
            {
                "volumeHandle": one.volume_id,
                "snapshotHandle": one.id,
                "creationTime": int((one.created or made.created or now) * 1e9),
                "readyToUse": one.ready,
                **({"restoreSize": one.size} if one.size > 0 else {}),
            }
            for one in made.snapshots
        ]
        return {
            "volumeGroupSnapshotHandle": made.id,
            "creationTime": rfc3339(made.created or now),
            "readyToUse": made.ready,
            "error": None,
            "volumeSnapshotInfoList": listed,
        }

    async def exists(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> bool:
        given = content.spec.source.group_snapshot_handles
        if given is None or not self.is_offered(driver):
            return False
        return await has_id(driver.client.get_group_snapshot(content.handle, given.volume_snapshot_handles))

    async def create(
        self, content: VolumeGroupSnapshotContent, driver: DriverInfo, name: str, **given: Mapping[str, str]
    ) -> types.ListedGroup:
        return await driver.client.create_group_snapshot(name, content.spec.source.volume_handles, **given)

    async def find(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> types.ListedGroup:
        return await driver.client.get_group_snapshot(content.handle, content.snapshot_handles)

    # Deletion

    def taken(self, made: types.ListedGroup) -> TakenSnapshot:
        return TakenSnapshot(made.id, [one.id for one in made.snapshots])

    async def named(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> TakenSnapshot | None:
        return TakenSnapshot(content.handle, content.snapshot_handles) if content.handle else None

    def ours(self, content: VolumeGroupSnapshotContent, driver: DriverInfo, name: str) -> TakenSnapshot | None:
        handles = content.spec.source.volume_handles
        return TakenSnapshot(name, [id_of(pool_of(one), member_name(name, one)) for one in handles])

    async def other_user(self, content: VolumeGroupSnapshotContent, taken: TakenSnapshot) -> str:
        """See ContentCalls. Members of the group do not count, but those whose policy was changed to Retain."""
        # In this order: a content gets its label once, so none is missed that gets it meanwhile.
        for labels in (f"!{MANAGED_BY}", f"{MANAGED_BY}={self._node.scope.label}"):
            for group in (await self._client.list(GROUP_CONTENTS, labels=labels)).items:
                same = group.spec.driver == content.spec.driver and group.handle == taken.id
                goes = group.metadata.deleting and group.spec.deletion_policy == "Delete"
                if same and group.metadata.uid != content.metadata.uid and not goes:
                    return group.key
            for one in (await self._client.list(SNAPSHOT_CONTENTS, labels=labels)).items:
                is_member = one.metadata.annotations.get(GROUP_HANDLE) == taken.id
                same = one.spec.driver == content.spec.driver and (is_member or one.handle in (taken.members or ()))
                goes = (is_member or one.metadata.deleting) and one.spec.deletion_policy == "Delete"
                if same and not goes:
                    return one.key
        return ""
