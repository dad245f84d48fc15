"""Filter of CSI inline volumes: whether a node's pools have the capacity.

kube-scheduler ignores them, since no claim represents them. The agents' capacity objects have the pools' bytes
(names.INLINE_CAPACITY for inline capacity, else the capacity). Bytes of pods that are assigned to a node and have not
started are subtracted; after the start, the object includes them. If nothing is published for a driver, or only a tier,
a volume is assumed to fit: NodePublishVolume decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tonnage.provisioning.capacity.published import Offers, PublishedCapacity
from tonnage.scheduler.framework.pod_info import DEFAULT, SOME, InlineUse, Place

NO_INLINE = "node(s) did not have enough free storage for inline volumes"


@dataclass(frozen=True, slots=True)
class InlineShortfall:
    """A pool with insufficient storage.

    asked: bytes that the pod requests. free: bytes that it could have.
    """

    pool: str
    asked: int
    free: int


def shortages(
    offers: Offers, uses: Sequence[InlineUse], claims: Sequence[tuple[str, int]], on_the_way: Mapping[Place, int]
) -> list[InlineShortfall]:
    """Return a node's pools that lack capacity for a pod's inline volumes.

    None if they fit, or nothing is known. claims: (class, bytes) that the pod needs in addition. on_the_way: bytes of
    pods that have not started there.
    """
    found = []
    for driver in dict.fromkeys(use.driver for use in uses):
        capacities = _capacities(offers, driver)
        if not capacities:
            continue
        asked = _by_pool(capacities, ((use.pool, use.size) for use in uses if use.driver == driver))
        taken = _by_pool(capacities, ((pool, size) for (name, pool), size in on_the_way.items() if name == driver))
        for pool, size in asked.items():
            if pool not in capacities:
                continue  # NodePublishVolume reports unknown pools
            size += sum(size for storage_class, size in claims if _draws_on(offers.get(storage_class, ()), pool))
            free = capacities[pool].inline_left - taken.get(pool, 0)
            if size > free:
                found.append(InlineShortfall(pool, size, max(0, free)))
    return found


def _capacities(offers: Offers, driver: str) -> dict[str, PublishedCapacity]:
    """Return the best offer of each of the driver's pools, the default first.

    Empty where that is not known.
    """
    found: dict[str, PublishedCapacity] = {}
    for offer in (offer for of_class in offers.values() for offer in of_class if offer.driver == driver):
        if offer.tier:
            return {}
        if offer.pool and (offer.pool not in found or offer.inline_left > found[offer.pool].inline_left):
            found[offer.pool] = offer
    return dict(sorted(found.items(), key=lambda item: not item[1].is_default))


def _by_pool(capacities: Mapping[str, PublishedCapacity], asked: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return bytes by the pool that provides them."""
    largest = max(capacities, key=lambda pool: capacities[pool].inline_left)
    first = next(iter(capacities))
    default = first if len(capacities) == 1 or capacities[first].is_default else largest
    total: dict[str, int] = {}
    for pool, size in asked:
        name = {DEFAULT: default, SOME: largest}.get(pool, pool)
        total[name] = total.get(name, 0) + size
    return total


def _draws_on(offers: Sequence[PublishedCapacity], pool: str) -> bool:
    """Return whether a class has its volumes in that pool and in no other."""
    return {offer.pool for offer in offers} == {pool}
