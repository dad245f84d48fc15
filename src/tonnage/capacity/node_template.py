"""Published capacity of nodes that do not exist yet: how such an object is recognized and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tonnage.aio.clock import parse_rfc3339
from tonnage.api import names
from tonnage.api.storage import CSIStorageCapacity
from tonnage.capacity.object import numbers

MANAGED_BY = "tonnage-templates"


@dataclass(frozen=True)
class NodeTemplate:
    """What a new node of a group has. group: "<label>=<value>" of its nodes. rooms: class -> its room."""

    group: str
    rooms: Mapping[str, Room]


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


def room_of(obj: CSIStorageCapacity) -> Room:
    """How much it says there is."""
    capacity, largest = numbers(obj)
    return Room(capacity, largest if largest is not None else capacity)


class Room(NamedTuple):
    """Bytes for all volumes together, and for the largest one."""

    capacity: int
    largest: int
