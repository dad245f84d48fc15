"""Capacity in tiers: the arithmetic and the words that agents and the controller share. Pure.

kube-scheduler tests every capacity object for every node, so one object for each node costs it nodes times nodes. A
node that has far more than is usually asked says so in a label instead, `tier.tonnage.dev/<class>=64Gi`, and one object
for each class and tier selects all nodes with that label. A tier is a power of two, at most half of the largest volume
that the node could make: after any one volume that the tier admits, it still holds. It goes down when less than twice
its size is left and up when eight times is (what is then left is four times the new one), so labels are rarely written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tonnage.api import names
from tonnage.api.quantity import from_bytes, to_bytes
from tonnage.api.storage import CSIStorageCapacity
from tonnage.capacity.ledger import PoolCapacity
from tonnage.errors import Invalid

MODES = ("auto", "tiers", "exact")
"""auto: tiers on clusters of more than AUTO_ABOVE nodes, which the controller counts."""
AUTO_ABOVE = 100
LOWEST = 1 << 30
"""The least tier, in bytes."""
FAR = 2
"""How many times what is usually asked a tier has to be."""
BEYOND = 8
"""A node of a tier has less than so many times its size, or it would be in the next."""


def choose(largest: int, have: int, usual: int) -> int:
    """The tier of a node whose largest volume would have so many bytes, 0 for none. have: the tier it is in, 0 for
    none; usual: what is usually asked, in bytes."""
    low, high = _power(largest // 4), _power(largest // 2)
    tier = min(max(have, low), high)
    return tier if tier >= max(LOWEST, FAR * usual) else 0


def _power(number: int) -> int:
    """The largest power of two that is not larger, 0 for none."""
    return 1 << (number.bit_length() - 1) if number > 0 else 0


def largest(room: PoolCapacity) -> int:
    """The largest volume that fits, in bytes."""
    return room.available if room.maximum is None else min(room.available, room.maximum)


def of_label(text: str) -> int:
    """A tier as a label says it, in bytes; 0 for what is none of ours."""
    try:
        number = to_bytes(text) if text else 0
    except Invalid:
        return 0
    return number if text == as_label(number) and number == _power(number) else 0


def as_label(tier: int) -> str:
    """A tier as the value of a label."""
    return from_bytes(tier)


def of_node(labels: Mapping[str, str], storage_class: str) -> int:
    """The tier of a class that a node's labels tell, 0 for none."""
    return of_label(labels.get(names.tier_label(storage_class), ""))


def labels_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Those of a node's labels that tell tiers."""
    return {key: value for key, value in labels.items() if key.startswith(names.TIER_PREFIX)}


def object_name(storage_class: str, tier: str) -> str:
    """Name of the capacity object of a tier of a class, or of the class's notice (names.TIER_NOTICE)."""
    return f"csisc-tier-{hashlib.sha256(f'{storage_class}/{tier}'.encode()).hexdigest()[:20]}"


def is_tier(obj: CSIStorageCapacity) -> bool:
    """Whether a capacity object speaks of a tier: of each of the nodes that it selects, not of all together."""
    return names.TIER in obj.metadata.labels


@dataclass(frozen=True)
class Notice:
    """That tiers of a class are kept. exact_on: nodes that publish exactly if they can make a volume of exact_from
    bytes."""

    exact_from: int = 0
    exact_on: frozenset[str] = frozenset()


def read_notice(obj: CSIStorageCapacity) -> Notice:
    """What a class's notice says. What cannot be read asks for nothing."""
    notes = obj.metadata.annotations
    try:
        size = to_bytes(names.annotation(notes, names.EXACT_CAPACITY_MIN) or "0")
    except Invalid:
        return Notice()
    return Notice(size, frozenset(filter(None, names.annotation(notes, names.EXACT_CAPACITY_NODES).split(","))))


def notes_of(notice: Notice) -> dict[str, str | None]:
    """A notice as annotations; None takes one off."""
    asks = notice.exact_on and notice.exact_from
    return {
        names.EXACT_CAPACITY_MIN: from_bytes(notice.exact_from) if asks else None,
        names.EXACT_CAPACITY_NODES: ",".join(sorted(notice.exact_on)) if asks else None,
        **{names.FORMER_KEYS[key]: None for key in (names.EXACT_CAPACITY_MIN, names.EXACT_CAPACITY_NODES)},
    }


def usual(sizes: Iterable[int]) -> int:
    """What is usually asked: what nine of ten of these ask at most, in bytes; 0 for none."""
    ordered = sorted(sizes)
    return ordered[(len(ordered) - 1) * 9 // 10] if ordered else 0


PATIENT_FROM = 3
