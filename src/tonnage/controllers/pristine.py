"""What a node's pools would have for volumes if there were none, out of what is published and made there. Pure.

A node publishes what is left. What its volumes take comes on top, where they draw on the same room: a pool, by the
label `tonnage.dev/pool`. Volumes take a little more than they offer and some room is promised, so this is never more
than the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tonnage.api import names
from tonnage.api.core import PersistentVolume
from tonnage.api.matching import capacity
from tonnage.api.storage import CSIStorageCapacity
from tonnage.controllers.capacity_object import numbers, reason


class Room(NamedTuple):
    """Bytes for all volumes together, and for the largest one."""

    capacity: int
    largest: int


def pristine(published: Mapping[str, CSIStorageCapacity], volumes: Iterable[PersistentVolume]) -> dict[str, Room]:
    """Room for each class, of a node that published that and has those volumes.

    Classes that the node cannot serve, for a reason, are left out.
    """
    taken: dict[str, int] = {}
    largest: dict[str, int] = {}
    for volume in volumes:
        found = published.get(volume.spec.storage_class_name)
        if found is not None:
            room, size = _room(found), capacity(volume)
            taken[room] = taken.get(room, 0) + size
            largest[room] = max(largest.get(room, 0), size)
    return {
        name: _whole(obj, taken.get(_room(obj), 0), largest.get(_room(obj), 0))
        for name, obj in published.items()
        if not reason(obj)
    }


def _room(obj: CSIStorageCapacity) -> str:
    return obj.metadata.labels.get(names.POOL_LABEL, f"class {obj.storage_class_name}")


def _whole(obj: CSIStorageCapacity, taken: int, largest: int) -> Room:
    """Where one volume may fill what is left, one might have filled it all; where the room is in pieces (whole disks),
    the largest piece is one that is free or one that is taken."""
    free, maximum = numbers(obj)
    whole = free + taken
    return Room(whole, whole if maximum is None or maximum >= free > 0 else max(maximum, largest))
