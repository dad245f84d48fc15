"""The capacity object of a class for nodes of a group that do not exist yet: what it is called and says. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from tonnage.api import names
from tonnage.api.core import PersistentVolume
from tonnage.api.matching import capacity
from tonnage.api.quantity import from_bytes
from tonnage.api.storage import CSIStorageCapacity, StorageClass
from tonnage.capacity.node_template import MANAGED_BY, Room
from tonnage.capacity.object import numbers, reason


def body(group: str, storage_class: StorageClass, room: Room) -> dict[str, Any]:
    """The object to make."""
    label, _, value = group.partition("=")
    name = storage_class.metadata.name
    return {
        "metadata": {
            "name": object_name(group, name),
            "labels": {names.CAPACITY_DRIVER: storage_class.provisioner, names.CAPACITY_MANAGED_BY: MANAGED_BY},
        },
        "storageClassName": name,
        "nodeTopology": {"matchLabels": {names.TEMPLATE_NODE: "true", label: value}},
        **amounts(room),
    }


def amounts(room: Room) -> dict[str, Any]:
    """The fields that say how much there is."""
    return {"capacity": from_bytes(room.capacity), "maximumVolumeSize": from_bytes(room.largest)}


def object_name(group: str, storage_class: str) -> str:
    """Name of the template of a class in a group: always the same, so that none is made twice."""
    return f"csisc-template-{hashlib.sha256(f'{group}/{storage_class}'.encode()).hexdigest()[:20]}"


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
