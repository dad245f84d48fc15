"""Volumes of lost nodes: they stay, or are released after a time.

Their class decides. A node is lost when its Node object is deleted, or has the taint
`node.kubernetes.io/out-of-service`. The time of the loss is an annotation of the PV, so a restart of this controller
loses no time. A release deletes the claim: a StatefulSet's pod then gets a new one on another node. The PV stays,
Released with policy Delete. If the node returns, its agent erases and deletes the volume as for any Released PV, then
deletes the PV. If a node never returns, a person deletes its PVs and their finalizers.

Snapshots of lost nodes stay too. One that is being deleted waits for its node's agent, and keeps its VolumeSnapshot and
its namespace: after the time that its VolumeSnapshotClass names, the content's finalizer is taken off. If the node
returns, the snapshot is an orphan. Groups of snapshots are released as single ones; the class of a group is that of its
members too.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from tonnage.base.aio.clock import rfc3339, time_of
from tonnage.base.errors import ApiConflictError, ApiNotFoundError, InvalidError
from tonnage.base.observe import metrics
from tonnage.controller.config import LoopContext, node_label_of
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node, PersistentVolume
from tonnage.kubernetes.api.group_snapshot import (
    GROUP_CONTENT_BOUND,
    GROUP_HANDLE,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
)
from tonnage.kubernetes.api.kinds import (
    CLAIMS,
    GROUP_CLASSES,
    GROUP_CONTENTS,
    GROUP_SNAPSHOTS,
    NODES,
    SNAPSHOT_CLASSES,
    SNAPSHOT_CONTENTS,
    SNAPSHOTS,
    STORAGE_CLASSES,
    VOLUMES,
    Kind,
)
from tonnage.kubernetes.api.meta import ObjectReference
from tonnage.kubernetes.api.selectors import node_matcher
from tonnage.kubernetes.api.snapshot import CONTENT_BOUND, MANAGED_BY, VolumeSnapshotClass, VolumeSnapshotContent
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.client import Unreadable, refer
from tonnage.kubernetes.client.controller import Reconciler, on_difference
from tonnage.kubernetes.client.object_write import without_finalizers
from tonnage.provisioning.claims.bind import change
from tonnage.provisioning.claims.provisioning import release_after

log = logging.getLogger(__name__)
_VOLUMES_BY_LABEL = "gone nodes: volumes by node"
_VOLUMES_BY_CLASS = "gone nodes: volumes by class"
_CONTENTS_BY_NODE = "gone nodes: contents by node"
_GROUPS_BY_HANDLE = "gone nodes: contents of groups by handle"
_Content = VolumeSnapshotContent | VolumeGroupSnapshotContent


class GoneNodes(Reconciler[str]):
    """Loop over bound PVs of our drivers. Keys are their names."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("gone_nodes")
        self._client, self._events, self._clock = context.client, context.events, context.clock
        self._drivers, informers = frozenset(context.config.drivers), context.informers
        # A monotonic time, whatever happens to the machine's clock: user data depends on it.
        self._epoch = self._clock.time() - self._clock.monotonic()
        self._gone: set[str] = set()
        self._volumes = self.watch(informers.of(VOLUMES), self._volume_changed)
        self._volumes.add_index(_VOLUMES_BY_LABEL, lambda volume: (node_label_of(volume),))
        self._volumes.add_index(_VOLUMES_BY_CLASS, lambda volume: (volume.spec.storage_class_name,))
        self._classes = self.watch(informers.of(STORAGE_CLASSES), self._class_changed)
        # Nodes that come, go, or are put in or out of service.
        self._nodes = self.watch(
            informers.of(NODES), on_difference(lambda node: node.is_out_of_service, self._node_changed)
        )

    async def reconcile(self, key: str) -> float | None:
        """Note the loss, wait, or release one PV. Idempotent.

        Returns seconds until its release. Raises: ApiError.
        """
        volume = self._volumes.get(key)
        if volume is None or not self._is_ours(volume):
            self._count(key, gone=False)
            return None
        gone = self._is_gone(volume, list(self._nodes))
        self._count(key, gone=gone)
        after = self._release_after(volume)
        if not gone or after is None:
            if names.NODE_GONE_SINCE in volume.metadata.annotations:
                await self._note(volume, None)
            return None
        now = self._epoch + self._clock.monotonic()
        since = _since(volume)
        if since is None:
            await self._note(volume, rfc3339(now))
            self._announce(volume, after)
            return after
        left = min(after, since + after - now)
        if left > 0:
            return left
        await self._release(volume)
        return None

    # Lost nodes

    def _is_ours(self, volume: PersistentVolume) -> bool:
        """Return whether an agent of ours created the PV, and it is bound.

        A Released PV already needs only its node.
        """
        source = volume.spec.csi
        return source is not None and source.driver in self._drivers and volume.status.phase == "Bound"

    def _is_gone(
        self, volume: PersistentVolume, nodes: Collection[Node], unreadable: Iterable[Unreadable] = ()
    ) -> bool:
        """Return whether the PV's node is not among these nodes.

        False without any node: something else is wrong. unreadable: existing Nodes that cannot be read; one of them may
        be out of service.
        """
        label, affinity = node_label_of(volume), volume.spec.node_affinity
        if not label or affinity is None or affinity.required is None or not nodes:
            return False
        there = [node.metadata for node in nodes if not node.is_out_of_service] + [
            found.metadata for found in unreadable
        ]
        if any(not node.name or names.label_value(node.name) == label for node in there):
            return False
        matches = node_matcher(affinity.required)
        return not any(matches(node.labels, node.name) for node in there)

    def _release_after(self, volume: PersistentVolume) -> float | None:
        """Return the class's release time in seconds, None for never.

        A person releases a PV with policy Retain, or whose class is gone or invalid.
        """
        storage_class = self._classes.get(volume.spec.storage_class_name)
        if storage_class is None or volume.spec.persistent_volume_reclaim_policy != "Delete":
            return None
        try:
            return release_after(storage_class.parameters)
        except InvalidError:  # the agents report it on the class
            return None

    def _count(self, key: str, *, gone: bool) -> None:
        (self._gone.add if gone else self._gone.discard)(key)
        metrics.GONE.set(len(self._gone))

    # Actions

    async def _note(self, volume: PersistentVolume, since: str | None) -> None:
        def body(now: PersistentVolume) -> dict[str, object] | None:
            if now.metadata.annotations.get(names.NODE_GONE_SINCE) == since:
                return None
            return {"metadata": {"annotations": {names.NODE_GONE_SINCE: since}}}

        with suppress(ApiNotFoundError):
            await change(self._client, VOLUMES, volume, body)

    def _announce(self, volume: PersistentVolume, after: float) -> None:
        ref = volume.spec.claim_ref
        text = (
            f"node {node_label_of(volume)} is gone; if it stays away for {after:.0f} s, claim"
            f" {ref.namespace if ref else ''}/{ref.name if ref else ''} is deleted, as class"
            f" {volume.spec.storage_class_name} says ({names.ON_NODE_GONE})"
        )
        self._events.warning(refer(VOLUMES, volume), "NodeGone", text)

    async def _release(self, cached: PersistentVolume) -> None:
        """Delete the claim if all conditions still hold.

        Live reads, since user data depends on them.
        """
        try:
            volume = await self._client.get(VOLUMES, cached.metadata.name)
            ref = volume.spec.claim_ref
            same = volume.metadata.uid == cached.metadata.uid and _since(volume) == _since(cached)
            if not same or not self._is_ours(volume) or ref is None or not await self._is_gone_live(volume):
                return
            claim = await self._client.get(CLAIMS, ref.name, ref.namespace)
            if claim.metadata.uid != ref.uid or claim.metadata.deleting:
                return
            await self._client.delete(CLAIMS, ref.name, ref.namespace, uid=ref.uid)
        except (ApiNotFoundError, ApiConflictError):  # gone, or another claim by now
            return
        log.warning("claim of a lost node released claim=%s volume=%s", claim.key, volume.metadata.name)
        text = (
            f"deleted: node {node_label_of(volume)} with its volume is gone since"
            f" {volume.metadata.annotations[names.NODE_GONE_SINCE]}; if the node returns, the volume is deleted"
        )
        self._events.warning(refer(CLAIMS, claim), "NodeGone", text)
        self._events.warning(refer(VOLUMES, volume), "NodeGone", f"claim {claim.key} {text}")

    async def _is_gone_live(self, volume: PersistentVolume) -> bool:
        """Check the loss by a live list of all nodes.

        A label need not be a node's name, and no release may depend on a stale watch.
        """
        found = await self._client.list(NODES, tolerant=True)
        return self._is_gone(volume, found.items, found.unreadable)

    # Events

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[str]:
        if new is None:
            assert old is not None
            self._count(old.key, gone=False)
            return ()
        if old is not None and _shape(old) == _shape(new):
            return ()
        return (new.key,)

    def _node_changed(self, node: Node) -> Iterable[str]:
        return [volume.key for volume in self._volumes.by(_VOLUMES_BY_LABEL, names.label_value(node.metadata.name))]

    def _class_changed(self, old: StorageClass | None, new: StorageClass | None) -> Iterable[str]:
        if new is None or (old is not None and old.parameters == new.parameters):
            return ()
        return [volume.key for volume in self._volumes.by(_VOLUMES_BY_CLASS, new.metadata.name)]


class GoneSnapshots(Reconciler[str]):
    """Loop over contents of snapshots and of groups that are being deleted. Keys are `<plural of the kind>/<name>`.

    A cluster without these kinds is not waited for.
    """

    def __init__(self, context: LoopContext) -> None:
        super().__init__("gone_snapshots")
        self._client, self._events, self._clock = context.client, context.events, context.clock
        self._drivers, informers = frozenset(context.config.drivers), context.informers
        self._epoch = self._clock.time() - self._clock.monotonic()
        # Waited for, where they are served: without its class a content would count as one that is never released.
        self._contents = self.watch(informers.of(SNAPSHOT_CONTENTS, optional=True))
        self._groups = self.watch(informers.of(GROUP_CONTENTS, optional=True))
        self._groups.add_index(_GROUPS_BY_HANDLE, lambda group: (_place(group, group.handle),))
        for cache in (self._contents, self._groups):
            cache.add_index(_CONTENTS_BY_NODE, lambda content: (content.metadata.labels.get(MANAGED_BY, ""),))
            cache.on_change(self._content_changed)
        self._classes = self.watch(informers.of(SNAPSHOT_CLASSES, optional=True))
        self._group_classes = self.watch(informers.of(GROUP_CLASSES, optional=True))
        for classes in (self._classes, self._group_classes):
            classes.on_change(self._class_changed)
        self._nodes = self.watch(
            informers.of(NODES), on_difference(lambda node: node.is_out_of_service, self._node_changed)
        )

    async def reconcile(self, key: str) -> float | None:
        """Note the loss, wait, or take the finalizer off. Idempotent.

        Returns seconds until then. Raises: ApiError.
        """
        plural, _, name = key.partition("/")
        content: _Content | None
        content = self._groups.get(name) if plural == GROUP_CONTENTS.plural else self._contents.get(name)
        if content is None or not self._waits(content):
            return None
        after = self._release_after(content)
        if after is None or not _is_without(content, [n.metadata.name for n in self._nodes if not n.is_out_of_service]):
            if names.NODE_GONE_SINCE in content.metadata.annotations:
                await self._note(content, None)
            return None
        now = self._epoch + self._clock.monotonic()
        since = time_of(content.metadata.annotations.get(names.NODE_GONE_SINCE))
        if since is None:
            await self._note(content, rfc3339(now))
            self._tell(content, f"is released if the node stays away for {after:.0f} s ({names.ON_NODE_GONE})")
            return after
        if (left := min(after, since + after - now)) > 0:
            return left
        await self._release(content)
        return None

    def _waits(self, content: _Content) -> bool:
        """Return whether it is being deleted, and only its node's agent keeps it."""
        is_ours = content.spec.driver in self._drivers and bool(content.metadata.labels.get(MANAGED_BY))
        return is_ours and content.metadata.deleting and _finalizer(content) in content.metadata.finalizers

    def _release_after(self, content: _Content) -> float | None:
        group: VolumeGroupSnapshotContent | None = None
        if isinstance(content, VolumeGroupSnapshotContent):
            group = content
        elif handle := content.metadata.annotations.get(GROUP_HANDLE):  # a member names no class
            group = next(iter(self._groups.by(_GROUPS_BY_HANDLE, _place(content, handle))), None)
        found: VolumeSnapshotClass | VolumeGroupSnapshotClass | None
        if group is not None:
            found = self._group_classes.get(group.spec.volume_group_snapshot_class_name)
        else:
            assert isinstance(content, VolumeSnapshotContent)
            found = self._classes.get(content.spec.volume_snapshot_class_name)
        try:
            return release_after(found.parameters if found is not None else {})
        except InvalidError:  # the agents report it with the next snapshot
            return None

    async def _note(self, content: _Content, since: str | None) -> None:
        def body(now: _Content) -> dict[str, object] | None:
            if now.metadata.annotations.get(names.NODE_GONE_SINCE) == since:
                return None
            return {"metadata": {"annotations": {names.NODE_GONE_SINCE: since}}}

        with suppress(ApiNotFoundError):
            await change(self._client, _kind(content), content, body)

    async def _release(self, cached: _Content) -> None:
        """Take the finalizer off if the node is still gone, by live reads."""
        noted, finalizer = cached.metadata.annotations.get(names.NODE_GONE_SINCE), _finalizer(cached)

        def body(now: _Content) -> dict[str, object] | None:
            if not self._waits(now) or now.metadata.annotations.get(names.NODE_GONE_SINCE) != noted:
                return None
            return without_finalizers(now, finalizer)

        found = await self._client.list(NODES, tolerant=True)
        there = [node.metadata.name for node in found.items if not node.is_out_of_service]
        if not _is_without(cached, [*there, *(one.metadata.name for one in found.unreadable)]):
            return
        with suppress(ApiNotFoundError, ApiConflictError):
            now = await change(self._client, _kind(cached), cached, body)
            if finalizer in now.metadata.finalizers:  # it need not be released any more
                return
            log.warning("content of a lost node released content=%s snapshot=%s", cached.key, cached.handle)
            self._tell(cached, "is released; if the node returns, it is an orphan there (`tonnage volumes orphans`)")

    def _tell(self, content: _Content, text: str) -> None:
        message = f"node {content.metadata.labels[MANAGED_BY]} is gone: snapshot {content.handle} {text}"
        if isinstance(content, VolumeGroupSnapshotContent):
            ref, users = content.spec.volume_group_snapshot_ref, GROUP_SNAPSHOTS.head()
            self._events.warning(refer(GROUP_CONTENTS, content), "NodeGone", message)
        else:
            ref, users = content.spec.volume_snapshot_ref, SNAPSHOTS.head()
            self._events.warning(refer(SNAPSHOT_CONTENTS, content), "NodeGone", message)
        if ref.name:
            about = ObjectReference(users["apiVersion"], users["kind"], ref.namespace, ref.name, ref.uid)
            self._events.warning(about, "NodeGone", message)

    # Events

    def _content_changed(self, old: _Content | None, new: _Content | None) -> None:
        """Handle a content that begins to be deleted, or whose note changes; others need no agent."""
        if new is not None and self._waits(new) and (old is None or _content_shape(old) != _content_shape(new)):
            self.enqueue(_key(new))

    def _class_changed(self, old: object, new: object) -> None:
        """Look at all that wait: they are few."""
        for content in (*self._contents, *self._groups):
            if new is not None and self._waits(content):
                self.enqueue(_key(content))

    def _node_changed(self, node: Node) -> Iterable[str]:
        label = names.label_value(node.metadata.name)
        return [_key(one) for cache in (self._contents, self._groups) for one in cache.by(_CONTENTS_BY_NODE, label)]


def _kind(content: _Content) -> Kind[Any]:
    return GROUP_CONTENTS if isinstance(content, VolumeGroupSnapshotContent) else SNAPSHOT_CONTENTS


def _finalizer(content: _Content) -> str:
    return GROUP_CONTENT_BOUND if isinstance(content, VolumeGroupSnapshotContent) else CONTENT_BOUND


def _key(content: _Content) -> str:
    return f"{_kind(content).plural}/{content.metadata.name}"


def _place(content: _Content, handle: str) -> str:
    """Driver, node and id of a group: nodes may have groups of the same id."""
    return f"{content.spec.driver} {content.metadata.labels.get(MANAGED_BY, '')} {handle}"


def _is_without(content: _Content, nodes: Collection[str]) -> bool:
    """Return whether the content's node is not among these; False without any: something else is wrong."""
    label = content.metadata.labels.get(MANAGED_BY, "")
    return bool(nodes) and bool(label) and not any(not name or names.label_value(name) == label for name in nodes)


def _content_shape(content: _Content) -> tuple[object, ...]:
    meta = content.metadata
    return meta.deleting, meta.finalizers, meta.labels.get(MANAGED_BY), meta.annotations.get(names.NODE_GONE_SINCE)


def _since(volume: PersistentVolume) -> float | None:
    return time_of(volume.metadata.annotations.get(names.NODE_GONE_SINCE))


def _shape(volume: PersistentVolume) -> tuple[object, ...]:
    note = volume.metadata.annotations.get(names.NODE_GONE_SINCE)
    return volume.status.phase, node_label_of(volume), note, volume.spec.persistent_volume_reclaim_policy
