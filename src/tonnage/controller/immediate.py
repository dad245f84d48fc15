"""Node selection for immediate binding: the node with most capacity.

For CSI drivers that publish storage capacity; others have provisioners that select the node themselves. The capacity is
what is published, less assumed claims. A claim that fits no node gets an Event, once a minute at most, and is tried
again when capacity, nodes or classes change. The binder comes first: it binds an existing PV that fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from tonnage.api import names
from tonnage.api.core import Node, PersistentVolumeClaim
from tonnage.api.kinds import CAPACITIES, CLAIMS, CSI_DRIVERS, NODES, STORAGE_CLASSES
from tonnage.api.matching import class_name, is_bound, is_provisionable
from tonnage.api.origin import is_populated, origin_of
from tonnage.api.quantity import from_bytes
from tonnage.api.storage import CSIDriver, CSIStorageCapacity, StorageClass
from tonnage.capacity.assumed import AssumedClaim, Promises
from tonnage.capacity.candidates import NodeCapacity, Offers, is_usable, numbers
from tonnage.capacity.object import reason
from tonnage.capacity.published_faults import published_faults
from tonnage.claims.bind import find_best
from tonnage.claims.external_populator import POPULATED, leave_to_populator
from tonnage.claims.selected_node import is_sent, pause, send, withdrawals
from tonnage.claims.timers import Waits
from tonnage.controller.config import LoopContext, LoopKey, requested_bytes
from tonnage.kube.client import refer
from tonnage.kube.controller import Reconciler
from tonnage.kube.indexes import CLAIMS_UNBOUND, candidates, claims, volumes

CLAIM, CLASS = "claim", "class"
_MOST_FAULTS = 3
_LOOK_AGAIN = 2.5
"""Seconds after which published capacity includes assumed claims."""
_UNPUBLISHED = 5.0
"""Factor of the delay of an Event while no capacity is published."""
_TELL_AGAIN = 60.0
"""Seconds between two Events of one claim."""


class ImmediateController(Reconciler[LoopKey]):
    """Sets selected-node on claims with immediate binding.

    quiet: seconds before an Event reports insufficient storage.
    """

    def __init__(self, context: LoopContext, *, quiet: float = 1.0) -> None:
        clock, informers = context.clock, context.informers
        self._client, self._events, self._quiet = context.client, context.events, quiet
        self._handles = context.handles
        self._waits, self._promises = Waits(clock), Promises(clock)
        claim_informer, volume_informer = claims(informers), volumes(informers)
        capacities, nodes = informers.of(CAPACITIES), informers.of(NODES)
        classes, drivers = informers.of(STORAGE_CLASSES), informers.of(CSI_DRIVERS)
        self._claims, self._volumes, self._nodes = claim_informer.cache, volume_informer.cache, nodes.cache
        self._capacities, self._classes, self._drivers = capacities.cache, classes.cache, drivers.cache
        self._offers = Offers(capacities.cache, nodes.cache, self._promises)
        super().__init__("immediate")
        self.watch(volume_informer, lambda old, new: ())
        self.watch(classes, _class_changed)
        self.watch(drivers, self._driver_changed)
        self.watch(nodes, self._node_changed)
        self.watch(capacities, self._capacity_changed)
        self.watch(claim_informer, self._claim_changed)

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
        turn = (claim.metadata.uid, withdrawals(claim))
        if wait := self._waits.left(turn, pause(claim)):
            return wait
        return await self._place(claim, storage_class)

    def _look_at_waiting(self, name: str) -> None:
        """Check the waiting claims of a class.

        Claims that fit no node are skipped: many may wait, and each change of a node would reconcile all.
        """
        storage_class = self._classes.get(name)
        offers = list(self._offers.of(storage_class)) if storage_class is not None else []
        largest = max((offer.largest for offer in offers), default=0)
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
        driver = self._drivers.get(storage_class.provisioner)
        if driver is None or not driver.spec.storage_capacity:
            return False
        return find_best(claim, candidates(self._volumes, claim), delayed=False) is None

    async def _place(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> float | None:
        meta, size = claim.metadata, requested_bytes(claim)
        if is_populated(claim):  # only the populator's own claim gets a node
            if self._waits.news(meta.uid, POPULATED):
                leave_to_populator(self._events, claim)
            return None
        origin = origin_of(claim, self._claims.get, self._volumes.get)
        if origin is not None and origin.volume is None:
            self._tell(claim, f"cannot clone: {origin.missing}")
            return _LOOK_AGAIN
        offers = list(self._offers.of(storage_class, origin.reach if origin is not None else None))
        fitting = [offer for offer in offers if offer.largest >= size]
        if not fitting:
            return self._no_room(claim, storage_class, size, offers)
        # Nodes of a tier publish the same number: choose any of them, and not always the same.
        best = max(fitting, key=lambda offer: (offer.free, crc32(f"{meta.uid} {offer.node}".encode())))
        self._promises.book(meta.uid, AssumedClaim(best.node, best.room, size))
        try:
            sent = await send(self._client, claim, best.node, storage_class)
        except BaseException:
            self._promises.drop(meta.uid)
            raise
        self._promises.written(meta.uid, int(sent.metadata.resource_version))
        self._waits.over(meta.uid)
        self._waits.over((meta.uid, withdrawals(claim)))
        return None

    def _no_room(
        self, claim: PersistentVolumeClaim, storage_class: StorageClass, size: int, offers: list[NodeCapacity]
    ) -> float | None:
        uid, name = claim.metadata.uid, class_name(claim)
        wanted = f"{from_bytes(size)} of class {name}"
        published = self._offers.published(name)
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
            best = max(offers, key=lambda offer: (offer.largest, offer.node))
            largest = f"maximum volume size is {from_bytes(max(0, best.largest))} (node {best.node})"
            message = f"insufficient storage for {wanted}: {largest}; retried when capacity grows"
        elif published:
            message = f"no node fits {wanted}: no ready node matches the class's allowedTopologies"
        else:
            driver = storage_class.provisioner
            message = f"no node has published capacity for {wanted}: does driver {driver} run on the nodes?"
        self._tell(claim, message)
        return _LOOK_AGAIN if any(offer.held for offer in offers) else _TELL_AGAIN

    def _tell(self, claim: PersistentVolumeClaim, message: str) -> None:
        if self._waits.news(claim.metadata.uid, message, pause=_TELL_AGAIN):
            self._events.warning(refer(CLAIMS, claim), "ProvisioningFailed", message)

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[LoopKey]:
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
            return ()  # claims of an unknown class are enqueued when the class comes
        return (LoopKey(CLAIM, new.key),)

    def _remember(self, claim: PersistentVolumeClaim) -> None:
        """Assume a claim whose node others selected, or we before a restart.

        If nothing is published for its class yet, its pool is not known, and it counts against all pools of the node.
        """
        storage_class = self._classes.get(class_name(claim))
        if claim.metadata.uid in self._promises or (storage_class is not None and not self._draws(storage_class)):
            return
        node, version = claim.metadata.annotations[names.SELECTED_NODE], int(claim.metadata.resource_version)
        room = self._offers.room(class_name(claim), node)
        self._promises.book(claim.metadata.uid, AssumedClaim(node, room, requested_bytes(claim), version))

    def _draws(self, storage_class: StorageClass) -> bool:
        """Return whether volumes of the class use published capacity.

        Those of other drivers do not.
        """
        if not self._handles(storage_class.provisioner):
            return False
        driver = self._drivers.get(storage_class.provisioner)
        return driver is None or driver.spec.storage_capacity

    def _forget(self, claim: PersistentVolumeClaim) -> None:
        self._promises.drop(claim.metadata.uid)
        self._waits.over(claim.metadata.uid)
        self._waits.over((claim.metadata.uid, withdrawals(claim)))

    def _capacity_changed(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> Iterable[LoopKey]:
        """Handle changed capacity.

        Less capacity helps no claim, unless it now includes an assumed claim.
        """
        if new is None:
            return ()
        same_reason = old is not None and reason(new) == reason(old)
        if old is not None and same_reason and numbers(new) <= numbers(old) and new.counted == old.counted:
            return ()
        return self._waiting_in(self._classes.get(new.storage_class_name))

    def _node_changed(self, old: Node | None, new: Node | None) -> Iterable[LoopKey]:
        if new is None or (old is not None and _shape(old) == _shape(new)):
            return ()
        return [key for storage_class in self._classes for key in self._waiting_in(storage_class)]

    def _driver_changed(self, old: CSIDriver | None, new: CSIDriver | None) -> Iterable[LoopKey]:
        if new is None:
            return ()
        served = [c for c in self._classes if c.provisioner == new.metadata.name]
        return [key for storage_class in served for key in self._waiting_in(storage_class)]

    def _waiting_in(self, storage_class: StorageClass | None) -> Iterable[LoopKey]:
        return () if storage_class is None or storage_class.late else (LoopKey(CLASS, storage_class.metadata.name),)


def _class_changed(old: StorageClass | None, new: StorageClass | None) -> Iterable[LoopKey]:
    return () if new is None or new.late else (LoopKey(CLASS, new.metadata.name),)


def _shape(node: Node) -> tuple[dict[str, str], bool]:
    return node.metadata.labels, is_usable(node)
