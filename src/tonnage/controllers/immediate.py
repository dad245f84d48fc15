"""Picks the node for claims whose class binds at once: the one with the most free room where the claim fits.

For CSI drivers that publish storage capacity (others have provisioners that pick for themselves). Free room is what is
published, less what was sent there by us and is not yet counted (promises.py). A claim that fits nowhere gets an Event
and is tried again when capacity, nodes or classes change. A volume that exists and fits goes first: that is the
binder's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from tonnage.aio.clock import Clock, RealClock
from tonnage.api import names
from tonnage.api.core import Node, PersistentVolumeClaim
from tonnage.api.kinds import CAPACITIES, CLAIMS, CSI_DRIVERS, NODES, STORAGE_CLASSES
from tonnage.api.matching import class_name, is_bound, is_provisionable, requested
from tonnage.api.quantity import from_bytes, to_bytes
from tonnage.api.selectors import from_label_selector
from tonnage.api.storage import CSIDriver, CSIStorageCapacity, StorageClass
from tonnage.controllers.binding import find_best
from tonnage.controllers.indexes import CLAIMS_UNBOUND, candidates, claims, volumes
from tonnage.controllers.promises import Promise, Promises
from tonnage.controllers.sending import is_sent, pause, send, withdrawals
from tonnage.controllers.waits import Waits
from tonnage.kube.client import Client, refer
from tonnage.kube.controller import Controller
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers

CLAIM, CLASS = "claim", "class"
_BY_CLASS = "immediate: capacity by class"
_BY_LABEL = "immediate: nodes by label"
_BAD_TAINTS = (names.UNREACHABLE_TAINT, names.NOT_READY_TAINT)
_MOST_FAULTS = 3
_LOOK_AGAIN = 2.5
"""Seconds after which promises that hold room have become published numbers."""


class Key(NamedTuple):
    """A claim, or all waiting claims of a class."""

    what: str
    key: str


class Offer(NamedTuple):
    """What a node has free for a class: in all, and for one volume (bytes)."""

    free: int
    largest: int
    node: str
    room: str


class ImmediateController:
    """Sends claims of Immediate classes to nodes. provisioners: only claims of these (none: of all). quiet: seconds
    before an Event says that there is no room."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder,
        *,
        provisioners: Collection[str] = (),
        clock: Clock | None = None,
        quiet: float = 1.0,
    ) -> None:
        clock = clock or RealClock()
        self._provisioners = frozenset(provisioners)
        self._client, self._events, self._quiet = client, events, quiet
        self._waits, self._promises = Waits(clock), Promises(clock)
        claim_informer, volume_informer = claims(informers), volumes(informers)
        capacities, nodes = informers.of(CAPACITIES), informers.of(NODES)
        classes, drivers = informers.of(STORAGE_CLASSES), informers.of(CSI_DRIVERS)
        self._claims, self._volumes, self._nodes = claim_informer.cache, volume_informer.cache, nodes.cache
        self._capacities, self._classes, self._drivers = capacities.cache, classes.cache, drivers.cache
        self._capacities.add_index(_BY_CLASS, lambda capacity: (capacity.storage_class_name,))
        self._nodes.add_index(_BY_LABEL, lambda node: [f"{k}={v}" for k, v in node.metadata.labels.items()])
        self._controller: Controller[tuple[str, str]] = Controller("immediate", self.reconcile)
        self._controller.watch(volume_informer, lambda old, new: ())
        self._controller.watch(classes, _class_changed)
        self._controller.watch(drivers, self._driver_changed)
        self._controller.watch(nodes, self._node_changed)
        self._controller.watch(capacities, self._capacity_changed)
        self._controller.watch(claim_informer, self._claim_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    async def reconcile(self, key: tuple[str, str]) -> float | None:
        """Send a claim, or look at all that wait in a class. May be repeated. Raises ApiError."""
        what, name = key
        if what == CLASS:
            for waiting in self._claims.by(CLAIMS_UNBOUND, name):
                if not is_sent(waiting):
                    self._controller.enqueue(Key(CLAIM, waiting.key))
            return None
        claim = self._claims.get(name)
        storage_class = self._classes.get(class_name(claim)) if claim is not None else None
        if claim is None or storage_class is None or not self._is_ours(claim, storage_class):
            return None
        turn = (claim.metadata.uid, withdrawals(claim))
        if wait := self._waits.left(turn, pause(claim)):
            return wait
        return await self._place(claim, storage_class)

    def _is_ours(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> bool:
        if claim.metadata.deleting or claim.spec.volume_name or is_sent(claim):
            return False
        if storage_class.late or not is_provisionable(storage_class):
            return False
        if self._provisioners and storage_class.provisioner not in self._provisioners:
            return False  # its own provisioner picks
        driver = self._drivers.get(storage_class.provisioner)
        if driver is None or not driver.spec.storage_capacity:
            return False
        return find_best(claim, candidates(self._volumes, claim), delayed=False) is None

    async def _place(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> float | None:
        meta, size = claim.metadata, requested(claim)
        offers = list(self._offers(storage_class))
        fitting = [offer for offer in offers if offer.largest >= size]
        if not fitting:
            return self._no_room(claim, storage_class, size, offers)
        best = max(fitting, key=lambda offer: (offer.free, offer.node))
        self._promises.book(meta.uid, Promise(best.node, best.room, size))
        try:
            sent = await send(self._client, claim, best.node, storage_class)
        except BaseException:
            self._promises.drop(meta.uid)
            raise
        self._promises.written(meta.uid, int(sent.metadata.resource_version))
        self._waits.over(meta.uid)
        self._waits.over((meta.uid, withdrawals(claim)))
        return None

    def _offers(self, storage_class: StorageClass) -> Iterator[Offer]:
        name = storage_class.metadata.name
        for published in self._capacities.by(_BY_CLASS, name):
            free, largest = _published(published)
            room = published.metadata.labels.get(names.POOL_LABEL, name)
            for node in self._reached(published):
                if _usable(node) and _allowed(node, storage_class):
                    promised = self._promises.open(node.metadata.name, room, _counted(published))
                    yield Offer(free - promised, largest - promised, node.metadata.name, room)

    def _reached(self, published: CSIStorageCapacity) -> list[Node]:
        """The nodes that a capacity object speaks of."""
        topology = published.node_topology
        if topology is None:
            return []
        pair = next(iter(topology.match_labels.items()), None)
        nodes = list(self._nodes) if pair is None else self._nodes.by(_BY_LABEL, f"{pair[0]}={pair[1]}")
        selector = from_label_selector(topology)
        return [node for node in nodes if selector.matches(node.metadata.labels)]

    def _no_room(
        self, claim: PersistentVolumeClaim, storage_class: StorageClass, size: int, offers: list[Offer]
    ) -> float | None:
        uid = claim.metadata.uid
        if left := self._waits.left(uid, self._quiet):
            return left
        name = class_name(claim)
        wanted = f"{from_bytes(size)} of class {name}"
        published = self._capacities.by(_BY_CLASS, name)
        faults = {_reason(c): None for c in published}
        if faults and all(faults):
            message = f"no node can make a volume of class {name}: {'; '.join(list(faults)[:_MOST_FAULTS])}"
        elif offers:
            best = max(offers, key=lambda offer: (offer.largest, offer.node))
            largest = f"the most that one has for a volume is {from_bytes(max(0, best.largest))} (node {best.node})"
            message = f"no node has room for {wanted}: {largest}. It is tried again when capacity grows."
        elif published:
            message = f"no node may take {wanted}: none that is ready matches the class's allowedTopologies."
        else:
            driver = storage_class.provisioner
            message = f"no node has published capacity for {wanted}: does driver {driver} run on the nodes?"
        if self._waits.news(uid, message):
            self._events.warning(refer(CLAIMS, claim), "ProvisioningFailed", message)
        return _LOOK_AGAIN if len(self._promises) else None

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[Key]:
        if new is None:
            if old is not None:
                self._forget(old)
            return ()
        uid = new.metadata.uid
        if is_bound(new):
            self._promises.bound(uid)
            return ()
        if is_sent(new):
            if old is None or not is_sent(old):
                self._remember(new)
            return ()
        self._promises.returned(uid, int(new.metadata.resource_version))
        storage_class = self._classes.get(class_name(new))
        if storage_class is None or storage_class.late or new.spec.volume_name:
            return ()  # a class that is not known yet brings its claims when it comes
        return (Key(CLAIM, new.key),)

    def _remember(self, claim: PersistentVolumeClaim) -> None:
        """A claim sent by others, or before we started: its room is not known, so it counts against all of the node."""
        storage_class = self._classes.get(class_name(claim))
        if claim.metadata.uid in self._promises or (storage_class is not None and storage_class.late):
            return
        node, version = claim.metadata.annotations[names.SELECTED_NODE], int(claim.metadata.resource_version)
        self._promises.book(claim.metadata.uid, Promise(node, "", requested(claim), version))

    def _forget(self, claim: PersistentVolumeClaim) -> None:
        self._promises.drop(claim.metadata.uid)
        self._waits.over(claim.metadata.uid)
        self._waits.over((claim.metadata.uid, withdrawals(claim)))

    def _capacity_changed(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> Iterable[Key]:
        """Less room helps nobody, unless it is less because something promised is counted now."""
        if new is None:
            return ()
        same_reason = old is not None and _reason(new) == _reason(old)
        if old is not None and same_reason and _published(new) <= _published(old) and _counted(new) == _counted(old):
            return ()
        return self._waiting_in(self._classes.get(new.storage_class_name))

    def _node_changed(self, old: Node | None, new: Node | None) -> Iterable[Key]:
        if new is None or (old is not None and _shape(old) == _shape(new)):
            return ()
        return [key for storage_class in self._classes for key in self._waiting_in(storage_class)]

    def _driver_changed(self, old: CSIDriver | None, new: CSIDriver | None) -> Iterable[Key]:
        if new is None:
            return ()
        served = [c for c in self._classes if c.provisioner == new.metadata.name]
        return [key for storage_class in served for key in self._waiting_in(storage_class)]

    def _waiting_in(self, storage_class: StorageClass | None) -> Iterable[Key]:
        return () if storage_class is None or storage_class.late else (Key(CLASS, storage_class.metadata.name),)


def _class_changed(old: StorageClass | None, new: StorageClass | None) -> Iterable[Key]:
    return () if new is None or new.late else (Key(CLASS, new.metadata.name),)


def _published(capacity: CSIStorageCapacity) -> tuple[int, int]:
    """Free bytes in all and for one volume; what is not said is taken from the other, nothing at all is nothing."""
    whole, largest = capacity.capacity, capacity.maximum_volume_size
    free = to_bytes(whole or largest or "0")
    return free, min(free, to_bytes(largest)) if largest else free


def _counted(capacity: CSIStorageCapacity) -> int | None:
    text = capacity.metadata.annotations.get(names.COUNTED, "")
    return int(text) if text.isdecimal() else None


def _reason(capacity: CSIStorageCapacity) -> str:
    return capacity.metadata.annotations.get(names.REASON, "")


def _usable(node: Node) -> bool:
    return not node.spec.unschedulable and not any(t.key in _BAD_TAINTS for t in node.spec.taints)


def _shape(node: Node) -> tuple[dict[str, str], bool]:
    return node.metadata.labels, _usable(node)


def _allowed(node: Node, storage_class: StorageClass) -> bool:
    terms = storage_class.allowed_topologies
    labels = node.metadata.labels
    return not terms or any(all(labels.get(e.key) in e.values for e in term.match_label_expressions) for term in terms)
