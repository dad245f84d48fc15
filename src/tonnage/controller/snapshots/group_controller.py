"""The controller of group snapshots: VolumeGroupSnapshots, each of the claims that its selector finds.

Watched besides contents, classes, claims and volumes: members, which become ready or are gone. A cluster without the
kinds of groups is not waited for. What a group is made of is read live, at once, when its content is made: later
changes of labels change no group.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from tonnage.base.errors import ApiAlreadyExistsError, InvalidError, UnavailableError
from tonnage.controller.config import LoopContext
from tonnage.controller.snapshots.decision import SnapshotFacts
from tonnage.controller.snapshots.loop import SnapshotLoop
from tonnage.controller.snapshots.members import (
    MEMBERS,
    MemberFacts,
    member_body,
    member_content_body,
    member_of,
    member_status,
    members,
)
from tonnage.controller.snapshots.sources import node_of
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.group_snapshot import (
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeSnapshotInfo,
    group_of,
    has_member_name,
    is_member_content,
    member_names,
)
from tonnage.kubernetes.api.kinds import CLAIMS, SNAPSHOT_CONTENTS, SNAPSHOTS, VOLUMES
from tonnage.kubernetes.api.meta import LabelSelector
from tonnage.kubernetes.api.selectors import from_label_selector
from tonnage.kubernetes.api.snapshot import VolumeSnapshot, VolumeSnapshotContent
from tonnage.kubernetes.client.controller import on_difference
from tonnage.kubernetes.client.indexes import BY_HANDLE, handle_of
from tonnage.kubernetes.client.object_write import write_status
from tonnage.provisioning.claims.bind import find
from tonnage.provisioning.claims.snapshot_shape import GROUP, SnapshotSource

log = logging.getLogger(__name__)


Facts = SnapshotFacts[VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeGroupSnapshotClass]


class GroupSnapshotController(SnapshotLoop[VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeGroupSnapshotClass]):
    """The loop of VolumeGroupSnapshots; it makes their members. The agents of the nodes take the snapshots."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("group_snapshots", context, GROUP)

    def _watch_others(self, context: LoopContext) -> None:
        informers = context.informers
        self._volumes.add_index(BY_HANDLE, handle_of)
        self._member_contents = self.watch(
            informers.of(SNAPSHOT_CONTENTS, optional=True),
            on_difference(_is_ready_member, self._member_content_changed),
        )
        self._members = self.watch(
            informers.of(SNAPSHOTS, optional=True), on_difference(_member_shape, self._member_changed)
        )
        self._members.add_index(MEMBERS, members)

    def _place_of(self, claim: str) -> str:
        return claim.partition("/")[0]

    # Facts

    async def _ending(self, snapshot: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent | None) -> Facts:
        # A live read of its members, since the group's data goes once there are none.
        found = (await self._client.list(SNAPSHOTS, snapshot.metadata.namespace, tolerant=True)).items
        living = [one for one in found if snapshot.metadata.uid in members(one)]
        restored = self._restored(one.key for one in living)
        return SnapshotFacts(GROUP, snapshot, content, living=living, restored=restored, ours=self._ours)

    async def _sources(self, snapshot: VolumeGroupSnapshot) -> list[SnapshotSource]:
        """The claims that the selector finds now, by name."""
        selector = snapshot.spec.source.selector
        if selector is None:
            return []
        found = []
        for claim in await self._selected(snapshot.metadata.namespace, selector):
            volume = await find(self._client, VOLUMES, claim.spec.volume_name) if claim.spec.volume_name else None
            found.append(SnapshotSource(claim, volume, await node_of(self._client, volume)))
        return found

    async def _selected(self, namespace: str, selector: LabelSelector) -> list[PersistentVolumeClaim]:
        try:
            matches = from_label_selector(selector).matches
        except InvalidError as error:
            log.info("group selector not read namespace=%s error=%s", namespace, error)
            return []
        listed = (await self._client.list(CLAIMS, namespace)).items
        found = [claim for claim in listed if matches(claim.metadata.labels)]
        return sorted(found, key=lambda claim: claim.metadata.name)

    def _members_of(self, snapshot: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent) -> list[MemberFacts]:
        return [self._member(snapshot, content.spec.driver, one) for one in content.status.volume_snapshot_info_list]

    def _member(self, snapshot: VolumeGroupSnapshot, driver: str, info: VolumeSnapshotInfo) -> MemberFacts:
        name, content = member_names(snapshot.metadata.uid, member_of(info))
        found = self._volumes.by(BY_HANDLE, f"{driver} {info.volume_handle}")
        member = self._members.get(f"{snapshot.metadata.namespace}/{name}")
        return MemberFacts(info, member, self._member_contents.get(content), found[0] if found else None)

    # Members

    async def _make_members(
        self, snapshot: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent | None, lacking: Sequence[MemberFacts]
    ) -> None:
        assert content is not None
        for member in lacking:
            await self._make_member(snapshot, content, member)
        log.info("members made group=%s content=%s members=%d", snapshot.key, content.key, len(lacking))

    async def _make_member(
        self, group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent, member: MemberFacts
    ) -> None:
        """VolumeSnapshot, content, the content's status. The loop of snapshots then shows it in the VolumeSnapshot."""
        snapshot, body = member.snapshot, member_body(group, member)
        namespace, name = group.metadata.namespace, body["metadata"]["name"]
        try:
            snapshot = snapshot or await self._client.create(SNAPSHOTS, body, namespace)
        except ApiAlreadyExistsError:  # not in the cache yet
            snapshot = await self._client.get(SNAPSHOTS, name, namespace)
            owner = group_of(snapshot)
            if owner is None or owner.uid != group.metadata.uid:
                raise UnavailableError(f"VolumeSnapshot {snapshot.key} exists and is not of the group") from None
        whole, made = member_content_body(content, member, snapshot), member.content
        try:
            made = made or await self._client.create(SNAPSHOT_CONTENTS, whole)
        except ApiAlreadyExistsError:
            made = await self._client.get(SNAPSHOT_CONTENTS, whole["metadata"]["name"])
        if made.spec.volume_snapshot_ref.uid != snapshot.metadata.uid:
            raise UnavailableError(f"VolumeSnapshotContent {made.key} is of another snapshot: delete it")
        status = member_status(MemberFacts(member.info, snapshot, made))
        await write_status(self._client, SNAPSHOT_CONTENTS, made, status, guarded=False)

    # Events of the watches

    def _member_changed(self, member: VolumeSnapshot) -> Iterable[str]:
        """Its group; for one that only has the name of a member, the groups that it may hinder."""
        space, owner = member.metadata.namespace, group_of(member)
        if owner is not None:
            return (f"{space}/{owner.name}",)
        return self._open(space) if has_member_name(member) else ()

    def _member_content_changed(self, content: VolumeSnapshotContent) -> Iterable[str]:
        """Groups that may wait for it: this watch may be later than that of the members themselves."""
        space = content.spec.volume_snapshot_ref.namespace
        return self._open(space) if _is_ready_member(content) else ()

    def _open(self, namespace: str) -> list[str]:
        return [group.key for group in self._snapshots.by(self._by_source, namespace)]


def _member_shape(member: VolumeSnapshot) -> object:
    """What a group waits for: that it is ready, and that it is gone."""
    return member.metadata.uid, bool(member.status.ready_to_use)


def _is_ready_member(content: VolumeSnapshotContent) -> bool:
    return is_member_content(content) and bool(content.status.ready_to_use)
