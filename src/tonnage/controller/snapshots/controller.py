"""The snapshot controller: VolumeSnapshots, each of one claim.

Watched besides contents, classes, claims and volumes: groups, which their deleted members wait for.
"""

from __future__ import annotations

from collections.abc import Iterable

from tonnage.controller.config import LoopContext
from tonnage.controller.snapshots.decision import SnapshotFacts
from tonnage.controller.snapshots.loop import SnapshotLoop
from tonnage.controller.snapshots.members import MEMBERS, members
from tonnage.controller.snapshots.sources import node_of
from tonnage.kubernetes.api.group_snapshot import VolumeGroupSnapshot, group_of
from tonnage.kubernetes.api.kinds import GROUP_SNAPSHOTS
from tonnage.kubernetes.api.snapshot import VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent
from tonnage.kubernetes.client.controller import on_difference
from tonnage.provisioning.claims.bind import find
from tonnage.provisioning.claims.snapshot_shape import SINGLE, SnapshotSource

Facts = SnapshotFacts[VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotClass]


class SnapshotController(SnapshotLoop[VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotClass]):
    """The loop of VolumeSnapshots. Its members of groups are made and deleted by the loop of groups."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("snapshots", context, SINGLE)

    def _watch_others(self, context: LoopContext) -> None:
        self._snapshots.add_index(MEMBERS, members)
        self.watch(
            context.informers.of(GROUP_SNAPSHOTS, optional=True),
            on_difference(lambda group: (group.metadata.uid, group.metadata.deleting), self._group_changed),
        )

    def _place_of(self, claim: str) -> str:
        return claim

    async def _sources(self, snapshot: VolumeSnapshot) -> list[SnapshotSource]:
        claim = self._claims.get(f"{snapshot.metadata.namespace}/{SINGLE.claim_of(snapshot)}")
        if claim is None:
            return []
        volume = self._volumes.get(claim.spec.volume_name)
        return [SnapshotSource(claim, volume, await node_of(self._client, volume))]

    async def _ending(self, snapshot: VolumeSnapshot, content: VolumeSnapshotContent | None) -> Facts:
        group, restored = await self._group_of(snapshot), self._restored([snapshot.key])
        return SnapshotFacts(SINGLE, snapshot, content, group=group, restored=restored, ours=self._ours)

    async def _group_of(self, snapshot: VolumeSnapshot) -> str:
        """The key of the group that a snapshot is a member of, while that is not being deleted; else ""."""
        owner = group_of(snapshot)
        if owner is None:
            return ""
        found = await find(self._client, GROUP_SNAPSHOTS, owner.name, snapshot.metadata.namespace)
        gone = found is None or found.metadata.uid != owner.uid or found.metadata.deleting
        return "" if gone else f"{snapshot.metadata.namespace}/{owner.name}"

    def _group_changed(self, group: VolumeGroupSnapshot) -> Iterable[str]:
        """Members that are being deleted: they wait for their group."""
        found = self._snapshots.by(MEMBERS, group.metadata.uid)
        return [snapshot.key for snapshot in found if snapshot.metadata.deleting]
