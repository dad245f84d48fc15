"""CSI inline volumes: what a pod asks of the pools of its node, and whether they are to be had there.

Kubernetes' scheduler does not look at them: no claim tells of them. The agents' capacity objects say what pools have
(names.INLINE_ROOM where some is kept for inline volumes, else the capacity); what pods take that are on their way to a
node is subtracted until they have started, for by then the object counts it. Where nothing is published for a driver,
or only that there is plenty (a tier), a volume is taken to fit: its publish call decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tonnage.scheduler.framework.storage_capacity import Offer, Offers
from tonnage.scheduler.framework.pod_info import DEFAULT, SOME, InlineUse, Place

NO_INLINE = "node(s) did not have enough free storage for inline volumes"


@dataclass(frozen=True, slots=True)
class Shortage:
    """A pool with too little room. asked: bytes by the pod. free: bytes that it could have."""

    pool: str
    asked: int
    free: int


def shortages(
    offers: Offers, uses: Sequence[InlineUse], claims: Sequence[tuple[str, int]], on_the_way: Mapping[Place, int]
) -> list[Shortage]:
    """The pools of a node that lack room for a pod's inline volumes; none where they fit, or nothing is known.

    claims: (class, bytes) that the pod needs beside them. on_the_way: bytes of pods that have yet to start there.
    """
    found = []
    for driver in dict.fromkeys(use.driver for use in uses):
        rooms = _rooms(offers, driver)
        if not rooms:
            continue
        asked = _by_pool(rooms, ((use.pool, use.size) for use in uses if use.driver == driver))
        taken = _by_pool(rooms, ((pool, size) for (name, pool), size in on_the_way.items() if name == driver))
        for pool, size in asked.items():
            if pool not in rooms:
                continue  # its publish call tells which there are
            size += sum(size for storage_class, size in claims if _draws_on(offers.get(storage_class, ()), pool))
            free = rooms[pool].inline_left - taken.get(pool, 0)
            if size > free:
                found.append(Shortage(pool, size, max(0, free)))
    return found


def _rooms(offers: Offers, driver: str) -> dict[str, Offer]:
    """The best offer of each of the driver's pools, the default one first. Empty where that cannot be told."""
    found: dict[str, Offer] = {}
    for offer in (offer for of_class in offers.values() for offer in of_class if offer.driver == driver):
        if offer.tier:
            return {}
        if offer.pool and (offer.pool not in found or offer.inline_left > found[offer.pool].inline_left):
            found[offer.pool] = offer
    return dict(sorted(found.items(), key=lambda item: not item[1].is_default))


def _by_pool(rooms: Mapping[str, Offer], asked: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Bytes by the pool that they are taken of."""
    roomiest = max(rooms, key=lambda pool: rooms[pool].inline_left)
    first = next(iter(rooms))
    default = first if len(rooms) == 1 or rooms[first].is_default else roomiest
    total: dict[str, int] = {}
    for pool, size in asked:
        name = {DEFAULT: default, SOME: roomiest}.get(pool, pool)
        total[name] = total.get(name, 0) + size
    return total


def _draws_on(offers: Sequence[Offer], pool: str) -> bool:
    """Whether a class has its volumes in that pool and in no other."""
    return {offer.pool for offer in offers} == {pool}
