"""The loop of a snapshot controller: one key for each snapshot or group, one action after the other.

Everything that a snapshot can wait for is watched, so nothing is polled. Our own writes wake nothing: status and
finalizers of snapshots, new contents, and what a deletion marks are ignored. A content is read live before anything is
made, deleted or released.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic

from tonnage.base.aio.backoff import Backoff
from tonnage.base.errors import ApiConflictError, ApiNotFoundError
from tonnage.controller.config import LoopContext
from tonnage.controller.snapshots.contents import ContentWriter
from tonnage.controller.snapshots.decision import (
    BindContent,
    EndContent,
    Ending,
    EndMembers,
    MakeContent,
    MakeMembers,
    PrepareSnapshot,
    RejectSnapshot,
    ReleaseSnapshot,
    ShowContent,
    SnapshotFacts,
    WarnOnly,
    decide,
    reasons_of,
)
from tonnage.controller.snapshots.members import MemberFacts
from tonnage.controller.snapshots.reports import Reports
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import SNAPSHOTS
from tonnage.kubernetes.api.origin import is_restore, reference
from tonnage.kubernetes.api.snapshot import PROVISIONER_SOURCE
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.controller import Reconciler, on_add, on_difference, settle
from tonnage.kubernetes.client.indexes import claimed, claims, volumes
from tonnage.kubernetes.client.object_write import delete_object, patch_object, without_finalizers, write_status
from tonnage.provisioning.claims.bind import change, find
from tonnage.provisioning.claims.snapshot_shape import C, K, S, SnapshotShape, SnapshotSource

log = logging.getLogger(__name__)
RETRY_START, RETRY_MAX = 0.05, 300.0
RESTORES = "snapshots: pending claims by snapshot"


class SnapshotLoop(Reconciler[str], Generic[S, C, K]):
    """Binds the snapshots of one shape to contents, which the agents of their nodes make ready and delete."""

    def __init__(self, name: str, context: LoopContext, shape: SnapshotShape[S, C, K]) -> None:
        super().__init__(name, backoff=Backoff(initial=RETRY_START, maximum=RETRY_MAX))
        self._shape: SnapshotShape[S, C, K] = shape
        self._client, self._reasons = context.client, reasons_of(shape)
        self._reports: Reports[S] = Reports(context, shape.snapshots)
        self._content: ContentWriter[S, C, K] = ContentWriter(context.client, shape, self._reports)
        self._ours, informers = frozenset(context.config.drivers), context.informers
        self._by_source, self._by_class, self._by_content = (f"{name}: by {key}" for key in ("source", "class", "name"))
        # Before the watches: what a cache has already is handled at once.
        own = informers.of(shape.snapshots, optional=shape.is_optional)
        self._snapshots: Cache[S] = own.cache
        self._snapshots.add_index(self._by_source, self._sources_of)
        self._snapshots.add_index(self._by_class, self._unready_class)
        self._snapshots.add_index(self._by_content, lambda snapshot: filter(None, [shape.named_content(snapshot)]))
        self._volumes = self.watch(volumes(informers), on_add(self._volume_added))
        self._claims = self.watch(claims(informers), on_difference(_claim_shape, self._claim_changed))
        self._claims.add_index(RESTORES, restored)
        classes = informers.of(shape.classes, optional=shape.is_optional)
        self._classes: Cache[K] = self.watch(classes, on_difference(self._class_shape, self._class_changed))
        contents = informers.of(shape.contents, optional=shape.is_optional)
        self._contents: Cache[C] = self.watch(contents, self._content_changed)
        self._watch_others(context)
        self.watch(own, on_difference(_snapshot_shape, lambda snapshot: (snapshot.key,)))

    @abstractmethod
    def _watch_others(self, context: LoopContext) -> None:
        """Watch what only this shape waits for."""

    @abstractmethod
    def _place_of(self, claim: str) -> str:
        """The place of the claim of that key, by which snapshots are found: its key, or its namespace."""

    @abstractmethod
    async def _sources(self, snapshot: S) -> list[SnapshotSource]:
        """The claims that a snapshot is made of. Raises: ApiError, UnavailableError."""

    @abstractmethod
    async def _ending(self, snapshot: S, content: C | None) -> SnapshotFacts[S, C, K]:
        """What keeps a snapshot that is being deleted. Raises: ApiError, UnavailableError."""

    def _members_of(self, snapshot: S, content: C) -> list[MemberFacts]:
        """The members of a group, as its content has them."""
        return []

    async def _make_members(self, snapshot: S, content: C | None, lacking: Sequence[MemberFacts]) -> None:
        """Make members of a group."""

    async def reconcile(self, key: str) -> None:
        """Do what one snapshot needs. Idempotent: a kill between any two writes loses nothing."""
        snapshot = self._snapshots.get(key)
        if snapshot is None:
            self._reports.over(key)
        await settle(snapshot, self._step)

    async def _step(self, snapshot: S) -> S | None:
        """Run one action; the snapshot as it is then, None where nothing is left to do."""
        facts = await self._facts(snapshot)
        match decide(facts):
            case PrepareSnapshot(storage_class):
                return await self._prepare(snapshot, storage_class)
            case MakeContent(body):
                await self._content.make(snapshot, body, self._reasons.creating, self._reasons.not_made)
            case BindContent(body):
                await self._content.bind(snapshot, facts.content, body, self._reasons.not_bound)
            case MakeMembers(lacking):
                await self._make_members(snapshot, facts.content, lacking)
            case ShowContent() as shown:
                await self._show(snapshot, shown)
            case RejectSnapshot(reason, message, ready):
                await self._reports.reject(snapshot, reason, message, ready=ready)
            case WarnOnly(reason, message):
                self._reports.warn(snapshot, reason, message)
            case EndMembers() | EndContent() | ReleaseSnapshot() as end:
                await self._end(snapshot, facts.content, end)
        return None

    async def _facts(self, snapshot: S) -> SnapshotFacts[S, C, K]:
        shape = self._shape
        deleting: bool = snapshot.metadata.deleting
        name = shape.content_of(snapshot)
        content = None if deleting else self._contents.get(name)
        if content is None:
            content = await find(self._client, shape.contents, name)
        if deleting:
            return await self._ending(snapshot, content)
        if content is not None:
            members = self._members_of(snapshot, content)
            return SnapshotFacts(shape, snapshot, content, members=members, ours=self._ours)
        return SnapshotFacts(
            shape,
            snapshot,
            storage_class=self._classes.get(shape.class_name(snapshot)),
            defaults=[one for one in self._classes if shape.is_default(one)],
            sources=await self._sources(snapshot),
            ours=self._ours,
        )

    # Actions, in the order of a snapshot's life

    async def _prepare(self, snapshot: S, storage_class: str) -> S | None:
        finalizers: list[str] = snapshot.metadata.finalizers
        added: list[str] = [one for one in self._shape.protection if one not in finalizers]
        body: dict[str, Any] = {"metadata": {"finalizers": [*finalizers, *added]}} if added else {}
        if storage_class:
            body["spec"] = {self._shape.field("ClassName"): storage_class}
        with suppress(ApiNotFoundError):
            return await patch_object(self._client, self._shape.snapshots, snapshot, body)
        return None

    async def _show(self, snapshot: S, shown: ShowContent) -> None:
        if await write_status(self._client, self._shape.snapshots, snapshot, shown.status) is None:
            return
        key = snapshot.key
        if shown.is_taken and self._reasons.created:
            text = f"Snapshot {key} was successfully created by the CSI driver."
            self._reports.announce(snapshot, self._reasons.created, text)
        if shown.is_ready:
            text = f"{self._shape.word.capitalize()} {key} is ready to use."
            self._reports.announce(snapshot, self._reasons.ready, text)
        if shown.failure:
            self._reports.warn(snapshot, self._reasons.failed, shown.failure)

    async def _end(self, snapshot: S, content: C | None, action: Ending) -> None:
        match action:
            case EndMembers(members):
                for member in members:
                    await delete_object(self._client, SNAPSHOTS, member)
            case EndContent(marked):
                await self._content.end(snapshot, content, self._reasons.not_deleted, marked=marked)
            case ReleaseSnapshot(marked):
                if marked and content is not None:
                    await self._content.mark(content)
                await self._release(snapshot, content)

    async def _release(self, snapshot: S, content: C | None) -> None:
        # An earlier external-provisioner of our driver left its own; that of another driver still uses it.
        is_ours = content is None or content.spec.driver in self._ours
        ours = [one for one in self._shape.ends if is_ours or one != PROVISIONER_SOURCE]
        with suppress(ApiNotFoundError, ApiConflictError):  # gone; or made anew, which is another snapshot
            await change(self._client, self._shape.snapshots, snapshot, lambda now: without_finalizers(now, *ours))

    # Events of the watches

    def _content_changed(self, old: C | None, new: C | None) -> Iterable[str]:
        """Those of the snapshots that it points to, and of those that name it."""
        shape, seen = self._shape, old or new
        assert seen is not None
        if old is None and new is not None and not shape.is_given(new) and not _has_answer(new):
            return ()  # ours, or nothing to show yet
        if old is not None and new is not None and self._content_shape(old) == self._content_shape(new):
            return ()
        refs = [shape.ref(one) for one in (old, new) if one is not None]
        keys = {f"{ref.namespace}/{ref.name}" for ref in refs}
        keys.update(snapshot.key for snapshot in self._snapshots.by(self._by_content, seen.metadata.name))
        return sorted(keys)

    def _content_shape(self, content: C) -> object:
        meta = content.metadata
        return meta.uid, content.spec, content.status, self._shape.content_finalizer in meta.finalizers

    def _class_changed(self, changed: K) -> Iterable[str]:
        found = (*self._snapshots.by(self._by_class, changed.metadata.name), *self._snapshots.by(self._by_class, ""))
        return [snapshot.key for snapshot in found]

    def _class_shape(self, one: K) -> object:
        return one.driver, one.parameters, one.deletion_policy, self._shape.is_default(one)

    def _claim_changed(self, claim: PersistentVolumeClaim) -> Iterable[str]:
        """Open snapshots that the claim may be a source of, and the deleted one that it is made from."""
        found: list[str] = [snapshot.key for snapshot in self._snapshots.by(self._by_source, self._place_of(claim.key))]
        source = self._snapshots.get(snapshot_of(claim))
        return [*found, source.key] if source is not None and source.metadata.deleting else found

    def _volume_added(self, volume: PersistentVolume) -> Iterable[str]:
        places = {self._place_of(key) for key in claimed(volume)}
        return [snapshot.key for place in places for snapshot in self._snapshots.by(self._by_source, place)]

    def _sources_of(self, snapshot: S) -> Iterable[str]:
        key = f"{snapshot.metadata.namespace}/{self._shape.claim_of(snapshot)}"
        return (self._place_of(key),) if is_open(snapshot) else ()

    def _restored(self, keys: Iterable[str]) -> str:
        """A Pending claim that is made from one of these VolumeSnapshots, "" for none."""
        return next((claim.metadata.name for key in keys for claim in self._claims.by(RESTORES, key)), "")

    def _unready_class(self, snapshot: S) -> Iterable[str]:
        return () if snapshot.status.ready_to_use else (self._shape.class_name(snapshot),)


def is_open(snapshot: S) -> bool:
    """Whether a snapshot is not ready, or is being deleted."""
    return not snapshot.status.ready_to_use or snapshot.metadata.deleting


def _snapshot_shape(snapshot: S) -> object:
    return snapshot.metadata.uid, snapshot.metadata.deleting, snapshot.spec


def _has_answer(content: C) -> bool:
    return content.status.ready_to_use is not None or content.status.error is not None


def _claim_shape(claim: PersistentVolumeClaim) -> object:
    meta = claim.metadata
    return meta.uid, meta.deleting, meta.labels, claim.status.phase, claim.spec.volume_name


def snapshot_of(claim: PersistentVolumeClaim) -> str:
    """Key of the snapshot that a claim is made from, "" for none."""
    ref = reference(claim)
    return f"{claim.metadata.namespace}/{ref.name}" if ref is not None and is_restore(claim) else ""


def restored(claim: PersistentVolumeClaim) -> Iterable[str]:
    """Key of the snapshot that a Pending claim is made from."""
    key = snapshot_of(claim)
    return (key,) if key and claim.status.phase in ("", "Pending") and not claim.metadata.deleting else ()
