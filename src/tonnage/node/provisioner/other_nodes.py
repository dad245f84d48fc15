"""What other nodes have for the claims of a pod that does not fit here: read when it is asked, not watched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tonnage.api import names
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.kinds import CAPACITIES, NODES, PODS
from tonnage.api.quantity import to_bytes
from tonnage.api.storage import CSIStorageCapacity
from tonnage.capacity.ledger import Ledger, Promise, Shortage
from tonnage.capacity.object import version
from tonnage.capacity.tier import BEYOND, is_tier
from tonnage.claims.node_fit import Suitability
from tonnage.claims.node_scope import NodeScope, Source
from tonnage.errors import ApiNotFound, TonnageError
from tonnage.kube.client import Client
from tonnage.node.provisioner.claim_group import Group
from tonnage.node.provisioner.reschedule_backoff import Patience


@dataclass(frozen=True)
class _Need:
    """What a class must offer: bytes in all (of what it shares its room with, too), and for the largest volume."""

    source: Source
    total: int
    largest: int

    def is_met_by(self, offer: CSIStorageCapacity) -> bool:
        """Whether that is published."""
        free, most = _numbers(offer)
        return offer.storage_class_name == self.source.storage_class and free >= self.total and most >= self.largest


class Elsewhere:
    """Looks at the capacity objects of other nodes."""

    def __init__(self, client: Client, ledger: Ledger, scope: NodeScope, patience: Patience) -> None:
        self._client, self._ledger, self._scope, self._patience = client, ledger, scope, patience

    async def has_room(self, group: Group, pending: Sequence[PersistentVolumeClaim], stays: float) -> bool:
        """Whether another node has come to have room for all these claims since they were sent here, and the pod may
        be there. Looks now and then only. stays: seconds that the group stays here otherwise."""
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
        except TonnageError:  # then it stays as long as it would
            return False
        self._patience.hurries(group.id, stays)
        return True

    async def largest(self, shortage: Shortage) -> int | None:
        """Most free room of all nodes, in bytes; None when some node has room after all, or nobody knows."""
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

    async def _may_be_on(self, group: Group, places: Sequence[str]) -> bool:
        """Whether the group's pod may be on one of these nodes; yes where that cannot be told."""
        if group.pod is None:
            return True
        try:
            pod = await self._client.get(PODS, group.pod.name, group.namespace)
        except ApiNotFound:
            return False
        suitability = Suitability(pod.spec)
        for place in places:
            if place.startswith(names.TIER_PREFIX):  # some node of a tier
                return True
            try:
                if suitability.of(await self._client.get(NODES, place))[0]:
                    return True
            except ApiNotFound:  # the label of a node with a long name is not its name
                return True
        return False


def _needs(promises: Sequence[Promise]) -> Iterable[_Need]:
    for source in {p.source: None for p in promises}:
        total = sum(p.size for p in promises if p.source.room == source.room)
        yield _Need(source, total, max(p.size for p in promises if p.source == source))


def _places_with_room(offers: Iterable[CSIStorageCapacity], needs: Sequence[_Need]) -> frozenset[str]:
    met: dict[str, set[Source]] = {}
    for offer in offers:
        if place := _place(offer):
            met.setdefault(place, set()).update(n.source for n in needs if n.is_met_by(offer))
    return frozenset(place for place, sources in met.items() if len(sources) == len(needs))


def _place(offer: CSIStorageCapacity) -> str:
    """The node that the object is for; where it does not say so, what its topology selects."""
    labels = offer.node_topology.match_labels if offer.node_topology is not None else {}
    return offer.metadata.labels.get(names.NODE_LABEL) or ",".join(f"{k}={labels[k]}" for k in sorted(labels))


def _may_have(offer: CSIStorageCapacity) -> int:
    """What a node may have that an object of a tier speaks of, 0 for objects of one node: they say what it has."""
    return BEYOND * _numbers(offer)[0] if is_tier(offer) else 0


def _numbers(offer: CSIStorageCapacity) -> tuple[int, int]:
    free = to_bytes(offer.capacity or "0")
    return free, to_bytes(offer.maximum_volume_size or offer.capacity or "0")


def _version(claim: PersistentVolumeClaim) -> int:
    text = claim.metadata.resource_version
    return int(text) if text.isdecimal() else 0
