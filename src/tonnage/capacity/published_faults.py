"""Errors of StorageClasses that nodes publish with their capacity."""

from __future__ import annotations

from collections.abc import Iterable

from tonnage.api import names
from tonnage.api.storage import CSIStorageCapacity
from tonnage.capacity.node_template import is_template
from tonnage.capacity.object import reason as reason_of


def published_faults(capacities: Iterable[CSIStorageCapacity]) -> list[str]:
    """Return a class's distinct errors if every node publishes one.

    capacities: the class's objects. Those that select no existing node are ignored.
    """
    real = (obj for obj in capacities if obj.node_topology is not None and not is_template(obj))
    reasons = dict.fromkeys(map(reason_of, real))
    return list(reasons) if all(map(names.is_fault, reasons)) else []
