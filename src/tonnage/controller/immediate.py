"""Node selection for immediate binding: the node with most capacity.

For CSI drivers that publish storage capacity; others have provisioners that select the node themselves. The capacity is
what is published, less assumed claims. A claim that fits no node gets an Event, once a minute at most, and is tried
again when capacity, nodes or classes change. The binder comes first: it binds an existing PV that fits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

from tonnage.controller.config import LoopContext, LoopKey
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import (
    CAPACITIES,
    CLAIMS,
    CSI_DRIVERS,
    NODES,
    SNAPSHOT_CONTENTS,
    SNAPSHOTS,
    STORAGE_CLASSES,
)
from tonnage.kubernetes.api.matching import class_name, is_bound, is_provisionable
from tonnage.kubernetes.api.origin import Origin, is_populated, origin_of
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.kubernetes.api.selectors import NodeMatcher
from tonnage.kubernetes.api.storage import CSIDriver, CSIStorageCapacity, StorageClass
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.indexes import CLAIMS_UNBOUND, candidates, claims, volumes
from tonnage.provisioning.capacity.node_template import is_template, published_faults
from tonnage.provisioning.capacity.object import reason
from tonnage.provisioning.capacity.published import PublishedCapacity, PublishedStorage, requested_bytes
from tonnage.provisioning.capacity.topology_index import NodeLabels
from tonnage.provisioning.claims.bind import find_best, is_sent, pause, reschedules_of, send
from tonnage.provisioning.claims.data_source import POPULATED, gone_text, leave_to_populator
from tonnage.provisioning.claims.timers import Waits

CLAIM, CLASS = "claim", "class"
_MOST_FAULTS = 3
_LOOK_AGAIN = 2.5
"""Seconds after which published capacity includes assumed claims."""
_UNPUBLISHED = 5.0
"""Factor of the delay of an Event while no capacity is published."""
_TELL_AGAIN = 60.0
"""Seconds between two Events of one claim."""
_SETTLING_SECONDS = 2.0
"""Seconds for which a bound claim stays reserved at most.

Its published number may be the same as before, so no event shows that it is included."""
_BY_CLASS = "immediate: capacity by class"
_BAD_TAINTS = (names.UNREACHABLE_TAINT, names.NOT_READY_TAINT)


class NodeCapacity(NamedTuple):
    """A usable node, and what it has published for a class."""

    node: str
    capacity: PublishedCapacity


class ImmediateController(Reconciler[LoopKey]):
    """Sets selected-node on claims with immediate binding.

    quiet: seconds before an Event reports insufficient storage.
    """

    def __init__(self, context: LoopContext, *, quiet: float = 1.0) -> None:
        super().__init__("immediate")
        clock, informers = context.clock, context.informers
        self._client, self._events, self._quiet = context.client, context.events, quiet
        self._handles = context.handles
        self._waits, self._clock = Waits(clock), clock
        self._published = PublishedStorage(NodeLabels(), self._wake, self._wake)
        self._bound: deque[tuple[float, str]] = deque()
        self._volumes = self.watch(volumes(informers))
        self._classes = self.watch(informers.of(STORAGE_CLASSES), lambda old, new: self._waiting_in(new))
        self._drivers = self.watch(informers.of(CSI_DRIVERS), self._driver_changed)
        self._nodes = self.watch(informers.of(NODES), self._node_changed)
        self._capacities = self.watch(informers.of(CAPACITIES), self._capacity_changed)
        self._capacities.add_index(_BY_CLASS, lambda capacity: (capacity.storage_class_name,))
        # Looked at with the claims that wait for them; a cluster without snapshots is not waited for.
        self._snapshots = informers.of(SNAPSHOTS, optional=True).cache
        self._contents = informers.of(SNAPSHOT_CONTENTS, optional=True).cache
        self._claims = self.watch(claims(informers), self._claim_changed)

    async def reconcile(self, key: LoopKey) -> float | None:
        """Select a claim's node, or check all claims of a class. Idempotent.

        Raises: ApiError.
        """
        what, name = key
        if what == CLASS:
            self._look_at_waiting(name)
            return None
        claim = self._claims.get(name)
        storage_class = self._classes.get(class_name(claim)) if claim is not None else None
        if claim is None or storage_class is None or not self._is_ours(claim, storage_class):
            return None
        turn = (claim.metadata.uid, reschedules_of(claim))
        if wait := self._waits.left(turn, pause(claim)):
            return wait
        return await self._place(claim, storage_class)

    def _look_at_waiting(self, name: str) -> None:
        """Check the waiting claims of a class.

        Claims that fit no node are skipped: many may wait, and each change of a node would reconcile all.
        """
        storage_class = self._classes.get(name)
        offers = self._offers(storage_class) if storage_class is not None else []
        largest = max((offer.capacity.largest for offer in offers), default=0)
        for waiting in self._claims.by(CLAIMS_UNBOUND, name):
            silent = not self._waits.has_said(waiting.metadata.uid)
            if not is_sent(waiting) and (silent or requested_bytes(waiting) <= largest):
                self.enqueue(LoopKey(CLAIM, waiting.key))

    def _is_ours(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> bool:
        if claim.metadata.deleting or claim.spec.volume_name or is_sent(claim):
            return False
        if storage_class.late or not is_provisionable(storage_class):
            return False
        if not self._handles(storage_class.provisioner):
            return False  # its own provisioner selects the node
        driver = self._drivers.get(names.csi_driver(storage_class.provisioner))
        if driver is None or not driver.spec.storage_capacity:
            return False
        return find_best(claim, candidates(self._volumes, claim), delayed=False) is None

    async def _place(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> float | None:
        meta, size = claim.metadata, requested_bytes(claim)
        if is_populated(claim):  # only the populator's own claim gets a node
            if self._waits.news(meta.uid, POPULATED):
                leave_to_populator(self._events, claim)
            return None
        origin = origin_of(claim, self._claims.get, self._volumes.get, self._snapshots.get, self._contents.get)
        if origin is not None and (fault := self._source_fault(claim, origin)):
            self._tell(claim, fault)
            return _LOOK_AGAIN
        offers = self._offers(storage_class, origin.reach if origin is not None else None)
        fitting = [offer for offer in offers if offer.capacity.largest >= size]
        if not fitting:
            return self._does_not_fit(claim, storage_class, size, offers)
        # Nodes of a tier publish the same number: choose any of them, and not always the same.
        best = max(fitting, key=lambda offer: (offer.capacity.free, crc32(f"{meta.uid} {offer.node}".encode())))
        self._published.reserve(meta.uid, best.node, self._pool_class(storage_class.key, best.node), size)
        try:
            sent = await send(self._client, claim, best.node, storage_class)
        except BaseException:
            self._published.drop(meta.uid, tells=False)  # else the claim would be tried again without back-off
            raise
        self._published.confirm(meta.uid, sent.metadata.version)
        self._waits.over(meta.uid)
        self._waits.over((meta.uid, reschedules_of(claim)))
        return None

    def _source_fault(self, claim: PersistentVolumeClaim, origin: Origin) -> str:
        """Return why its data source can be copied nowhere now, "" if it can."""
        if origin.missing:
            return f"cannot {origin.verb.removesuffix('s')}: {origin.missing}"
        if origin.node and not any(names.label_value(node.metadata.name) == origin.node for node in self._nodes):
            return gone_text(claim, origin)
        return ""

    def _offers(self, storage_class: StorageClass, reach: NodeMatcher | None = None) -> list[NodeCapacity]:
        """Return what each usable node has for the class. reach: only these nodes."""
        before = self._clock.monotonic() - _SETTLING_SECONDS
        while self._bound and self._bound[0][0] < before:
            self._published.drop(self._bound.popleft()[1], tells=False)
        found = []
        for node in self._nodes:
            name, labels = node.metadata.name, node.metadata.labels
            offers = self._published.on(name).get(storage_class.key, ())
            if not offers or not is_usable(node) or not storage_class.allows(labels):
                continue
            if reach is None or reach(labels, name):
                found += [NodeCapacity(name, offer) for offer in offers]
        return found

    def _pool_class(self, storage_class: str, node: str) -> str:
        """Return the class to reserve for, "" where its pool on the node is not known.

        A tier names no pool.
        """
        offers = self._published.on(node).get(storage_class, ())
        return storage_class if offers and not any(offer.tier for offer in offers) else ""

    def _objects_of(self, storage_class: str) -> list[CSIStorageCapacity]:
        """Return all capacity objects of the class for existing nodes."""
        found = self._capacities.by(_BY_CLASS, storage_class)
        return [obj for obj in found if obj.node_topology is not None and not is_template(obj)]

    def _does_not_fit(
        self, claim: PersistentVolumeClaim, storage_class: StorageClass, size: int, offers: list[NodeCapacity]
    ) -> float | None:
        uid, name = claim.metadata.uid, class_name(claim)
        wanted = f"{from_bytes(size)} of class {name}"
        published = self._objects_of(name)
        if faults := published_faults(published):
            message = f"no node can make a volume of class {name}: {'; '.join(faults[:_MOST_FAULTS])}"
            if self._waits.news(uid, message):
                self._events.warning(refer(CLAIMS, claim), "ProvisioningFailed", message)
            return _TELL_AGAIN
        # For a new class, nodes may publish an error shortly.
        if left := self._waits.left(uid, self._quiet if published else _UNPUBLISHED * self._quiet):
            return left
        if published and all(map(reason, published)):
            message = f"no free volume fits {wanted}: {names.AHEAD}"
        elif offers:
            best = max(offers, key=lambda offer: (offer.capacity.largest, offer.node))
            largest = f"maximum volume size is {from_bytes(max(0, best.capacity.largest))} (node {best.node})"
            message = f"insufficient storage for {wanted}: {largest}; retried when capacity grows"
        elif published:
            message = f"no node fits {wanted}: no ready node matches the class's allowedTopologies"
        else:
            driver = storage_class.provisioner
            message = f"no node has published capacity for {wanted}: does driver {driver} run on the nodes?"
        self._tell(claim, message)
        return _LOOK_AGAIN if any(offer.capacity.outstanding for offer in offers) else _TELL_AGAIN

    def _tell(self, claim: PersistentVolumeClaim, message: str) -> None:
        if self._waits.news(claim.metadata.uid, message, pause=_TELL_AGAIN):
            self._events.warning(refer(CLAIMS, claim), "ProvisioningFailed", message)

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[LoopKey]:
        if new is None:
            if old is not None:
                self._forget(old)
            return ()
        self._follow(old, new)
        if is_bound(new) or is_sent(new):
            return ()
        storage_class = self._classes.get(class_name(new))
        if storage_class is None or storage_class.late or new.spec.volume_name:
            return ()  # claims of an unknown class are enqueued when the class comes
        return (LoopKey(CLAIM, new.key),)

    def _follow(self, old: PersistentVolumeClaim | None, claim: PersistentVolumeClaim) -> None:
        """Update the reservation of a claim, also of one whose node others selected, or we before a restart.

        If nothing is published for its class yet, its pool is not known, and it counts against all pools of the node.
        """
        uid, name = claim.metadata.uid, class_name(claim)
        storage_class = self._classes.get(name)
        if is_bound(claim):
            if self._published.node_of(uid) and (old is None or not is_bound(old)):
                self._bound.append((self._clock.monotonic(), uid))
        elif is_sent(claim) and storage_class is not None and not self._draws(storage_class):
            return
        pool_class = self._pool_class(name, claim.metadata.annotations.get(names.SELECTED_NODE, ""))
        self._published.follow(claim, pool_class)

    def _draws(self, storage_class: StorageClass) -> bool:
        """Return whether volumes of the class use published capacity.

        Those of other drivers do not.
        """
        if not self._handles(storage_class.provisioner):
            return False
        driver = self._drivers.get(names.csi_driver(storage_class.provisioner))
        return driver is None or driver.spec.storage_capacity

    def _forget(self, claim: PersistentVolumeClaim) -> None:
        self._published.drop(claim.metadata.uid)
        self._waits.over(claim.metadata.uid)
        self._waits.over((claim.metadata.uid, reschedules_of(claim)))

    def _capacity_changed(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> Iterable[LoopKey]:
        if new is not None:
            self._published.put(new)
        elif old is not None:
            self._published.remove(old.key)
        return ()  # _wake() enqueues: only more capacity, or another reason, matters to a claim

    def _wake(self, offer: PublishedCapacity) -> None:
        for key in self._waiting_in(self._classes.get(offer.storage_class)):
            self.enqueue(key)

    def _node_changed(self, old: Node | None, new: Node | None) -> Iterable[LoopKey]:
        for node in (old, new):
            if node is not None:
                self._published.set_node(node.metadata.name, new.metadata.labels if new is not None else None)
        if new is None or (old is not None and _shape(old) == _shape(new)):
            return ()
        return [key for storage_class in self._classes for key in self._waiting_in(storage_class)]

    def _driver_changed(self, old: CSIDriver | None, new: CSIDriver | None) -> Iterable[LoopKey]:
        if new is None:
            return ()
        served = [c for c in self._classes if new.metadata.name in (c.provisioner, names.csi_driver(c.provisioner))]
        return [key for storage_class in served for key in self._waiting_in(storage_class)]

    def _waiting_in(self, storage_class: StorageClass | None) -> Iterable[LoopKey]:
        return () if storage_class is None or storage_class.late else (LoopKey(CLASS, storage_class.metadata.name),)


def is_usable(node: Node) -> bool:
    """Return whether the node is ready and not cordoned."""
    return not node.spec.unschedulable and not any(t.key in _BAD_TAINTS for t in node.spec.taints)


def _shape(node: Node) -> tuple[dict[str, str], bool]:
    return node.metadata.labels, is_usable(node)
