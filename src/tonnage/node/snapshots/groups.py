"""Groups of snapshots of one node: what a VolumeGroupSnapshotContent asks of the driver.

Our snapshot controller labels contents with their node; upstream's never does, so the agent that has all volumes of a
content takes it. The driver takes all snapshots at one moment or none, under a name that comes from the
VolumeGroupSnapshot's uid.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from tonnage.base.aio.clock import rfc3339
from tonnage.csi.client import types
from tonnage.csi.driver.driver import id_of
from tonnage.csi.driver.group_members import member_name
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api.group_snapshot import (
    GROUP_HANDLE,
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    group_name,
)
from tonnage.kubernetes.api.kinds import GROUP_CONTENTS, SNAPSHOT_CONTENTS
from tonnage.kubernetes.api.snapshot import MANAGED_BY
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.snapshots.contents import ContentLoop
from tonnage.node.snapshots.shared import (
    RETRY_MAX,
    FailureReasons,
    Rejections,
    found_made,
    has_volume,
    parameters_of,
    pool_of,
    secrets_of,
)
from tonnage.provisioning.claims.node_scope import DriverInfo
from tonnage.provisioning.claims.snapshot_shape import GROUP

log = logging.getLogger(__name__)
_NAMED_BY_UID = re.compile(r"groupsnapshot-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_REASONS = FailureReasons(not_made="GroupSnapshotCreationFailed", not_deleted="GroupSnapshotDeleteError")
Loop = ContentLoop[VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeGroupSnapshotClass, types.ListedGroup]


def group_snapshotter(node: NodeContext, informers: Informers) -> Loop:
    """Return the loop over VolumeGroupSnapshotContents of a node."""
    rejections = Rejections(node, GROUP, _REASONS)
    return ContentLoop("group_snapshots", node, informers, _GroupSnapshots(node, rejections), rejections, GROUP)


class _GroupSnapshots:
    """ContentCalls of groups."""

    def __init__(
        self,
        node: NodeContext,
        rejections: Rejections[VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeGroupSnapshotClass],
    ) -> None:
        self._node, self._client, self._rejections = node, node.client, rejections

    def is_offered(self, driver: DriverInfo) -> bool:
        return types.GROUP_CONTROLLER_SERVICE in driver.plugin

    def may_appear(self, content: VolumeGroupSnapshotContent) -> bool:
        """A group that is to be found may be imported."""
        return not content.spec.source.volume_handles

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

    def retry(self, failure: CsiError) -> float | None:
        """Not at once after an internal error: writers may have waited for seconds."""
        return RETRY_MAX if failure.code is Code.INTERNAL else None

    # Whose content it is

    async def is_here(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> bool:
        """See ContentCalls. Reports that this node has some of the volumes only."""
        handles = content.spec.source.volume_handles
        found = [handle for handle in handles if has_volume(self._node.volumes, driver, handle)]
        if (handles and len(found) == len(handles)) or await self._has_group(content, driver):
            return True
        if found and not content.metadata.deleting:
            self._report_apart(content, found)
        return False

    def _report_apart(self, content: VolumeGroupSnapshotContent, found: list[str]) -> None:
        """Report that no node has all volumes of the content; only the agent of its first volume does."""
        handles = content.spec.source.volume_handles
        if found[0] != handles[0]:
            return
        others = ", ".join(handle for handle in handles if handle not in found)
        text = f"volumes {', '.join(found)} are on node {self._node.scope.node}, {others} are not"
        said = self._rejections.sentence(f"{text}: a group is of one node")
        self._rejections.tell(content, _REASONS.not_made, said, "apart")

    async def _has_group(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> bool:
        """Whether the driver has an existing group. Only names after a uid are unique among nodes."""
        given = content.spec.source.group_snapshot_handles
        if given is None or not _NAMED_BY_UID.fullmatch(content.handle) or not self.is_offered(driver):
            return False
        try:
            await driver.client.get_group_snapshot(content.handle, given.volume_snapshot_handles)
        except CsiError as failure:
            if failure.infeasible:  # no driver has such ids
                return False
            raise
        return True

    # Made, or found

    async def create(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> types.ListedGroup:
        return await driver.client.create_group_snapshot(
            group_name(content.spec.volume_group_snapshot_ref.uid),
            content.spec.source.volume_handles,
            parameters=await parameters_of(self._client, GROUP, content, driver),
            secrets=await secrets_of(self._client, GROUP, content, driver),
        )

    async def find(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> types.ListedGroup:
        return await driver.client.get_group_snapshot(content.handle, content.snapshot_handles)

    async def undo(self, content: VolumeGroupSnapshotContent, driver: DriverInfo, made: types.ListedGroup) -> None:
        ids = [one.id for one in made.snapshots]
        if not await self._other_user(content, made.id, ids):
            await self._delete_group(content, driver, made.id, ids)

    # Deletion

    async def delete(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> None:
        if not self.is_offered(driver):
            return
        handle, ids = content.handle, content.snapshot_handles
        if not handle:
            handle, ids = await self._unrecorded(content, driver)
        if not handle:
            return
        if other := await self._other_user(content, handle, ids):
            log.warning("group snapshot retained group=%s content=%s other=%s", handle, content.key, other)
            return
        await self._delete_group(content, driver, handle, ids)

    async def _delete_group(
        self, content: VolumeGroupSnapshotContent, driver: DriverInfo, handle: str, ids: list[str]
    ) -> None:
        secrets = await secrets_of(self._client, GROUP, content, driver)
        await self._node.deletions.delete_snapshots(driver, handle, content, secrets, members=ids)
        self._node.readings.want(driver.name, freed=True)

    async def _unrecorded(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> tuple[str, list[str]]:
        """The ids of a group that may have been made without being reported, "" for none.

        Ours has its name as id. Another driver tells the id only where it makes the group, or finds it made.
        """
        uid = content.spec.volume_group_snapshot_ref.uid
        if not uid or not content.spec.source.volume_handles:
            return "", []
        if driver.default_pool:
            group = group_name(uid)
            return group, [id_of(pool_of(one), member_name(group, one)) for one in content.spec.source.volume_handles]
        made = await found_made(self.create(content, driver))
        return (made.id, [one.id for one in made.snapshots]) if made is not None else ("", [])

    async def _other_user(self, content: VolumeGroupSnapshotContent, handle: str, ids: list[str]) -> str:
        """The name of another content of this node that is to keep the group or one of its snapshots, "" for none.

        Members of the group do not count, but those whose policy was changed to Retain.
        """
        # In this order: a content gets its label once, so none is missed that gets it meanwhile.
        for labels in (f"!{MANAGED_BY}", f"{MANAGED_BY}={self._node.scope.label}"):
            for group in (await self._client.list(GROUP_CONTENTS, labels=labels)).items:
                same = group.spec.driver == content.spec.driver and group.handle == handle
                goes = group.metadata.deleting and group.spec.deletion_policy == "Delete"
                if same and group.metadata.uid != content.metadata.uid and not goes:
                    return group.key
            for one in (await self._client.list(SNAPSHOT_CONTENTS, labels=labels)).items:
                is_member = one.metadata.annotations.get(GROUP_HANDLE) == handle
                same = one.spec.driver == content.spec.driver and (is_member or one.handle in ids)
                goes = (is_member or one.metadata.deleting) and one.spec.deletion_policy == "Delete"
                if same and not goes:
                    return one.key
        return ""
