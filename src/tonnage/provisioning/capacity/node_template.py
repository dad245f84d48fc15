"""Capacity objects of template nodes: recognition and reading; class errors that all real nodes publish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tonnage.base.aio.clock import time_of
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.provisioning.capacity.object import numbers, reason

MANAGED_BY = "tonnage-templates"


@dataclass(frozen=True)
class NodeTemplate:
    """Capacity of a new node of a node group.

    group: "<label>=<value>" of its nodes. by_class: class -> capacity.
    """

    group: str
    by_class: Mapping[str, TemplateCapacity]


def is_template(obj: CSIStorageCapacity) -> bool:
    """Return whether the object is ours and selects template nodes only."""
    selected = obj.node_topology.match_labels if obj.node_topology is not None else {}
    ours = obj.metadata.labels.get(names.CAPACITY_MANAGED_BY) == MANAGED_BY
    return ours and selected.get(names.TEMPLATE_NODE) == "true"


def published_faults(capacities: Iterable[CSIStorageCapacity]) -> list[str]:
    """Return a class's distinct errors if every node publishes one.

    capacities: the class's objects. Those that select no existing node are ignored.
    """
    real = (obj for obj in capacities if obj.node_topology is not None and not is_template(obj))
    reasons = dict.fromkeys(map(reason, real))
    return list(reasons) if all(map(names.is_fault, reasons)) else []


def groups_of(obj: CSIStorageCapacity) -> list[str]:
    """Return the node group of a template; none for any other object."""
    if not is_template(obj) or obj.node_topology is None:
        return []
    return [f"{key}={value}" for key, value in obj.node_topology.match_labels.items() if key != names.TEMPLATE_NODE]


def without_nodes_since(obj: CSIStorageCapacity) -> float | None:
    """Return since when the node group has no nodes (wall clock), None if it has some."""
    return time_of(obj.metadata.annotations.get(names.WITHOUT_NODES_SINCE))


def capacity_of(obj: CSIStorageCapacity) -> TemplateCapacity:
    """Return the capacity in the object."""
    capacity, largest = numbers(obj)
    return TemplateCapacity(capacity, largest if largest is not None else capacity)


class TemplateCapacity(NamedTuple):
    """Bytes for all volumes together, and for the largest one."""

    capacity: int
    largest: int
