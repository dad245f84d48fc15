"""Pre-assigned pods, clones and restored snapshots: sets selected-node on their claims.

Pre-assigned pods: no scheduler sees such a pod (docs/reference/kubernetes/gaps.md has the gap, and why the agent must
not close it). A scheduler sets a pod's node only after its claims are bound, so a pod with a node and an unbound claim
is pre-assigned.

Copies: a clone or a restored snapshot can only be created on its source's node, and kube-scheduler ignores data
sources. But it keeps a pod to the selected node of its claims. All claims of such a pod therefore get the source's node
when the pod appears, and an Event on the pod says where and why.

Watched: pods that appear or get a node, claims that appear or become free, sources that become bound, snapshots whose
node becomes known, and nodes that appear. A cluster without snapshots is not waited for. A claim that was rescheduled
for insufficient storage gets the same node again after a back-off, and an Event on the pod says so: no other node is
chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tonnage.base.errors import PreconditionError
from tonnage.controller.config import LoopContext, is_unstarted
from tonnage.kubernetes.api.core import Node, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import NODES, PODS, SNAPSHOT_CONTENTS, SNAPSHOTS, STORAGE_CLASSES
from tonnage.kubernetes.api.matching import class_name, is_bound, is_delayed, is_provisionable
from tonnage.kubernetes.api.origin import is_copy, is_restore, origin_of, reference
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.snapshot import MANAGED_BY, VolumeSnapshot, VolumeSnapshotContent
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client import indexes
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler, on_add
from tonnage.kubernetes.client.indexes import (
    CLAIMS_UNBOUND,
    PODS_BY_CLAIM,
    VOLUMES_BY_CLAIM,
    claims,
    pods_by_claim,
    volumes,
)
from tonnage.provisioning.claims.bind import is_sent, pause, reschedules_of, send
from tonnage.provisioning.claims.node_scope import check_owner
from tonnage.provisioning.claims.timers import Waits

_PODS_BY_NODE = "hand placed: pods by node"
_COPIES = "hand placed: unbound claims that are to be copies"
_CLAIMS_BY_SOURCE = "hand placed: unbound claims by the claim or snapshot that they are to be a copy of"
_RESTORE = "snapshot "
"""Prefix of the key of a source that is a snapshot."""


class _Place(NamedTuple):
    """The only node of a pod, and why."""

    node: str
    reason: str


class PreassignedPods(Reconciler[str]):
    """Sets selected-node where one node is possible. Keys are pods."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("preassigned_pods")
        self._client, self._events, informers = context.client, context.events, context.informers
        self._handles, self._choosing = context.handles, context.choosing
        self._waits = Waits(context.clock)
        pods, claim_informer = pods_by_claim(informers, fields=context.pod_fields), claims(informers)
        self._pods, self._claims, self._volumes = pods.cache, claim_informer.cache, self.watch(volumes(informers))
        self._pods.add_index(_PODS_BY_NODE, _unstarted_by_node)
        self._claims.add_index(_CLAIMS_BY_SOURCE, _source)
        self._claims.add_index(_COPIES, lambda claim: ("",) if _source(claim) else ())
        self._classes = self.watch(informers.of(STORAGE_CLASSES), on_add(self._class_added))
        self._nodes = self.watch(informers.of(NODES), on_add(self._node_added))
        self._snapshots = informers.of(SNAPSHOTS, optional=True).cache
        self._contents = informers.of(SNAPSHOT_CONTENTS, optional=True).cache
        self._snapshots.on_change(self._snapshot_changed)
        self._contents.on_change(self._content_changed)
        self.watch(claim_informer, self._claim_changed)
        self.watch(pods, self._pod_changed)

    async def reconcile(self, key: str) -> float | None:
        """Set selected-node on the pod's claims. Idempotent.

        Rescheduled claims get it again after a back-off; returns its seconds.
        """
        pod = self._pods.get(key)
        place = self._place(pod) if pod is not None and is_unstarted(pod) else None
        if pod is None or place is None or self._nodes.get(place.node) is None:
            return None
        later: list[float] = []
        for claim in indexes.claims_of(pod, self._claims):
            storage_class = self._classes.get(class_name(claim))
            if storage_class is None or not self._to_be_sent(claim, storage_class, pod):
                continue
            if wait := self._waits.left(_turn(claim), pause(claim)):
                later.append(wait)
                self._tell(pod, claim, place)
            else:
                await send(self._client, claim, place.node, storage_class)
                self._waits.over(_turn(claim))
                self._explain(pod, claim, place)
        return min(later, default=None)

    def _place(self, pod: Pod) -> _Place | None:
        """Return the only node of the pod, None if a scheduler chooses."""
        if pod.spec.node_name:
            return _Place(pod.spec.node_name, "the pod is pre-assigned")
        found = {place.node: place for place in self._sources(pod)}
        return next(iter(found.values())) if len(found) == 1 else None

    def _sources(self, pod: Pod) -> Iterator[_Place]:
        """Return the nodes of the sources that the pod's claims copy."""
        if self._choosing is None or pod.spec.scheduler_name in self._choosing:
            return
        for claim in self._unbound(pod):
            origin = origin_of(claim, self._claims.get, self._volumes.get, self._snapshots.get, self._contents.get)
            if origin is None or (reach := origin.reach) is None:
                continue
            nodes = [n.metadata.name for n in self._nodes if reach(n.metadata.labels, n.metadata.name)]
            if len(nodes) == 1:
                what = f"its claim {claim.metadata.name} {origin.verb} {origin.text}"
                yield _Place(nodes[0], f"{what}, which is there")

    def _unbound(self, pod: Pod) -> Iterator[PersistentVolumeClaim]:
        return (claim for claim in indexes.claims_of(pod, self._claims) if not claim.spec.volume_name)

    def _explain(self, pod: Pod, claim: PersistentVolumeClaim, place: _Place) -> None:
        """Emit once for a copy where its pod goes, and why: the scheduler's own Event names no cause."""
        if is_copy(claim) and not pod.spec.node_name and not reschedules_of(claim):
            self._events.normal(refer(PODS, pod), "DataSourceNode", f"node {place.node} is selected: {place.reason}")

    def _tell(self, pod: Pod, claim: PersistentVolumeClaim, place: _Place) -> None:
        """Emit once for each reschedule that the claim did not fit.

        The claim's own Events have the shortfall.
        """
        text = (
            f"insufficient storage on node {place.node} for claim {claim.metadata.name} (see the claim's Events):"
            f" {place.reason}, so no other node is possible; retrying"
        )
        if self._waits.news(_turn(claim), text):
            self._events.warning(refer(PODS, pod), "InsufficientStorage", text)

    def _to_be_sent(self, claim: PersistentVolumeClaim, storage_class: StorageClass, pod: Pod) -> bool:
        if claim.metadata.deleting or is_sent(claim) or not is_delayed(claim, storage_class):
            return False
        if not is_provisionable(storage_class) or self._volumes.by(VOLUMES_BY_CLAIM, claim.key):
            return False
        return self._handles(storage_class.provisioner) and _may_use(pod, claim)

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[str]:
        if new is None:
            if old is not None:
                self._waits.over(_turn(old))
            return ()
        if is_bound(new) and (old is None or not is_bound(old)):
            return self._users(self._claims.by(_CLAIMS_BY_SOURCE, new.key))
        return () if is_sent(new) or new.spec.volume_name else self._users([new])

    def _snapshot_changed(self, old: VolumeSnapshot | None, new: VolumeSnapshot | None) -> None:
        """Handle a snapshot that appears, or is bound to its content."""
        bound = [s.status.bound_volume_snapshot_content_name if s is not None else "" for s in (old, new)]
        if new is not None and (old is None or bound[0] != bound[1]):
            self._restored(new.key)

    def _content_changed(self, old: VolumeSnapshotContent | None, new: VolumeSnapshotContent | None) -> None:
        """Handle a content whose node becomes known."""
        node = new.metadata.labels.get(MANAGED_BY) if new is not None else None
        if new is not None and node and (old is None or old.metadata.labels.get(MANAGED_BY) != node):
            ref = new.spec.volume_snapshot_ref
            self._restored(f"{ref.namespace}/{ref.name}")

    def _restored(self, snapshot: str) -> None:
        for key in self._users(self._claims.by(_CLAIMS_BY_SOURCE, f"{_RESTORE}{snapshot}")):
            self.enqueue(key)

    def _users(self, claims_: Iterable[PersistentVolumeClaim]) -> list[str]:
        """Return waiting pods of these claims that may have one possible node."""
        return [p.key for c in claims_ for p in self._pods.by(PODS_BY_CLAIM, c.key) if self._may_have_place(p)]

    def _may_have_place(self, pod: Pod) -> bool:
        return is_unstarted(pod) and (bool(pod.spec.node_name) or any(is_copy(c) for c in self._unbound(pod)))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        """Handle pods that come or get a node, while a claim of theirs waits."""
        if new is None or (old is not None and old.spec.node_name == new.spec.node_name):
            return ()
        if not any(not is_sent(claim) for claim in self._unbound(new)) or not self._may_have_place(new):
            return ()
        return (new.key,)

    def _class_added(self, added: StorageClass) -> Iterable[str]:
        return self._users(self._claims.by(CLAIMS_UNBOUND, added.metadata.name))

    def _node_added(self, added: Node) -> Iterable[str]:
        placed = [pod.key for pod in self._pods.by(_PODS_BY_NODE, added.metadata.name)]
        return [*placed, *self._users(self._claims.by(_COPIES, ""))]


def _unstarted_by_node(pod: Pod) -> Iterable[str]:
    return (pod.spec.node_name,) if pod.spec.node_name and is_unstarted(pod) and pod.claim_names() else ()


def _source(claim: PersistentVolumeClaim) -> Iterable[str]:
    """Return the key of the claim that this one clones, or of the snapshot that it restores."""
    ref = reference(claim)
    if ref is None or claim.spec.volume_name or not is_copy(claim):
        return ()
    return (f"{_RESTORE if is_restore(claim) else ''}{claim.metadata.namespace}/{ref.name}",)


def _may_use(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    """Return whether the pod may use the claim: an ephemeral one must be its own."""
    for volume in pod.spec.volumes:
        if volume.ephemeral is not None and f"{pod.metadata.name}-{volume.name}" == claim.metadata.name:
            try:
                check_owner(claim, pod)
            except PreconditionError:
                return False
    return True


def _turn(claim: PersistentVolumeClaim) -> tuple[str, int]:
    """Return the key of a wait: each reschedule starts a new one."""
    return claim.metadata.uid, reschedules_of(claim)
