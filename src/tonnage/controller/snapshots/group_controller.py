"""The loop of group snapshots: one key for each VolumeGroupSnapshot.

Watched: groups, their contents and classes, their members, claims and volumes; so nothing is polled. A cluster without
the kinds of groups is not waited for. Our own writes wake nothing, but for members that become ready or are gone. What
a group is made of is read live, at once, when its content is made: later changes of labels change no group.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from tonnage.aio.backoff import Backoff
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.group_snapshot import (
    GROUP_BOUND,
    GROUP_CONTENT_BOUND,
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeSnapshotInfo,
    group_of,
    has_member_name,
    is_member_content,
    member_names,
)
from tonnage.api.kinds import (
    CLAIMS,
    GROUP_CLASSES,
    GROUP_CONTENTS,
    GROUP_SNAPSHOTS,
    SNAPSHOT_CONTENTS,
    SNAPSHOTS,
    VOLUMES,
)
from tonnage.api.meta import LabelSelector
from tonnage.api.selectors import from_label_selector
from tonnage.api.snapshot import VolumeSnapshot, VolumeSnapshotContent
from tonnage.claims.bind import find
from tonnage.controller.config import LoopContext
from tonnage.controller.snapshots import group_decision
from tonnage.controller.snapshots.contents import OF_GROUPS, ContentWriter
from tonnage.controller.snapshots.controller import MEMBERS, RESTORES, RETRY_MAX, RETRY_START, members, restored
from tonnage.controller.snapshots.decision import WarnOnly
from tonnage.controller.snapshots.group_decision import (
    BindGroupContent,
    EndGroupContent,
    EndMembers,
    GroupEnd,
    GroupFacts,
    GroupSource,
    MakeGroupContent,
    MakeMembers,
    MemberFacts,
    PrepareGroup,
    RefuseGroup,
    ReleaseGroup,
    ShowGroup,
    decide_group,
    group_content_of,
    member_body,
    member_content_body,
    member_of,
    member_status,
)
from tonnage.controller.snapshots.reports import Reports
from tonnage.controller.snapshots.sources import node_of
from tonnage.errors import (
    ApiAlreadyExistsError,
    ApiNotFoundError,
    InvalidError,
    UnavailableError,
)
from tonnage.kube.controller import Reconciler, on_add, on_difference, settle
from tonnage.kube.indexes import claimed, claims, volumes
from tonnage.kube.object_write import delete_object, patch_object, release, write_status

log = logging.getLogger(__name__)
_UNDONE = "group snapshots: by namespace, unready or being deleted"
_BY_CONTENT = "group snapshots: by the content that they name"
_BY_HANDLE = "group snapshots: volumes by driver and handle"


class GroupSnapshotController(Reconciler[str]):
    """Binds groups to contents and makes their members. The agents of the nodes take the snapshots."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("group_snapshots", backoff=Backoff(initial=RETRY_START, maximum=RETRY_MAX))
        self._client, self._reports = context.client, Reports(context, GROUP_SNAPSHOTS)
        self._content = ContentWriter(context.client, OF_GROUPS, self._reports)
        self._ours, informers = frozenset(context.config.drivers), context.informers
        self._groups = informers.of(GROUP_SNAPSHOTS, optional=True).cache
        self._groups.add_index(_UNDONE, _undone)
        self._groups.add_index(_BY_CONTENT, _named_content)
        self._volumes = self.watch(volumes(informers), on_add(self._volume_added))
        self._volumes.add_index(_BY_HANDLE, _handle)
        self._claims = self.watch(claims(informers), on_difference(_claim_shape, self._claim_changed))
        self._claims.add_index(RESTORES, restored)
        classes = informers.of(GROUP_CLASSES, optional=True)
        self._classes = self.watch(classes, on_difference(_class_shape, self._class_changed))
        self._member_contents = self.watch(
            informers.of(SNAPSHOT_CONTENTS, optional=True),
            on_difference(_is_ready_member, self._member_content_changed),
        )
        self._members = self.watch(
            informers.of(SNAPSHOTS, optional=True), on_difference(_member_shape, self._member_changed)
        )
        self._members.add_index(MEMBERS, members)
        contents = informers.of(GROUP_CONTENTS, optional=True)
        self._contents = self.watch(contents, self._content_changed)
        groups = informers.of(GROUP_SNAPSHOTS, optional=True)
        self.watch(groups, on_difference(_shape, lambda group: (group.key,)))

    async def reconcile(self, key: str) -> None:
        """Do what one group needs. Idempotent: a kill between any two writes loses nothing."""
        group = self._groups.get(key)
        if group is None:
            self._reports.over(key)
        await settle(group, self._step)

    async def _step(self, group: VolumeGroupSnapshot) -> VolumeGroupSnapshot | None:
        """Run one action; the group as it is then, None where nothing is left to do."""
        facts = await self._facts(group)
        match decide_group(facts):
            case PrepareGroup(storage_class):
                return await self._prepare(group, storage_class)
            case MakeGroupContent(body):
                await self._content.make(group, body, "CreatingGroupSnapshot", "CreateGroupSnapshotContentFailed")
            case BindGroupContent(body):
                await self._content.bind(group, facts.content, body, "GroupSnapshotBindFailed")
            case MakeMembers(lacking):
                await self._make_members(group, facts.content, lacking)
            case ShowGroup() as shown:
                await self._show(group, shown)
            case RefuseGroup(reason, message, ready):
                await self._reports.refuse(group, reason, message, ready=ready)
            case WarnOnly(reason, message):
                self._reports.warn(group, reason, message)
            case EndMembers() | EndGroupContent() | ReleaseGroup() as end:
                await self._end(group, facts.content, end)
        return None

    # Facts

    async def _facts(self, group: VolumeGroupSnapshot) -> GroupFacts:
        name, deleting = group_content_of(group), group.metadata.deleting
        content = None if deleting else self._contents.get(name)
        if content is None:
            content = await find(self._client, GROUP_CONTENTS, name)
        if deleting:
            living = await self._living(group)
            pending = [claim for one in living for claim in self._claims.by(RESTORES, one.key)]
            held = pending[0].metadata.name if pending else ""
            return GroupFacts(group, content, living=living, restored=held, ours=self._ours)
        if content is not None:
            return GroupFacts(group, content, members=self._members_of(group, content), ours=self._ours)
        return GroupFacts(
            group,
            storage_class=self._classes.get(group.spec.volume_group_snapshot_class_name or ""),
            defaults=[one for one in self._classes if group_decision.is_default_group_class(one)],
            sources=await self._sources(group),
            ours=self._ours,
        )

    async def _living(self, group: VolumeGroupSnapshot) -> list[VolumeSnapshot]:
        """The members that are there: a live read, since the group's data goes once there are none."""
        found = (await self._client.list(SNAPSHOTS, group.metadata.namespace, tolerant=True)).items
        return [one for one in found if group.metadata.uid in members(one)]

    async def _sources(self, group: VolumeGroupSnapshot) -> list[GroupSource]:
        """The claims that the selector finds now, by name."""
        selector = group.spec.source.selector
        if selector is None:
            return []
        found = []
        for claim in await self._selected(group.metadata.namespace, selector):
            volume = await find(self._client, VOLUMES, claim.spec.volume_name) if claim.spec.volume_name else None
            found.append(GroupSource(claim, volume, await node_of(self._client, volume)))
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

    def _members_of(self, group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent) -> list[MemberFacts]:
        return [self._member(group, content.spec.driver, one) for one in content.status.volume_snapshot_info_list]

    def _member(self, group: VolumeGroupSnapshot, driver: str, info: VolumeSnapshotInfo) -> MemberFacts:
        name, content = member_names(group.metadata.uid, member_of(info))
        found = self._volumes.by(_BY_HANDLE, f"{driver} {info.volume_handle}")
        snapshot = self._members.get(f"{group.metadata.namespace}/{name}")
        return MemberFacts(info, snapshot, self._member_contents.get(content), found[0] if found else None)

    # Actions, in the order of a group's life

    async def _prepare(self, group: VolumeGroupSnapshot, storage_class: str) -> VolumeGroupSnapshot | None:
        finalizers = group.metadata.finalizers
        body: dict[str, Any] = {}
        if GROUP_BOUND not in finalizers:
            body["metadata"] = {"finalizers": [*finalizers, GROUP_BOUND]}
        if storage_class:
            body["spec"] = {"volumeGroupSnapshotClassName": storage_class}
        with suppress(ApiNotFoundError):
            return await patch_object(self._client, GROUP_SNAPSHOTS, group, body)
        return None

    async def _make_members(
        self, group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent | None, lacking: Sequence[MemberFacts]
    ) -> None:
        assert content is not None
        for member in lacking:
            await self._make_member(group, content, member)
        log.info("members made group=%s content=%s members=%d", group.key, content.key, len(lacking))

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

    async def _show(self, group: VolumeGroupSnapshot, shown: ShowGroup) -> None:
        if await write_status(self._client, GROUP_SNAPSHOTS, group, shown.status) is None:
            return
        if shown.is_ready:
            self._reports.announce(group, "GroupSnapshotReady", f"Group snapshot {group.key} is ready to use.")
        if shown.failure:
            self._reports.warn(group, "GroupSnapshotCreationFailed", shown.failure)

    async def _end(
        self, group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent | None, action: GroupEnd
    ) -> None:
        match action:
            case EndMembers(snapshots):
                for snapshot in snapshots:
                    await delete_object(self._client, SNAPSHOTS, snapshot)
            case EndGroupContent(marked):
                await self._content.end(group, content, "GroupSnapshotContentObjectDeleteError", marked=marked)
            case ReleaseGroup(marked):
                if marked and content is not None:
                    await self._content.mark(content)
                await release(self._client, GROUP_SNAPSHOTS, group, GROUP_BOUND)

    # Events of the watches

    def _content_changed(
        self, old: VolumeGroupSnapshotContent | None, new: VolumeGroupSnapshotContent | None
    ) -> Iterable[str]:
        """Those of the groups that it points to, and of those that name it."""
        seen = old or new
        assert seen is not None
        if old is None and new is not None and new.spec.source.volume_handles and not _has_answer(new):
            return ()  # ours, or nothing to show yet
        if old is not None and new is not None and _content_shape(old) == _content_shape(new):
            return ()
        refs = [one.spec.volume_group_snapshot_ref for one in (old, new) if one is not None]
        keys = {f"{ref.namespace}/{ref.name}" for ref in refs}
        keys.update(group.key for group in self._groups.by(_BY_CONTENT, seen.metadata.name))
        return sorted(keys)

    def _member_changed(self, member: VolumeSnapshot) -> Iterable[str]:
        """Its group; for one that only has the name of a member, the groups that it may hinder."""
        space, owner = member.metadata.namespace, group_of(member)
        if owner is not None:
            return (f"{space}/{owner.name}",)
        return [group.key for group in self._groups.by(_UNDONE, space)] if has_member_name(member) else ()

    def _member_content_changed(self, content: VolumeSnapshotContent) -> Iterable[str]:
        """Groups that may wait for it: this watch may be later than that of the members themselves."""
        space = content.spec.volume_snapshot_ref.namespace
        return [group.key for group in self._groups.by(_UNDONE, space)] if _is_ready_member(content) else ()

    def _class_changed(self, changed: VolumeGroupSnapshotClass) -> Iterable[str]:
        named = (changed.metadata.name, None, "")
        return [g.key for g in self._groups if _undone(g) and g.spec.volume_group_snapshot_class_name in named]

    def _claim_changed(self, claim: PersistentVolumeClaim) -> Iterable[str]:
        """Groups of its namespace: those that are not made yet, and deleted ones that it is restored from."""
        return [group.key for group in self._groups.by(_UNDONE, claim.metadata.namespace)]

    def _volume_added(self, volume: PersistentVolume) -> Iterable[str]:
        spaces = {key.partition("/")[0] for key in claimed(volume)}
        return [group.key for space in spaces for group in self._groups.by(_UNDONE, space)]


def _undone(group: VolumeGroupSnapshot) -> Iterable[str]:
    return () if group.status.ready_to_use and not group.metadata.deleting else (group.metadata.namespace,)


def _named_content(group: VolumeGroupSnapshot) -> Iterable[str]:
    name = group.spec.source.volume_group_snapshot_content_name
    return (name,) if name else ()


def _handle(volume: PersistentVolume) -> Iterable[str]:
    return (f"{volume.spec.csi.driver} {volume.spec.csi.volume_handle}",) if volume.spec.csi is not None else ()


def _shape(group: VolumeGroupSnapshot) -> object:
    return group.metadata.uid, group.metadata.deleting, group.spec


def _content_shape(content: VolumeGroupSnapshotContent) -> object:
    return content.metadata.uid, content.spec, content.status, GROUP_CONTENT_BOUND in content.metadata.finalizers


def _has_answer(content: VolumeGroupSnapshotContent) -> bool:
    return content.status.ready_to_use is not None or content.status.error is not None


def _member_shape(member: VolumeSnapshot) -> object:
    """What a group waits for: that it is ready, and that it is gone."""
    return member.metadata.uid, bool(member.status.ready_to_use)


def _is_ready_member(content: VolumeSnapshotContent) -> bool:
    return is_member_content(content) and bool(content.status.ready_to_use)


def _class_shape(one: VolumeGroupSnapshotClass) -> object:
    return one.driver, one.parameters, one.deletion_policy, group_decision.is_default_group_class(one)


def _claim_shape(claim: PersistentVolumeClaim) -> object:
    meta = claim.metadata
    return meta.uid, meta.deleting, meta.labels, claim.status.phase, claim.spec.volume_name
