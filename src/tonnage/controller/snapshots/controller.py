"""The loop of the snapshot controller: one key for each VolumeSnapshot.

Watched: snapshots, their contents and classes, claims and volumes. Everything that a snapshot can wait for is one of
these, so nothing is polled. Our own writes wake nothing: status and finalizers of snapshots, new contents, and what a
deletion marks are ignored. A content is read live before anything is made, deleted or released.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tonnage.aio.backoff import Backoff
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.group_snapshot import IN_GROUP, VolumeGroupSnapshot, group_of
from tonnage.api.kinds import GROUP_SNAPSHOTS, SNAPSHOT_CLASSES, SNAPSHOT_CONTENTS, SNAPSHOTS
from tonnage.api.meta import ObjectMeta
from tonnage.api.origin import is_restore, reference
from tonnage.api.snapshot import (
    CONTENT_BOUND,
    PROVISIONER_SOURCE,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from tonnage.claims.bind import change, find
from tonnage.controller.config import LoopContext
from tonnage.controller.snapshots import decision
from tonnage.controller.snapshots.contents import OF_SNAPSHOTS, ContentWriter
from tonnage.controller.snapshots.decision import (
    BindContent,
    EndContent,
    MakeContent,
    PrepareSnapshot,
    RefuseSnapshot,
    ReleaseSnapshot,
    ShowContent,
    SnapshotFacts,
    WarnOnly,
    content_of,
    decide,
)
from tonnage.controller.snapshots.reports import Reports
from tonnage.controller.snapshots.sources import node_of
from tonnage.errors import (
    ApiConflictError,
    ApiNotFoundError,
)
from tonnage.kube.controller import Reconciler, on_add, on_difference, settle
from tonnage.kube.indexes import claimed, claims, volumes
from tonnage.kube.object_write import patch_object, write_status

log = logging.getLogger(__name__)
RETRY_START, RETRY_MAX = 0.05, 300.0
_BY_CLAIM = "snapshots: snapshots by claim"
_BY_CLASS = "snapshots: unready snapshots by class"
_BY_CONTENT = "snapshots: snapshots by the content that they name"
RESTORES = "snapshots: pending claims by snapshot"
MEMBERS = "snapshots: members by uid of their group"


class SnapshotController(Reconciler[str]):
    """Binds snapshots to contents. Contents are made ready and deleted by the agents of their nodes."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("snapshots", backoff=Backoff(initial=RETRY_START, maximum=RETRY_MAX))
        self._client = context.client
        self._ours, self._reports = frozenset(context.config.drivers), Reports(context, SNAPSHOTS)
        self._content = ContentWriter(context.client, OF_SNAPSHOTS, self._reports)
        informers = context.informers
        # Before the watches: what a cache has already is handled at once.
        self._snapshots = informers.of(SNAPSHOTS).cache
        self._snapshots.add_index(_BY_CLAIM, _source_claim)
        self._snapshots.add_index(_BY_CLASS, _unready_class)
        self._snapshots.add_index(_BY_CONTENT, _source_content)
        self._volumes = self.watch(volumes(informers), on_add(self._volume_added))
        self._claims = self.watch(claims(informers), on_difference(_claim_shape, self._claim_changed))
        self._claims.add_index(RESTORES, restored)
        self._classes = self.watch(informers.of(SNAPSHOT_CLASSES), on_difference(_class_shape, self._class_changed))
        self._contents = self.watch(informers.of(SNAPSHOT_CONTENTS), self._content_changed)
        self._snapshots.add_index(MEMBERS, members)
        self.watch(
            informers.of(GROUP_SNAPSHOTS, optional=True),
            on_difference(lambda group: (group.metadata.uid, group.metadata.deleting), self._group_changed),
        )
        self.watch(informers.of(SNAPSHOTS), on_difference(_shape, lambda snapshot: (snapshot.key,)))

    async def reconcile(self, key: str) -> None:
        """Do what one snapshot needs. Idempotent: a kill between any two writes loses nothing."""
        snapshot = self._snapshots.get(key)
        if snapshot is None:
            self._reports.over(key)
        await settle(snapshot, self._step)

    async def _step(self, snapshot: VolumeSnapshot) -> VolumeSnapshot | None:
        """Run one action; the snapshot as it is then, None where nothing is left to do."""
        facts = await self._facts(snapshot)
        match decide(facts):
            case PrepareSnapshot(storage_class):
                return await self._prepare(snapshot, storage_class)
            case MakeContent(body):
                await self._content.make(snapshot, body, "CreatingSnapshot", "SnapshotContentCreationFailed")
            case BindContent(body):
                await self._content.bind(snapshot, facts.content, body, "SnapshotBindFailed")
            case ShowContent() as shown:
                await self._show(snapshot, shown)
            case RefuseSnapshot(reason, message, ready):
                await self._reports.refuse(snapshot, reason, message, ready=ready)
            case WarnOnly(reason, message):
                self._reports.warn(snapshot, reason, message)
            case EndContent(marked):
                await self._content.end(snapshot, facts.content, "SnapshotContentObjectDeleteError", marked=marked)
            case ReleaseSnapshot(marked):
                await self._release(snapshot, facts.content, marked=marked)
        return None

    # Facts

    async def _facts(self, snapshot: VolumeSnapshot) -> SnapshotFacts:
        name, deleting = content_of(snapshot), snapshot.metadata.deleting
        content = None if deleting else self._contents.get(name)
        if content is None:
            content = await find(self._client, SNAPSHOT_CONTENTS, name)
        restored = next((claim.metadata.name for claim in self._claims.by(RESTORES, snapshot.key)), "")
        if content is not None or deleting:
            group = await self._group_of(snapshot) if deleting else ""
            return SnapshotFacts(snapshot, content, restored=restored, group=group, ours=self._ours)
        claim = self._claims.get(next(iter(_source_claim(snapshot)), ""))
        volume = self._volumes.get(claim.spec.volume_name) if claim is not None else None
        return SnapshotFacts(
            snapshot,
            storage_class=self._classes.get(snapshot.spec.volume_snapshot_class_name or ""),
            defaults=[one for one in self._classes if decision.is_default(one)],
            claim=claim,
            volume=volume,
            node=await node_of(self._client, volume),
            ours=self._ours,
        )

    async def _group_of(self, snapshot: VolumeSnapshot) -> str:
        """The key of the group that a snapshot is a member of, while that is not being deleted; else ""."""
        owner = group_of(snapshot)
        if owner is None:
            return ""
        found = await find(self._client, GROUP_SNAPSHOTS, owner.name, snapshot.metadata.namespace)
        gone = found is None or found.metadata.uid != owner.uid or found.metadata.deleting
        return "" if gone else f"{snapshot.metadata.namespace}/{owner.name}"

    # Actions, in the order of a snapshot's life

    async def _prepare(self, snapshot: VolumeSnapshot, storage_class: str) -> VolumeSnapshot | None:
        finalizers = snapshot.metadata.finalizers
        added = [one for one in decision.PROTECTION if one not in finalizers]
        body: dict[str, Any] = {"metadata": {"finalizers": [*finalizers, *added]}} if added else {}
        if storage_class:
            body["spec"] = {"volumeSnapshotClassName": storage_class}
        with suppress(ApiNotFoundError):
            return await patch_object(self._client, SNAPSHOTS, snapshot, body)
        return None

    async def _show(self, snapshot: VolumeSnapshot, shown: ShowContent) -> None:
        if await write_status(self._client, SNAPSHOTS, snapshot, shown.status) is None:
            return
        key = snapshot.key
        if shown.is_taken:
            text = f"Snapshot {key} was successfully created by the CSI driver."
            self._reports.announce(snapshot, "SnapshotCreated", text)
        if shown.is_ready:
            self._reports.announce(snapshot, "SnapshotReady", f"Snapshot {key} is ready to use.")
        if shown.failure:
            self._reports.warn(snapshot, "SnapshotCreationFailed", shown.failure)

    async def _release(self, snapshot: VolumeSnapshot, content: VolumeSnapshotContent | None, *, marked: bool) -> None:
        if marked and content is not None:
            await self._content.mark(content)

        # An earlier external-provisioner of our driver left its own; that of another driver still uses it.
        is_ours = content is None or content.spec.driver in self._ours
        ends = (*decision.PROTECTION, IN_GROUP, *((PROVISIONER_SOURCE,) if is_ours else ()))

        def body(now: VolumeSnapshot) -> dict[str, object] | None:
            rest = [one for one in now.metadata.finalizers if one not in ends]
            return {"metadata": {"finalizers": rest or None}} if rest != now.metadata.finalizers else None

        with suppress(ApiNotFoundError, ApiConflictError):  # gone; or made anew, which is another snapshot
            await change(self._client, SNAPSHOTS, snapshot, body)

    # Events of the watches

    def _content_changed(self, old: VolumeSnapshotContent | None, new: VolumeSnapshotContent | None) -> Iterable[str]:
        """Those of the snapshots that it points to, and of those that name it."""
        seen = old or new
        assert seen is not None
        if old is None and new is not None and new.spec.source.volume_handle and not _has_answer(new):
            return ()  # ours, or nothing to show yet
        if old is not None and new is not None and _content_shape(old) == _content_shape(new):
            return ()
        refs = [one.spec.volume_snapshot_ref for one in (old, new) if one is not None]
        keys = {f"{ref.namespace}/{ref.name}" for ref in refs}
        keys.update(snapshot.key for snapshot in self._snapshots.by(_BY_CONTENT, seen.metadata.name))
        return sorted(keys)

    def _class_changed(self, changed: VolumeSnapshotClass) -> Iterable[str]:
        found = (*self._snapshots.by(_BY_CLASS, changed.metadata.name), *self._snapshots.by(_BY_CLASS, ""))
        return [snapshot.key for snapshot in found]

    def _claim_changed(self, claim: PersistentVolumeClaim) -> Iterable[str]:
        """Unready snapshots of the claim, and the deleted one that it is made from."""
        found = [one.key for one in self._snapshots.by(_BY_CLAIM, claim.key) if not one.status.ready_to_use]
        source = self._snapshots.get(_snapshot_of(claim))
        return [*found, source.key] if source is not None and source.metadata.deleting else found

    def _group_changed(self, group: VolumeGroupSnapshot) -> Iterable[str]:
        """Members that are being deleted: they wait for their group."""
        found = self._snapshots.by(MEMBERS, group.metadata.uid)
        return [snapshot.key for snapshot in found if snapshot.metadata.deleting]

    def _volume_added(self, volume: PersistentVolume) -> Iterable[str]:
        found = [snapshot for key in claimed(volume) for snapshot in self._snapshots.by(_BY_CLAIM, key)]
        return [snapshot.key for snapshot in found if not snapshot.status.ready_to_use]


def _shape(snapshot: VolumeSnapshot) -> object:
    meta: ObjectMeta = snapshot.metadata
    return meta.uid, meta.deleting, snapshot.spec


def members(snapshot: VolumeSnapshot) -> Iterable[str]:
    """The uid of the group that a snapshot is a member of."""
    owner = group_of(snapshot)
    return (owner.uid,) if owner is not None else ()


def _content_shape(content: VolumeSnapshotContent) -> object:
    return content.metadata.uid, content.spec, content.status, CONTENT_BOUND in content.metadata.finalizers


def _has_answer(content: VolumeSnapshotContent) -> bool:
    return content.status.ready_to_use is not None or content.status.error is not None


def _class_shape(one: VolumeSnapshotClass) -> object:
    return one.driver, one.parameters, one.deletion_policy, decision.is_default(one)


def _claim_shape(claim: PersistentVolumeClaim) -> object:
    return claim.metadata.uid, claim.metadata.deleting, claim.status.phase, claim.spec.volume_name


def _source_claim(snapshot: VolumeSnapshot) -> Iterable[str]:
    name = snapshot.spec.source.persistent_volume_claim_name
    return (f"{snapshot.metadata.namespace}/{name}",) if name else ()


def _source_content(snapshot: VolumeSnapshot) -> Iterable[str]:
    name = snapshot.spec.source.volume_snapshot_content_name
    return (name,) if name else ()


def _unready_class(snapshot: VolumeSnapshot) -> Iterable[str]:
    return () if snapshot.status.ready_to_use else (snapshot.spec.volume_snapshot_class_name or "",)


def _snapshot_of(claim: PersistentVolumeClaim) -> str:
    """Key of the snapshot that a claim is made from, "" for none."""
    ref = reference(claim)
    return f"{claim.metadata.namespace}/{ref.name}" if ref is not None and is_restore(claim) else ""


def restored(claim: PersistentVolumeClaim) -> Iterable[str]:
    """Key of the snapshot that a Pending claim is made from."""
    key = _snapshot_of(claim)
    return (key,) if key and claim.status.phase in ("", "Pending") and not claim.metadata.deleting else ()
