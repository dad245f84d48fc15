"""Capacity tiers: arithmetic and labels. Pure.

kube-scheduler tests every capacity object for every node, so exact publishing costs it the square of the number of
nodes. A node with much more capacity than the usual request has a label instead, `tier.tonnage.dev/<class>=64Gi`. One
object for each class and tier selects all nodes with that label. A tier is a power of two, at most half of the node's
maximum volume size: after any one volume that the tier admits, it is still true. It falls when the node has less than
twice its size, and rises at eight times (the capacity is then four times the new tier), so labels are seldom written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import from_bytes, to_bytes
from tonnage.kubernetes.api.storage import CSIStorageCapacity

if TYPE_CHECKING:  # its own imports take a second, and the verbs need only MODES
    from tonnage.provisioning.capacity.ledger import PoolCapacity

MODES = ("auto", "tiers", "exact")
"""How capacity is published.

auto: tiers in clusters of more than AUTO_ABOVE nodes, which the controller counts."""
AUTO_ABOVE = 100
LOWEST = 1 << 30
"""Lowest tier, in bytes."""
FAR = 2
"""Minimum ratio of a tier to the usual request."""
BEYOND = 8
"""Maximum ratio of a node's capacity to its tier; above, the tier rises."""


def choose(largest: int, have: int, usual: int) -> int:
    """Return the tier of a node in bytes, 0 for none.

    largest: its maximum volume size in bytes. have: its current tier, 0 for none. usual: the usual request in bytes.
    """
    low, high = _power(largest // 4), _power(largest // 2)
    tier = min(max(have, low), high)
    return tier if tier >= max(LOWEST, FAR * usual) else 0


def _power(number: int) -> int:
    """Return the largest power of two that is not larger, 0 for none."""
    return 1 << (number.bit_length() - 1) if number > 0 else 0


def largest(amount: PoolCapacity) -> int:
    """Return the maximum volume size, in bytes."""
    return amount.available if amount.maximum is None else min(amount.available, amount.maximum)


def of_label(text: str) -> int:
    """Return the tier of a label value, in bytes; 0 for an invalid one."""
    try:
        number = to_bytes(text) if text else 0
    except InvalidError:
        return 0
    return number if text == as_label(number) and number == _power(number) else 0


def as_label(tier: int) -> str:
    """Return the label value of a tier."""
    return from_bytes(tier)


def of_node(labels: Mapping[str, str], storage_class: str) -> int:
    """Return a class's tier in a node's labels, 0 for none."""
    return of_label(labels.get(names.tier_label(storage_class), ""))


def labels_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return a node's tier labels."""
    return {key: value for key, value in labels.items() if key.startswith(names.TIER_PREFIX)}


def object_name(storage_class: str, tier: str) -> str:
    """Return the name of the object of a tier, or of the class's notice.

    tier: names.TIER_NOTICE for the notice.
    """
    return f"csisc-tier-{hashlib.sha256(f'{storage_class}/{tier}'.encode()).hexdigest()[:20]}"


def is_tier(obj: CSIStorageCapacity) -> bool:
    """Return whether a capacity object is a tier's.

    It then describes each of the nodes that it selects, not all of them together.
    """
    return names.TIER in obj.metadata.labels


@dataclass(frozen=True)
class Notice:
    """Notice of a class: its tiers are in use.

    exact_on: nodes that publish exactly if they can create a volume of exact_from bytes.
    """

    exact_from: int = 0
    exact_on: frozenset[str] = frozenset()


def read_notice(obj: CSIStorageCapacity) -> Notice:
    """Read a class's notice; an invalid request is ignored."""
    notes = obj.metadata.annotations
    try:
        size = to_bytes(names.annotation(notes, names.EXACT_CAPACITY_MIN) or "0")
    except InvalidError:
        return Notice()
    return Notice(size, frozenset(filter(None, names.annotation(notes, names.EXACT_CAPACITY_NODES).split(","))))


def notes_of(notice: Notice) -> dict[str, str | None]:
    """Return a notice's annotations; None removes one."""
    asks = notice.exact_on and notice.exact_from
    return {
        names.EXACT_CAPACITY_MIN: from_bytes(notice.exact_from) if asks else None,
        names.EXACT_CAPACITY_NODES: ",".join(sorted(notice.exact_on)) if asks else None,
        **{names.FORMER_KEYS[key]: None for key in (names.EXACT_CAPACITY_MIN, names.EXACT_CAPACITY_NODES)},
    }


def usual(sizes: Iterable[int]) -> int:
    """Return the usual request in bytes: the 90th percentile of sizes, 0 for none."""
    ordered = sorted(sizes)
    return ordered[(len(ordered) - 1) * 9 // 10] if ordered else 0


PATIENT_FROM = 3
