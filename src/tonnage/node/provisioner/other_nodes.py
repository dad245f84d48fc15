"""Capacity of other nodes for a claim group that does not fit here.

It is read on demand, not watched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tonnage.base.errors import TonnageError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CAPACITIES, NODES, PODS
from tonnage.kubernetes.api.number import whole
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.kubernetes.client.client import Client
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.provisioner.state import NodeSearch, PodClaimGroup
from tonnage.provisioning.capacity.ledger import ClaimReservation, Shortfall
from tonnage.provisioning.capacity.tier import BEYOND, is_tier
from tonnage.provisioning.claims.bind import find
from tonnage.provisioning.claims.node_fit import Suitability
from tonnage.provisioning.claims.node_scope import CapacitySource


@dataclass(frozen=True)
class _Need:
    """Bytes that a class must have: in all, and for its largest volume.

    The sum includes classes that share its bytes.
    """

    source: CapacitySource
    total: int
    largest: int

    def is_met_by(self, obj: CSIStorageCapacity) -> bool:
        """Return whether the object publishes that capacity."""
        free, most = _numbers(obj)
        return obj.storage_class_name == self.source.storage_class and free >= self.total and most >= self.largest


async def have_capacity(
    node: NodeContext, found: PodClaimGroup, pending: Sequence[PersistentVolumeClaim], search: NodeSearch
) -> bool:
    """Return whether another node now has capacity for the group.

    It must have got that capacity after this node was selected, and the pod must fit there. Reads only at intervals.
    """
    reservations = [p for c in pending if (p := node.ledger.get(c.metadata.uid)) is not None]
    if not reservations or search.next_check(node.clock.monotonic()) > 0:
        return False
    needs = list(_needs(reservations))
    try:
        objects = await _published(node.client, {need.source.driver for need in needs})
        selected = min(whole(c.metadata.resource_version) or 0 for c in pending)
        objects = [o for o in objects if _domain(o) != node.scope.label]
        with_capacity = _domains_that_meet(objects, needs)
        known = _domains_that_meet([o for o in objects if o.metadata.version <= selected], needs)
        news = search.newly_available_nodes(with_capacity, known, objects=len(objects), now=node.clock.monotonic())
        return bool(news) and await _may_be_on(node.client, found, sorted(news))
    except TonnageError:  # then it waits for its full hold time
        return False


async def largest(node: NodeContext, shortfall: Shortfall) -> int | None:
    """Return the maximum capacity of all nodes, in bytes.

    None if some node has enough, or it is not known.
    """
    try:
        found = await _published(node.client, {shortfall.source.driver})
    except TonnageError:
        return None
    need = _Need(shortfall.source, sum(shortfall.sizes), max(shortfall.sizes))
    ours = [o for o in found if o.storage_class_name == shortfall.source.storage_class and o.capacity]
    if any(need.is_met_by(each) or _may_have(each) > need.total for each in ours):
        return None
    return max((_numbers(each)[0] for each in ours), default=None)


async def _published(client: Client, drivers: Iterable[str]) -> list[CSIStorageCapacity]:
    found: list[CSIStorageCapacity] = []
    for driver in drivers:
        found += (await client.list(CAPACITIES, labels=f"{names.CAPACITY_DRIVER}={driver}")).items
    return found


async def _may_be_on(client: Client, found: PodClaimGroup, domains: Sequence[str]) -> bool:
    """Return whether the pod fits one of these nodes; True where not known."""
    if found.pod is None:
        return True
    pod = await find(client, PODS, found.pod.name, found.namespace)
    if pod is None:
        return False
    suitability = Suitability(pod.spec)
    for domain in domains:
        if domain.startswith(names.TIER_PREFIX):  # a node of a tier, unknown which
            return True
        node = await find(client, NODES, domain)
        if node is None or suitability.of(node)[0]:  # None: the label of a node with a long name is not its name
            return True
    return False


def _needs(reservations: Sequence[ClaimReservation]) -> Iterable[_Need]:
    for source in {p.source: None for p in reservations}:
        total = sum(p.size for p in reservations if p.source.pool_key == source.pool_key)
        yield _Need(source, total, max(p.size for p in reservations if p.source == source))


def _domains_that_meet(objects: Iterable[CSIStorageCapacity], needs: Sequence[_Need]) -> frozenset[str]:
    met: dict[str, set[CapacitySource]] = {}
    for obj in objects:
        if domain := _domain(obj):
            met.setdefault(domain, set()).update(n.source for n in needs if n.is_met_by(obj))
    return frozenset(domain for domain, sources in met.items() if len(sources) == len(needs))


def _domain(obj: CSIStorageCapacity) -> str:
    """Return the object's node, else the topology value that it selects."""
    labels = obj.node_topology.match_labels if obj.node_topology is not None else {}
    return obj.metadata.labels.get(names.NODE_LABEL) or ",".join(f"{k}={labels[k]}" for k in sorted(labels))


def _may_have(obj: CSIStorageCapacity) -> int:
    """Return the maximum that a node of a tier may have, in bytes.

    0 for an exact object, which says what its node has.
    """
    return BEYOND * _numbers(obj)[0] if is_tier(obj) else 0


def _numbers(obj: CSIStorageCapacity) -> tuple[int, int]:
    free = to_bytes(obj.capacity or "0")
    return free, to_bytes(obj.maximum_volume_size or obj.capacity or "0")
