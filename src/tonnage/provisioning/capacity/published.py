"""Published capacity, less reservations not included in it. Sans-I/O.

The one capacity model: the scheduler, the controller that binds at once and `tonnage why` read it. A capacity object
(an offer) has the capacity of a class for the nodes that its topology selects. A decision is a
reservation until the node's agent publishes lower numbers. It is subtracted from every offer of the same pool until
that offer includes it, so a burst of pods never reserves bytes twice.

An offer includes a reservation when its observed claim version is at least the resourceVersion that the patch of the
claim returned. Offers without that annotation, of other publishers, include it when the claim is bound. Offers of one
node with the same label `tonnage.dev/pool` share their capacity; others do not. Sizes are whole bytes.

A tier's object (label `tonnage.dev/tier`) says what each of its nodes has at least. Every node has a share of its own,
less its reservations until their claims are bound. A node's exact object replaces its share.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.matching import is_bound, requested
from tonnage.kubernetes.api.meta import LabelSelector
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.provisioning.capacity.topology_index import ByTopology, Labels, NodeLabels, Reach, reach_of_labels

log = logging.getLogger(__name__)
NO_BOUND = 1 << 200
_PRIME = "prime-"
"""Prefix of a volume populator's own claim; the claim's uid follows.

Of lib-volume-populator."""


@dataclass(slots=True, eq=False)
class PublishedCapacity:
    """One capacity object.

    capacity: bytes for all volumes. maximum: maximum volume size. outstanding: reserved bytes that the numbers do not
    include. counted: the observed claim version. reason: why the class cannot have volumes there, or "". tier: whether
    each node that it selects has at least this. inline: inline capacity. driver: of the class. is_default: whether it
    is of the driver's default pool.
    """

    key: str
    storage_class: str
    topology: LabelSelector
    reach: Reach
    pool: str = ""
    capacity: int = -1
    maximum: int = -1
    counted: int | None = None
    outstanding: int = 0
    reason: str = ""
    tier: bool = False
    inline: int | None = None
    driver: str = ""
    is_default: bool = False

    @property
    def inline_left(self) -> int:
        """Bytes that can still be reserved for inline volumes."""
        return (self.capacity if self.inline is None else self.inline) - self.outstanding

    @property
    def left(self) -> int:
        """Bytes that can still be reserved."""
        return self.capacity - self.outstanding

    @property
    def free(self) -> int:
        """Bytes that can still be reserved; the maximum volume size if only that is published."""
        return self.left if self.capacity < NO_BOUND else self.largest

    @property
    def largest(self) -> int:
        """Size of the largest volume that can still be reserved.

        If one volume cannot use all free bytes (the pool is in pieces), outstanding bytes may be in the largest piece.
        Other publishers get Kubernetes' plain comparison: their maximum may be a rule.
        """
        left = self.capacity - self.outstanding
        if self.counted is None or self.maximum >= self.capacity:
            return self.maximum if self.maximum < left else left
        return min(self.maximum - self.outstanding, left)

    @property
    def pool_key(self) -> object:
        """A key that is equal for offers of one node with the same bytes."""
        return self.pool or self


@dataclass(slots=True, eq=False)
class Reservation:
    """A claim with a selected node.

    version: resourceVersion of the patch that set it, None while that is under way. exact: that version is known.
    Otherwise the claim was found at the start and the version is a later one, which its agent need not publish; but
    agents publish a reservation before they create the volume.
    """

    uid: str
    node: str
    storage_class: str
    size: int
    version: int | None
    exact: bool
    bound: bool = False

    def is_counted_by(self, offer: PublishedCapacity) -> bool:
        """Return whether the offer's numbers include it."""
        if offer.counted is None:
            return self.bound
        if self.version is None:
            return False
        return offer.counted >= self.version or (self.bound and not self.exact)


Offers = dict[str, tuple[PublishedCapacity, ...]]
_NONE: Offers = {}


class _Known(dict[str, Offers]):
    """Results by node. find(node) computes a missing one."""

    def __init__(self, find: Callable[[str], Offers]) -> None:
        self._find = find

    def __missing__(self, node: str) -> Offers:
        found = self[node] = self._find(node)
        return found


class PublishedStorage:
    """All offers and reservations.

    on_capacity(offer): called when an offer may fit volumes that it rejected before. on_reason(offer): called when its
    reason changed.
    """

    def __init__(
        self,
        nodes: NodeLabels,
        on_capacity: Callable[[PublishedCapacity], None] = lambda offer: None,
        on_reason: Callable[[PublishedCapacity], None] = lambda offer: None,
    ) -> None:
        self.nodes = nodes
        self._on_capacity, self._on_reason = on_capacity, on_reason
        self._offers: dict[str, PublishedCapacity] = {}
        self._of_class: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()  # offers with a reason, by class
        self._faulty: Counter[str] = Counter()  # offers whose reason is a fault
        self._near: ByTopology[PublishedCapacity] = ByTopology(lambda offer: (0, offer.key))
        self._on = _Known(self._find)
        self.on: Callable[[str], Offers] = self._on.__getitem__
        """Returns the offers of a node by class. Called for a hundred nodes for each pod."""
        self._reservations: dict[str, Reservation] = {}
        self._waiting: dict[
            str, dict[str, Reservation]
        ] = {}  # node -> reservations that some offer does not include yet

    # Offers

    def suppose(self, node: str, offers: Offers) -> None:
        """Replace a node's offers, until restore or the next change.

        For simulations.
        """
        self._on[node] = offers

    def _find(self, node: str) -> Offers:
        labels, by_class = self.nodes.get(node), dict[str, list[PublishedCapacity]]()
        if labels is None:
            return _NONE
        for bucket in self._near.near(labels):
            for offer in bucket:
                known = by_class.setdefault(offer.storage_class, [])
                if offer not in known and offer.reach.matches(labels, node):
                    known.append(offer)
        return {name: _of_node(offers) for name, offers in by_class.items() if offers}

    def put(self, obj: CSIStorageCapacity) -> None:
        """Add or update a capacity object. Invalid numbers count as 0."""
        offer = self._offers.get(obj.key)
        if offer is not None and (offer.storage_class, offer.topology) != (obj.storage_class_name, obj.node_topology):
            self.remove(obj.key)  # both are immutable: this is another object of the same name
            offer = None
        if obj.node_topology is None:  # reached by no node
            return
        known = offer is not None
        if offer is None:
            reach = reach_of_labels(obj.node_topology)
            offer = PublishedCapacity(obj.key, obj.storage_class_name, obj.node_topology, reach)
        before, nodes = (offer.largest, offer.left, offer.reason, offer.inline_left), self._nodes_of(offer)
        self._recount(nodes, -1)
        if known:
            self._tally(offer, -1)
        else:
            self._offers[offer.key] = offer
            self._near.add(offer, offer.reach)
        if not known or offer.tier:
            self._forget_nodes(nodes)
        _read(offer, obj)
        self._tally(offer, 1)
        self._recount(nodes, 1)
        if offer.largest > before[0] or offer.left > before[1] or offer.inline_left > before[3]:
            self._on_capacity(offer)
        if offer.reason != before[2]:
            self._on_reason(offer)

    def remove(self, key: str) -> None:
        """Remove a capacity object."""
        offer = self._offers.get(key)
        if offer is None:
            return
        nodes = self._nodes_of(offer)
        self._recount(nodes, -1)
        del self._offers[key]
        self._tally(offer, -1)
        self._near.remove(offer, offer.reach)
        self._forget_nodes(nodes)
        self._recount(nodes, 1)

    def _tally(self, offer: PublishedCapacity, sign: int) -> None:
        self._of_class[offer.storage_class] += sign
        self._reasons[offer.storage_class] += sign * bool(offer.reason)
        self._faulty[offer.storage_class] += sign * names.is_fault(offer.reason)

    def has_offers(self, storage_class: str) -> bool:
        """Return whether anything is published for the class."""
        return self._of_class[storage_class] > 0

    def has_reasons(self, storage_class: str) -> bool:
        """Return whether some offer of the class has a reason."""
        return self._reasons[storage_class] > 0

    def is_faulty(self, storage_class: str) -> bool:
        """Return whether each offer of the class has an error as its reason.

        False if nothing is published.
        """
        return 0 < self._faulty[storage_class] == self._of_class[storage_class]

    def set_node(self, node: str, labels: Labels | None) -> None:
        """Add a node or change its labels; None: it is gone. Idempotent."""
        if self.nodes.get(node) == labels:
            return
        self._recount((node,), -1)
        self.nodes.put(node, labels)
        self._on.pop(node, None)
        self._recount((node,), 1)

    def _nodes_of(self, offer: PublishedCapacity) -> list[str]:
        """Return nodes that the offer may select."""
        if not offer.reach.buckets:
            return list(self.nodes)
        return [n for key, value in offer.reach.buckets for n in self.nodes.with_label(key, value)]

    def _forget_nodes(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._on.pop(node, None)

    # Reservations

    def node_of(self, uid: str) -> str:
        """Return the selected node of the claim, or ""."""
        found = self._reservations.get(uid)
        return found.node if found is not None else ""

    def reserve(
        self, uid: str, node: str, storage_class: str, size: int, *, version: int | None = None, exact: bool = True
    ) -> None:
        """Reserve a claim on a node, until offers include it. Idempotent.

        storage_class: "" where its pool is not known: the claim then counts against all offers of the node.
        """
        if uid in self._reservations:
            return
        reservation = Reservation(uid, node, storage_class, size, version, exact)
        self._reservations[uid] = reservation
        self._waiting.setdefault(node, {})[uid] = reservation
        self._count(reservation, 1)
        self._settle(reservation)

    def confirm(self, uid: str, version: int) -> None:
        """Record the resourceVersion that the patch of the claim returned."""
        self._change(uid, version=version)

    def bound(self, uid: str) -> None:
        """Record that the claim has its volume."""
        self._change(uid, bound=True)

    def _supersede(self, uid: str, node: str, size: int) -> None:
        """Replace the reservation of a populated claim. Idempotent.

        The volume is created for another claim, which has its own reservation.
        """
        reservation = self._reservations.get(uid)
        if reservation is not None and reservation.node == node and reservation.size <= size:
            self._change(uid, bound=True)

    def _change(self, uid: str, *, version: int | None = None, bound: bool = False) -> None:
        reservation = self._reservations.get(uid)
        if reservation is None or (bound and reservation.bound):
            return
        waits = uid in self._waiting.get(reservation.node, {})
        before = self._capacities(reservation) if waits else []
        if waits:
            self._count(reservation, -1)
        reservation.version = version if version is not None else reservation.version
        reservation.bound = reservation.bound or bound
        if waits:
            self._count(reservation, 1)
            self._settle(reservation)
            self._tell(before)

    def follow(self, claim: PersistentVolumeClaim, storage_class: str, *, exact: bool = True) -> None:
        """Update the claim's reservation. Idempotent, also with an old version.

        A claim whose node another program selected, or this one before a restart, gets its reservation here.
        storage_class: as in reserve(). exact: this version set selected-node.
        """
        uid, version = claim.metadata.uid, claim.metadata.version
        selected = claim.metadata.annotations.get(names.SELECTED_NODE, "")
        if is_bound(claim):
            self.bound(uid)
            return
        known = self.node_of(uid)
        if known and known != selected:
            sent = self.version_of(uid)
            if sent is None or version <= sent:  # the write is under way, or this version is older
                return
            self.drop(uid)
        if selected and known != selected:
            size = requested_bytes(claim)
            self.reserve(uid, selected, storage_class, size, version=version, exact=exact)
            if claim.metadata.name.startswith(_PRIME):
                self._supersede(claim.metadata.name.removeprefix(_PRIME), selected, size)

    def version_of(self, uid: str) -> int | None:
        """Return the resourceVersion that set the claim's node.

        None without a node, or while the write is under way.
        """
        found = self._reservations.get(uid)
        return found.version if found is not None else None

    def drop(self, uid: str, *, tells: bool = True) -> None:
        """Remove a reservation. An unknown one is ignored.

        tells: whether to wake pods that wait for capacity.
        """
        reservation = self._reservations.pop(uid, None)
        if reservation is None or uid not in self._waiting.get(reservation.node, {}):
            return
        before = self._capacities(reservation) if tells else []
        self._count(reservation, -1)
        self._unwait(reservation)
        self._tell(before)

    def outstanding(self) -> int:
        """Return how many reservations some offer does not include yet."""
        return sum(len(waiting) for waiting in self._waiting.values())

    def _capacities(self, reservation: Reservation) -> list[tuple[PublishedCapacity, int]]:
        return [(offer, offer.left) for offer in self._drawn_on(reservation)]

    def _tell(self, before: Sequence[tuple[PublishedCapacity, int]]) -> None:
        for offer, left in before:
            if offer.left > left:
                self._on_capacity(offer)

    def _drawn_on(self, reservation: Reservation) -> Iterator[PublishedCapacity]:
        """Return the offers that a reservation reduces.

        Those of its class, and those that share a pool with them.
        """
        offers = self.on(reservation.node)
        if not reservation.storage_class:
            yield from (offer for some in offers.values() for offer in some)
            return
        own = offers.get(reservation.storage_class, ())
        yield from own
        pools = {offer.pool for offer in own if offer.pool}
        if pools:
            for name, others in offers.items():
                if name != reservation.storage_class:
                    yield from (offer for offer in others if offer.pool in pools)

    def _count(self, reservation: Reservation, sign: int) -> None:
        for offer in self._drawn_on(reservation):
            if not reservation.is_counted_by(offer):
                offer.outstanding += sign * reservation.size

    def _recount(self, nodes: Iterable[str], sign: int) -> None:
        for node in nodes:
            for reservation in list(self._waiting.get(node, {}).values()):
                self._count(reservation, sign)
                if sign > 0:
                    self._settle(reservation)

    def _settle(self, reservation: Reservation) -> None:
        """Stop tracking a reservation that all its offers include.

        It stays known until the claim is gone, so that a later event of the claim is no new reservation.
        """
        offers = list(self._drawn_on(reservation))
        if all(reservation.is_counted_by(o) for o in offers) if offers else reservation.bound:
            self._unwait(reservation)

    def _unwait(self, reservation: Reservation) -> None:
        waiting = self._waiting.get(reservation.node)
        if waiting is not None:
            waiting.pop(reservation.uid, None)
            if not waiting:
                del self._waiting[reservation.node]


def _of_node(offers: Sequence[PublishedCapacity]) -> tuple[PublishedCapacity, ...]:
    """Return the offers of a class that count on one node.

    The share of a tier counts only without any other.
    """
    others = tuple(offer for offer in offers if not offer.tier)
    return others or tuple(replace(offer) for offer in offers)


def requested_bytes(claim: PersistentVolumeClaim) -> int:
    """Return the bytes that a claim requests; 0 for an invalid quantity."""
    try:
        return requested(claim)
    except InvalidError:
        return 0


def _read(offer: PublishedCapacity, obj: CSIStorageCapacity) -> None:
    """Read a capacity object's numbers. Without any number the capacity is 0."""
    offer.pool, offer.tier = obj.metadata.labels.get(names.POOL_LABEL, ""), names.TIER in obj.metadata.labels
    offer.counted = obj.counted
    offer.reason = obj.metadata.annotations.get(names.REASON, "")
    offer.driver = obj.metadata.labels.get(names.CAPACITY_DRIVER, "")
    offer.is_default = obj.metadata.labels.get(names.DEFAULT_POOL) == "true"
    inline = names.annotation(obj.metadata.annotations, names.INLINE_CAPACITY)
    try:
        offer.inline = to_bytes(inline) if inline else None
        capacity = to_bytes(obj.capacity) if obj.capacity is not None else None
        maximum = to_bytes(obj.maximum_volume_size) if obj.maximum_volume_size is not None else None
    except InvalidError as failure:
        log.warning("capacity not readable object=%s error=%s", obj.key, failure)
        capacity = maximum = -1
    if maximum is None:
        maximum = capacity if capacity is not None else -1
    offer.capacity = capacity if capacity is not None else (NO_BOUND if maximum >= 0 else -1)
    offer.maximum = maximum
