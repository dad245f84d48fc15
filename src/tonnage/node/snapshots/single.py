"""Single snapshots of one node: what a VolumeSnapshotContent asks of the driver, as csi-snapshotter does per node.

A content that waits to be made has the controller's finalizer, so nothing is made that could be forgotten. A member of
a group is made and deleted with its group: of its content only the label and finalizer are ours.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from tonnage.base.aio.tasks import SharedRead
from tonnage.base.errors import InUseError, NotFoundError, UnavailableError
from tonnage.csi.client import types
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api.group_snapshot import is_member_content
from tonnage.kubernetes.api.kinds import SNAPSHOT_CONTENTS
from tonnage.kubernetes.api.snapshot import (
    MANAGED_BY,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
    snapshot_name,
)
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.snapshots.contents import ContentLoop
from tonnage.node.snapshots.shared import (
    FailureReasons,
    Rejections,
    found_made,
    has_volume,
    is_released,
    parameters_of,
    pool_of,
    secrets_of,
)
from tonnage.provisioning.claims.node_scope import DriverInfo
from tonnage.provisioning.claims.snapshot_shape import SINGLE

log = logging.getLogger(__name__)
_NAMED_BY_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_REASONS = FailureReasons(not_made="SnapshotCreationFailed", not_deleted="SnapshotDeleteError")
Loop = ContentLoop[VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotClass, types.ListedSnapshot]


def snapshotter(node: NodeContext, informers: Informers) -> Loop:
    """Return the loop over VolumeSnapshotContents of a node."""
    return ContentLoop("snapshots", node, informers, _Snapshots(node), Rejections(node, SINGLE, _REASONS), SINGLE)


class _Snapshots:
    """ContentCalls of single snapshots."""

    def __init__(self, node: NodeContext) -> None:
        self._node, self._client = node, node.client
        self._users = SharedRead(self._read_users)

    def is_offered(self, driver: DriverInfo) -> bool:
        return types.CREATE_DELETE_SNAPSHOT in driver.controller

    def may_appear(self, content: VolumeSnapshotContent) -> bool:
        """A snapshot may be imported, under a name that is unique among nodes."""
        return _names_by_uid(content)

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

    def retry(self, failure: CsiError) -> float | None:
        return None

    # Whose content it is

    async def is_here(self, content: VolumeSnapshotContent, driver: DriverInfo) -> bool:
        return self._has_volume(content, driver) or await self._has_snapshot(content, driver)

    def _has_volume(self, content: VolumeSnapshotContent, driver: DriverInfo) -> bool:
        handle = content.spec.source.volume_handle
        return bool(handle) and has_volume(self._node.volumes, driver, handle)

    async def _has_snapshot(self, content: VolumeSnapshotContent, driver: DriverInfo) -> bool:
        if not _names_by_uid(content) or types.LIST_SNAPSHOTS not in driver.controller:
            return False
        return await self._is_there(content.handle, driver)

    async def _is_there(self, handle: str, driver: DriverInfo) -> bool:
        """Whether the driver, which lists snapshots, has it. Raises: CsiError."""
        try:
            return await driver.client.find_snapshot(handle) is not None
        except CsiError as failure:
            if failure.infeasible:  # no driver has such an id
                return False
            raise

    # Made, or found

    async def create(self, content: VolumeSnapshotContent, driver: DriverInfo) -> types.ListedSnapshot:
        return await driver.client.create_snapshot(
            snapshot_name(content.spec.volume_snapshot_ref.uid),
            content.spec.source.volume_handle,
            parameters=await parameters_of(self._client, SINGLE, content, driver),
            secrets=await secrets_of(self._client, SINGLE, content, driver),
        )

    async def find(self, content: VolumeSnapshotContent, driver: DriverInfo) -> types.ListedSnapshot:
        """Find a pre-provisioned snapshot. Raises: as create()."""
        handle = content.handle
        if types.LIST_SNAPSHOTS not in driver.controller:
            return types.ListedSnapshot(handle, "", 0, 0.0, ready=True)
        found = await driver.client.find_snapshot(handle)
        if found is None:
            node = self._node.scope.node
            raise NotFoundError(f"can not find snapshot for snapshotID {handle[:128]}: driver on node {node} has none")
        return found

    async def undo(self, content: VolumeSnapshotContent, driver: DriverInfo, made: types.ListedSnapshot) -> None:
        if not await self._other_users(content, made.id):
            secrets = await secrets_of(self._client, SINGLE, content, driver)
            await self._node.deletions.delete_snapshots(driver, made.id, content, secrets)

    # Deletion

    async def delete(self, content: VolumeSnapshotContent, driver: DriverInfo) -> None:
        """See ContentCalls. Nothing for a member of a group, which goes with that.

        A content that never had a VolumeSnapshot was made to delete its snapshot, as Velero makes them: it waits for
        the VolumeSnapshots of other contents (InUseError), since those contents may have the policy Retain.
        """
        if is_member_content(content):
            return
        secrets = await secrets_of(self._client, SINGLE, content, driver)
        handle = content.status.snapshot_handle or await self._unrecorded(content, driver)
        if not handle or not self.is_offered(driver):
            return
        others = await self._other_users(content, handle)
        if others and content.spec.volume_snapshot_ref.uid:
            log.warning("snapshot retained snapshot=%s content=%s other=%s", handle, content.key, others[0].key)
            return
        for other in others:
            user = other.spec.volume_snapshot_ref
            if not user.uid or not await is_released(self._client, SINGLE, other, gone=True):
                raise InUseError(
                    f"snapshot {handle} is also that of VolumeSnapshot {user.namespace}/{user.name}; delete that first"
                )
        await self._node.deletions.delete_snapshots(driver, handle, content, secrets)
        self._node.readings.want(driver.name, freed=True)

    async def _unrecorded(self, content: VolumeSnapshotContent, driver: DriverInfo) -> str:
        """The id of a snapshot that may be there without being reported, "" for none.

        A pre-provisioned one has its id in the content, which tells the node only where it is named by uid. Of those
        that were made, ours has its name in the id. Another driver tells the id only where it makes the snapshot, or
        finds it made.
        """
        uid, source = content.spec.volume_snapshot_ref.uid, content.spec.source.volume_handle
        if given := content.spec.source.snapshot_handle:
            if not _names_by_uid(content):  # an agent that releases what no node owns may have one of the same name
                return ""
            lists = types.LIST_SNAPSHOTS in driver.controller
            return given if not lists or await self._is_there(given, driver) else ""
        if not uid or not source:
            return ""
        if driver.default_pool:
            if pool_of(source) in driver.pools:
                return f"{pool_of(source)}/{snapshot_name(uid)}"
            if self._has_volume(content, driver):
                raise UnavailableError(f"pool {pool_of(source)} of content {content.key} is not served now")
            return ""
        made = await found_made(self.create(content, driver))
        return made.id if made is not None else ""

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


def _names_by_uid(content: VolumeSnapshotContent) -> bool:
    """Whether its handle is unique among nodes; names that people gave are not."""
    return _NAMED_BY_UID.search(content.handle) is not None
