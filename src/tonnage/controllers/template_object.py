"""The capacity object of a class for nodes of a group that do not exist yet: what it is called and says. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tonnage.aio.clock import parse_rfc3339
from tonnage.api import names
from tonnage.api.quantity import from_bytes
from tonnage.api.storage import CSIStorageCapacity, StorageClass
from tonnage.controllers.capacity_object import numbers
from tonnage.controllers.pristine import Room

MANAGED_BY = "tonnage-templates"


@dataclass(frozen=True)
class NodeTemplate:
    """What a new node of a group has. group: "<label>=<value>" of its nodes. rooms: class -> its room."""

    group: str
    rooms: Mapping[str, Room]


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


def room_of(obj: CSIStorageCapacity) -> Room:
    """How much it says there is."""
    capacity, largest = numbers(obj)
    return Room(capacity, largest if largest is not None else capacity)


def object_name(group: str, storage_class: str) -> str:
    """Name of the template of a class in a group: always the same, so that none is made twice."""
    return f"csisc-template-{hashlib.sha256(f'{group}/{storage_class}'.encode()).hexdigest()[:20]}"


def is_template(obj: CSIStorageCapacity) -> bool:
    """Whether it speaks of nodes that do not exist, and of no others, and we made it."""
    selected = obj.node_topology.match_labels if obj.node_topology is not None else {}
    ours = obj.metadata.labels.get(names.CAPACITY_MANAGED_BY) == MANAGED_BY
    return ours and selected.get(names.TEMPLATE_NODE) == "true"


def groups_of(obj: CSIStorageCapacity) -> list[str]:
    """The group of a template, nothing of any other object."""
    if not is_template(obj) or obj.node_topology is None:
        return []
    return [f"{key}={value}" for key, value in obj.node_topology.match_labels.items() if key != names.TEMPLATE_NODE]


def without_nodes_since(obj: CSIStorageCapacity) -> float | None:
    """Since when its group has no nodes, by the wall clock; None where it has some."""
    try:
        return parse_rfc3339(obj.metadata.annotations.get(names.WITHOUT_NODES_SINCE, ""))
    except ValueError:
        return None
