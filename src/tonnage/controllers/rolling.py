"""How a Deployment goes from old ReplicaSets to a new one, in numbers (pkg/controller/deployment). Computes only.

Bounds that always hold: ReplicaSets ask for at most desired + surge pods together, and never for so few that less
than desired - unavailable available ones would be left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tonnage.controllers.pod_templates import scaled


@dataclass(frozen=True)
class Size:
    """One ReplicaSet: pods it is to have, has, and that are available. annotated: max-replicas when it was scaled
    last, 0 if it does not say.
    """

    name: str
    wanted: int
    available: int
    annotated: int = 0


@dataclass(frozen=True)
class Bounds:
    """How many pods are wanted, how many more there may be, and how many may be missing."""

    desired: int
    surge: int
    unavailable: int

    @classmethod
    def of(cls, desired: int, surge: int | str | None, unavailable: int | str | None) -> Bounds:
        """From what the spec says: a surge is rounded up, what may be missing down; both nothing is one missing."""
        more = scaled(surge, desired, up=True)
        less = scaled(unavailable, desired, up=False)
        if not more and not less:
            less = 1
        return cls(desired, more, min(less, desired))


def new_size(bounds: Bounds, new: Size, olds: Sequence[Size]) -> int:
    """How many pods the new ReplicaSet may ask for now."""
    if new.wanted >= bounds.desired:
        return bounds.desired
    total = new.wanted + sum(old.wanted for old in olds)
    room = bounds.desired + bounds.surge - total
    return new.wanted + max(0, min(room, bounds.desired - new.wanted))


def old_sizes(bounds: Bounds, new: Size, olds: Sequence[Size]) -> dict[str, int]:
    """Old ReplicaSets (oldest first) that can do with fewer pods now, and with how many."""
    total = new.wanted + sum(old.wanted for old in olds)
    least = bounds.desired - bounds.unavailable
    room = total - least - max(0, new.wanted - new.available)
    if room <= 0:
        return {}
    sizes = _without_sick(olds, room)
    available = new.available + sum(min(old.available, sizes.get(old.name, old.wanted)) for old in olds)
    spare = available - least
    for old in olds:
        current = sizes.get(old.name, old.wanted)
        less = min(spare, current)
        if less > 0:
            sizes[old.name] = current - less
            spare -= less
    return sizes


def _without_sick(olds: Sequence[Size], room: int) -> dict[str, int]:
    """Old pods that are not available go first: they are missed by nobody."""
    sizes = {}
    for old in olds:
        less = min(room, max(0, old.wanted - old.available))
        if less > 0:
            sizes[old.name] = old.wanted - less
            room -= less
    return sizes


def proportional(bounds: Bounds, sets: Sequence[Size], seen: int) -> dict[str, int]:
    """Several ReplicaSets have pods while the wanted number changes: each grows or shrinks by its share.

    sets: oldest first; seen: pods that the Deployment had when it was last looked at.
    """
    allowed = bounds.desired + bounds.surge if bounds.desired else 0
    change = allowed - sum(one.wanted for one in sets)
    by_size = sorted(reversed(sets) if change > 0 else sets, key=lambda one: -one.wanted)
    sizes, done = {}, 0
    for one in by_size:
        share = _share(bounds, one, seen) if change else 0
        left = change - done
        share = max(0, min(share, left)) if change > 0 else min(0, max(share, left))
        sizes[one.name] = one.wanted + share
        done += share
    if by_size:  # what rounding has left over
        first = by_size[0].name
        sizes[first] = max(0, sizes[first] + change - done)
    return sizes


def _share(bounds: Bounds, one: Size, seen: int) -> int:
    if not bounds.desired:
        return -one.wanted
    before = one.annotated or seen
    if not before:
        return 0
    return round(one.wanted * (bounds.desired + bounds.surge) / before) - one.wanted
