"""Scheduler cache: state of the cluster, and the events that may help rejected pods.

Each handler takes one watch event. It updates the node table, published capacity and free PVs, and emits what is better
now; the queue decides which pods that wakes (KEP-4247). No handler blocks.

Ignored: heartbeats of nodes (no label, taint or amount changes), capacity that falls or vanishes (it helps no pod), and
changes of a PV that has a claim (the claim's own event matters).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import matching, names
from tonnage.kubernetes.api.core import Node, PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.storage import CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment
from tonnage.provisioning.capacity.published import PublishedCapacity, PublishedStorage
from tonnage.provisioning.capacity.topology_index import NodeLabels
from tonnage.scheduler.framework.nodes import Columns, Residents
from tonnage.scheduler.framework.plugin import FREED, RejectionCause, SchedulingDecision
from tonnage.scheduler.framework.pod_info import AffinityTerms, Ask, claim_uses, compile_affinity, compile_demand
from tonnage.scheduler.framework.queue import ClusterEvent, QueuedPod
from tonnage.scheduler.framework.storage_objects import StaticVolumes, StorageObjects, claim_key
from tonnage.scheduler.plugins.inter_pod import TopologyPairs

log = logging.getLogger(__name__)
_ON_NODES = ~(RejectionCause.CLAIM | RejectionCause.EXCLUSIVE | RejectionCause.UNSUPPORTED)
_ON_VOLUMES = RejectionCause.STORAGE | RejectionCause.BINDING | RejectionCause.CLAIM | RejectionCause.EXCLUSIVE


class Cluster:
    """State of the cluster for decisions.

    It follows the caches of `objects`; the caller reports all other changes. emit: called with each event, at once.
    """

    def __init__(self, objects: StorageObjects, emit: Callable[[ClusterEvent], None] = lambda event: None) -> None:
        self.objects, self._emit = objects, emit
        self.columns = Columns()
        self.residents = Residents()
        self.static = StaticVolumes()
        self.published = PublishedStorage(NodeLabels(), self._capacity_changed, self._reason)
        self.topology_pairs = TopologyPairs(self.columns)
        self.improvements = 0
        """Incremented when a rejected pod may fit."""
        self.neighbour_changes = 0
        """Incremented when affinity and spread may have other results."""
        self._registered: dict[str, frozenset[str]] = {}  # node -> its CSI drivers
        self._attachments: dict[str, tuple[int, str, str]] = {}
        self._unresolved: dict[str, VolumeAttachment] = {}
        objects.classes.on_change(self.class_changed)
        objects.drivers.on_change(self.driver_changed)
        objects.volumes.on_change(self.volume_changed)
        objects.claims.on_change(self.claim_changed)

    def _improved(
        self, causes: RejectionCause, helps: Callable[[QueuedPod], bool] | None = None, *, alike: bool = False
    ) -> None:
        self.improvements += 1
        self._emit(ClusterEvent(causes, helps, alike=alike))

    def reservation_released(self) -> None:
        """Handle reserved capacity of a node that is free again."""
        self._improved(FREED)

    # Nodes

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Handle a node that came, changed or was deleted."""
        node = new or old
        assert node is not None
        if new is None:
            self._remove_node(node.metadata.name)
            return
        if old is not None and _same_for_pods(old, new):
            return
        try:
            better = self.columns.set_node(new)
        except InvalidError as failure:
            log.warning("node not usable node=%s error=%s", node.metadata.name, failure)
            self._remove_node(node.metadata.name)
            return
        self.published.set_node(node.metadata.name, new.metadata.labels)
        self._look_again(node.metadata.name)
        if RejectionCause.NODE in better:
            self._improved(_ON_NODES)
        elif RejectionCause.RESOURCES in better:
            self._improved(RejectionCause.RESOURCES, self._fits_on(self.columns.slots[node.metadata.name]))

    def _remove_node(self, name: str) -> None:
        self.columns.remove_node(name)
        self.published.set_node(name, None)
        self.improvements += 1  # cached rejections include this node
        self._look_again(name)

    def _look_again(self, name: str) -> None:
        """Update the pod counts of a node's topology domains."""
        if (slot := self.columns.slots.get(name)) is not None:
            self.topology_pairs.look(slot)
            self._neighbours_changed()

    def _fits_on(self, slot: int) -> Callable[[QueuedPod], bool]:
        return lambda entry: self.columns.has_capacity(slot, entry.ask.demand)

    def csi_node_changed(self, old: CSINode | None, new: CSINode | None) -> None:
        """Handle changed drivers of a node."""
        if new is not None:
            self._registered[new.metadata.name] = frozenset(driver.name for driver in new.spec.drivers)
            if self.columns.set_limits(new):
                self._improved(RejectionCause.LIMITS)
        elif old is not None:
            self._registered.pop(old.metadata.name, None)
            self.columns.clear_limits(old.metadata.name)
            self._improved(RejectionCause.LIMITS)

    def is_registered(self, driver: str) -> bool:
        """Return whether some node has a CSI driver of that name, or the one that serves a provisioner of that name."""
        driver = names.csi_driver(driver)
        return any(driver in drivers for drivers in self._registered.values())

    # Pods on nodes

    def pod_placed(self, pod: Pod) -> None:
        """Count a pod on its node, whichever scheduler set it."""
        claims = [use.key for use in claim_uses(pod)]
        try:
            demand = compile_demand(pod)
        except InvalidError as failure:
            log.warning("pod not counted pod=%s error=%s", pod.key, failure)
            return
        used, before = self.objects.used_by(claims), self.columns.placed.get(pod.metadata.uid)
        self.columns.place(pod.metadata.uid, pod.spec.node_name, demand, used, claims)
        if before is not None and before.demand.inline and not demand.inline:
            # It has started: published capacity includes its volumes.
            self._improved(RejectionCause.STORAGE, _asks_inline)
        self.residents.put(pod, pod.spec.node_name)
        try:
            self._neighbour_came(pod, compile_affinity(pod), pod.spec.node_name)
        except InvalidError as failure:
            log.warning("pod not counted for affinity and spread pod=%s error=%s", pod.key, failure)

    def _neighbour_came(self, pod: Pod, terms: AffinityTerms, node: str) -> None:
        meta, slot = pod.metadata, self.columns.slot(node)
        if self.topology_pairs.place(meta.uid, slot, terms, alive=not meta.deleting):
            self._neighbours_changed(terms)

    def _neighbours_changed(self, terms: AffinityTerms | None = None) -> None:
        """Wake pods that were rejected for affinity or spread.

        terms: the terms of a pod that came or went, None for a changed node.
        """
        self.neighbour_changes += 1
        helps = (lambda entry: entry.ask.terms.is_affected_by(terms)) if terms is not None else None
        self._emit(ClusterEvent(RejectionCause.NEIGHBOURS, helps))

    def settle(self) -> None:
        """Resolve references when all caches are filled for the first time.

        Objects may come before the objects that they name.
        """
        self._recount(self.columns.placed)
        for attachment in list(self._unresolved.values()):
            self.attachment_changed(None, attachment)

    def _recount(self, uids: Iterable[str]) -> None:
        """Resolve again which volumes placed pods use."""
        for uid in list(uids):
            there = self.columns.placed[uid]
            used = self.objects.used_by(there.claims)
            self.columns.place(uid, self.columns.names[there.slot], there.demand, used, there.claims)

    def pod_lifted(self, uid: str) -> None:
        """Remove a pod that left its node, or will not come."""
        placement = self.columns.placed.get(uid)
        if placement is None:
            return
        self.residents.drop(uid)
        if (terms := self.topology_pairs.lift(uid)) is not None:
            self._neighbours_changed(terms)
        for cause in self.columns.lift(uid):
            if cause is RejectionCause.RESOURCES:
                self._improved(cause, self._fits_on(placement.slot), alike=True)
            else:
                self._improved(cause)

    # Claims and volumes

    def claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """Handle a claim that came, changed or was deleted."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self.published.drop(old.metadata.uid)
        if new is None:
            return
        if old is None or old.spec.volume_name != new.spec.volume_name:
            self._recount(self.columns.claim_users.get(new.key, ()))
        self.published.follow(new, matching.class_name(new), exact=old is not None)
        self._emit(ClusterEvent(_ON_VOLUMES, claim=new.key))

    def volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """Handle a PV that came, changed or was deleted."""
        try:
            freed = self.static.put(old, new)
        except InvalidError as failure:
            log.warning("volume not usable volume=%s error=%s", (new or old), failure)
            return
        if new is None:
            return
        if freed:
            self._improved(
                RejectionCause.BINDING | RejectionCause.STORAGE,
                lambda entry: self._wants(entry, new.spec.storage_class_name),
            )
        key = claim_key(new)
        if key and (old is None or claim_key(old) != key):
            self._emit(ClusterEvent(_ON_VOLUMES, claim=key))

    def _wants(self, entry: QueuedPod, storage_class: str) -> bool:
        claims = (self.objects.claims.get(use.key) for use in entry.ask.claims)
        return any(claim is not None and matching.class_name(claim) == storage_class for claim in claims)

    def class_changed(self, old: StorageClass | None, new: StorageClass | None) -> None:
        """Handle a class that came, changed or was deleted."""
        if new is not None and (old is None or old.allowed_topologies != new.allowed_topologies):
            self._improved(_ON_VOLUMES)
        elif new is None:
            self.improvements += 1

    def driver_changed(self, old: CSIDriver | None, new: CSIDriver | None) -> None:
        """Handle a driver that came, changed or was deleted.

        Its capacity may no longer be checked.
        """
        before = old is not None and old.spec.storage_capacity
        after = new is not None and new.spec.storage_capacity
        if before and not after:
            self._improved(RejectionCause.STORAGE)

    def attachment_changed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        """Handle an attachment: it counts against the node's limit."""
        key = (new or old).key  # type: ignore[union-attr]
        self._unresolved.pop(key, None)
        gone = self._attachments.pop(key, None)
        if gone is not None:
            self.columns.attach(*gone, -1)
        if new is not None and (found := self._resolve(new)) is not None:
            self._attachments[key] = found
            self.columns.attach(*found, 1)
        elif new is not None:
            self._unresolved[key] = new
        if gone is not None and new is None:
            self._improved(RejectionCause.LIMITS)

    def _resolve(self, attachment: VolumeAttachment) -> tuple[int, str, str] | None:
        """Return (node index, driver, claim key or PV) of an attachment."""
        node = attachment.spec.get("nodeName")
        name = (attachment.spec.get("source") or {}).get("persistentVolumeName")
        volume = self.objects.volumes.get(name) if name else None
        if not node or volume is None or volume.spec.csi is None:
            return None
        return self.columns.slot(node), volume.spec.csi.driver, claim_key(volume) or f"volume {name}"

    # Capacity

    def capacity_changed(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> None:
        """Handle a capacity object that came, changed or was deleted."""
        try:
            if new is not None:
                self.published.put(new)
            elif old is not None:
                self.published.remove(old.key)
        except InvalidError as failure:
            log.warning("capacity not usable object=%s error=%s", (new or old), failure)

    def _capacity_changed(self, offer: PublishedCapacity) -> None:
        """Wake pods that may fit increased capacity."""

        def fits(entry: QueuedPod) -> bool:
            sizes = [size for storage_class, size in entry.needs if storage_class == offer.storage_class]
            enough = bool(sizes) and sum(sizes) <= offer.left and max(sizes) <= offer.largest
            return enough or _asks_inline(entry)

        self._improved(RejectionCause.STORAGE, fits, alike=True)

    def _reason(self, offer: PublishedCapacity) -> None:
        """Wake pods that must report another reason of a capacity object."""
        self._improved(
            RejectionCause.STORAGE | RejectionCause.CLAIM, lambda entry: self._wants(entry, offer.storage_class)
        )

    # Decisions

    def assume(self, ask: Ask, decision: SchedulingDecision) -> None:
        """Count a pod on its node before the API server has the decision; pod_lifted() undoes it."""
        claims = [use.key for use in ask.claims]
        self.columns.place(ask.pod.metadata.uid, decision.node, ask.demand, decision.volumes.used, claims)
        self.residents.put(ask.pod, decision.node)
        self._neighbour_came(ask.pod, ask.terms, decision.node)


def _asks_inline(entry: QueuedPod) -> bool:
    return bool(entry.ask.demand.inline)


def _same_for_pods(old: Node, new: Node) -> bool:
    return (
        old.spec == new.spec
        and old.status.allocatable == new.status.allocatable
        and old.metadata.labels == new.metadata.labels
    )
