"""Capacity of other nodes for a claim group that does not fit here.

It is read on demand, not watched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tonnage.api import names
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.kinds import CAPACITIES, NODES, PODS
from tonnage.api.quantity import to_bytes
from tonnage.api.storage import CSIStorageCapacity
from tonnage.capacity.ledger import ClaimReservation, Ledger, Shortfall
from tonnage.capacity.object import version
from tonnage.capacity.tier import BEYOND, is_tier
from tonnage.claims.node_fit import Suitability
from tonnage.claims.node_scope import CapacitySource, NodeScope
from tonnage.errors import ApiNotFound, TonnageError
from tonnage.kube.client import Client
from tonnage.node.provisioner.claim_group import PodClaimGroup
from tonnage.node.provisioner.reschedule_backoff import Patience


@dataclass(frozen=True)
class _Need:
    """Bytes that a class must have: in all, and for its largest volume.

    The sum includes classes that share its bytes.
    """

    source: CapacitySource
    total: int
    largest: int

    def is_met_by(self, offer: CSIStorageCapacity) -> bool:
        """Return whether the object publishes that capacity."""
        free, most = _numbers(offer)
        return offer.storage_class_name == self.source.storage_class and free >= self.total and most >= self.largest


class Elsewhere:
    """Reads the capacity objects of other nodes."""

    def __init__(self, client: Client, ledger: Ledger, scope: NodeScope, patience: Patience) -> None:
        self._client, self._ledger, self._scope, self._patience = client, ledger, scope, patience

    async def has_room(self, group: PodClaimGroup, pending: Sequence[PersistentVolumeClaim], stays: float) -> bool:
        """Return whether another node now has capacity for the group.

        It must have got that capacity after this node was selected, and the pod must fit there. Reads only at
        intervals. stays: seconds that the group is held here otherwise.
        """
        promises = [p for c in pending if (p := self._ledger.get(c.metadata.uid)) is not None]
        if not promises or self._patience.next_look(group.id) > 0:
            return False
        needs = list(_needs(promises))
        try:
            objects = await self._published({need.source.driver for need in needs})
            sent = min(_version(c) for c in pending)
            objects = [o for o in objects if _place(o) != self._scope.label]
            roomy = _places_with_room(objects, needs)
            known = _places_with_room([o for o in objects if version(o) <= sent], needs)
            news = self._patience.news(group.id, roomy, known, objects=len(objects))
            if not news or not await self._may_be_on(group, sorted(news)):
                return False
        except TonnageError:  # then it waits for its full hold time
            return False
        self._patience.hurries(group.id, stays)
        return True

    async def largest(self, shortage: Shortfall) -> int | None:
        """Return the maximum capacity of all nodes, in bytes.

        None if some node has enough, or it is not known.
        """
        try:
            found = await self._published({shortage.source.driver})
        except TonnageError:
            return None
        need = _Need(shortage.source, sum(shortage.sizes), max(shortage.sizes))
        ours = [o for o in found if o.storage_class_name == shortage.source.storage_class and o.capacity]
        if any(need.is_met_by(offer) for offer in ours) or any(_may_have(offer) > need.total for offer in ours):
            return None
        return max((_numbers(offer)[0] for offer in ours), default=None)

    async def _published(self, drivers: Iterable[str]) -> list[CSIStorageCapacity]:
        found: list[CSIStorageCapacity] = []
        for driver in drivers:
            found += (await self._client.list(CAPACITIES, labels=f"{names.CAPACITY_DRIVER}={driver}")).items
        return found

    async def _may_be_on(self, group: PodClaimGroup, places: Sequence[str]) -> bool:
        """Return whether the pod fits one of these nodes; True where not known."""
        if group.pod is None:
            return True
        try:
            pod = await self._client.get(PODS, group.pod.name, group.namespace)
        except ApiNotFound:
            return False
        suitability = Suitability(pod.spec)
        for place in places:
            if place.startswith(names.TIER_PREFIX):  # a node of a tier, unknown which
                return True
            try:
                if suitability.of(await self._client.get(NODES, place))[0]:
                    return True
            except ApiNotFound:  # the label of a node with a long name is not its name
                return True
        return False


def _needs(promises: Sequence[ClaimReservation]) -> Iterable[_Need]:
    for source in {p.source: None for p in promises}:
        total = sum(p.size for p in promises if p.source.room == source.room)
        yield _Need(source, total, max(p.size for p in promises if p.source == source))


def _places_with_room(offers: Iterable[CSIStorageCapacity], needs: Sequence[_Need]) -> frozenset[str]:
    met: dict[str, set[CapacitySource]] = {}
    for offer in offers:
        if place := _place(offer):
            met.setdefault(place, set()).update(n.source for n in needs if n.is_met_by(offer))
    return frozenset(place for place, sources in met.items() if len(sources) == len(needs))


def _place(offer: CSIStorageCapacity) -> str:
    """Return the object's node, else the topology value that it selects."""
    labels = offer.node_topology.match_labels if offer.node_topology is not None else {}
    return offer.metadata.labels.get(names.NODE_LABEL) or ",".join(f"{k}={labels[k]}" for k in sorted(labels))


def _may_have(offer: CSIStorageCapacity) -> int:
    """Return the maximum that a node of a tier may have, in bytes.

    0 for an exact object, which says what its node has.
    """
    return BEYOND * _numbers(offer)[0] if is_tier(offer) else 0


def _numbers(offer: CSIStorageCapacity) -> tuple[int, int]:
    free = to_bytes(offer.capacity or "0")
    return free, to_bytes(offer.maximum_volume_size or offer.capacity or "0")


def _version(claim: PersistentVolumeClaim) -> int:
    text = claim.metadata.resource_version
    return int(text) if text.isdecimal() else 0
