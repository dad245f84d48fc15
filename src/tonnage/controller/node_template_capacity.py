"""Capacity object of a class for template nodes: name and content. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from tonnage.api import names
from tonnage.api.core import PersistentVolume
from tonnage.api.matching import capacity
from tonnage.api.quantity import from_bytes
from tonnage.api.storage import CSIStorageCapacity, StorageClass
from tonnage.capacity.node_template import MANAGED_BY, TemplateCapacity
from tonnage.capacity.object import numbers, reason


def body(group: str, storage_class: StorageClass, room: TemplateCapacity) -> dict[str, Any]:
    """Body of the object, to create it."""
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


def amounts(room: TemplateCapacity) -> dict[str, Any]:
    """Fields of its capacity."""
    return {"capacity": from_bytes(room.capacity), "maximumVolumeSize": from_bytes(room.largest)}


def object_name(group: str, storage_class: str) -> str:
    """Return the object's name for a class and a node group.

    It is always the same, so no duplicate is created.
    """
    return f"csisc-template-{hashlib.sha256(f'{group}/{storage_class}'.encode()).hexdigest()[:20]}"


def pristine(
    published: Mapping[str, CSIStorageCapacity], volumes: Iterable[PersistentVolume]
) -> dict[str, TemplateCapacity]:
    """Return the capacity of an empty node, by class.

    published: its capacity objects. volumes: its PVs. Classes that the node cannot serve are left out.
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


def _whole(obj: CSIStorageCapacity, taken: int, largest: int) -> TemplateCapacity:
    """Return the capacity with no volume in it.

    If one volume can have all free bytes, one could have had the whole. If the pool is in pieces (whole disks), the
    largest is one that is free or one that is taken.
    """
    free, maximum = numbers(obj)
    whole = free + taken
    return TemplateCapacity(whole, whole if maximum is None or maximum >= free > 0 else max(maximum, largest))
