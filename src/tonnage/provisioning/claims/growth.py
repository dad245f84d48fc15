"""Growth of a bound claim: the size it asks for, and the status that says how far it is. No I/O.

The API server accepts a larger request of a bound claim; who expands the volume writes the rest (KEP-284, KEP-1790).
The status of an attempt that failed stays until a later one succeeds. A user may lower the request down to above
status.capacity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.matching import is_bound, requested
from tonnage.kubernetes.api.quantity import from_bytes, to_bytes
from tonnage.provisioning.claims.conditions import Condition, true, without

STORAGE = "storage"
NODE_PENDING, NODE_IN_PROGRESS = "NodeResizePending", "NodeResizeInProgress"
NODE_INFEASIBLE, CONTROLLER_INFEASIBLE = "NodeResizeInfeasible", "ControllerResizeInfeasible"
"""Values of status.allocatedResourceStatuses."""
RESIZING, AWAITS_NODE = "Resizing", "FileSystemResizePending"
CONTROLLER_ERROR, NODE_ERROR = "ControllerResizeError", "NodeResizeError"
CONDITIONS = frozenset({RESIZING, AWAITS_NODE, CONTROLLER_ERROR, NODE_ERROR})
"""Types of a claim's conditions that are about its growth."""
NODE_NOT_REQUIRED = "volume.kubernetes.io/node-expansion-not-required"
"""Annotation of a claim whose file system has grown already: the kubelet has nothing to do."""
OLD_CAPACITY = "volume.alpha.kubernetes.io/pre-resize-capacity"
"""Annotation of a PV whose file system has yet to grow: the claim's capacity before."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes that a claim has, and that it requests."""

    has: int
    asked: int

    @property
    def text(self) -> str:
        """The growth for people."""
        return f"from {from_bytes(self.has)} to {from_bytes(self.asked)}"


def growth_of(claim: PersistentVolumeClaim) -> Growth | None:
    """Return the growth that a claim requests and does not have, or None."""
    if not is_bound(claim) or claim.status.phase != "Bound" or claim.metadata.deleting:
        return None
    try:
        has, asked = to_bytes(claim.status.capacity[STORAGE]), requested(claim)
    except (KeyError, InvalidError):
        return None
    return Growth(has, asked) if asked > has else None


def awaits_node(claim: PersistentVolumeClaim) -> bool:
    """Return whether the kubelet has yet to grow the file system.

    Old resizers, which write no resource status, say it by a condition.
    """
    status = claim.status
    if status.allocated_resource_statuses or status.allocated_resources:
        return status.allocated_resource_statuses.get(STORAGE) in (NODE_PENDING, NODE_IN_PROGRESS)
    return any(one.get("type") == AWAITS_NODE for one in status.conditions)


def problem_of(claim: PersistentVolumeClaim) -> str:
    """Return why the growth of a claim has not ended, as its conditions say, or ""."""
    found = {one.get("type"): str(one.get("message", "")) for one in claim.status.conditions}
    return next((found[kind] for kind in (CONTROLLER_ERROR, NODE_ERROR, AWAITS_NODE) if found.get(kind)), "")


def finished(claim: PersistentVolumeClaim, size: int) -> dict[str, Any]:
    """Return the patch of the status of a claim whose volume and file system have that many bytes."""
    amount = {STORAGE: from_bytes(size)}
    return {
        "metadata": {"annotations": {NODE_NOT_REQUIRED: "true"}},
        "status": has_grown(claim, from_bytes(size)) | {"allocatedResources": amount},
    }


def has_grown(claim: PersistentVolumeClaim, amount: str) -> dict[str, Any]:
    """Return the status of a claim that has that quantity, and whose growth is over."""
    return {
        "capacity": {STORAGE: amount},
        "allocatedResourceStatuses": None,
        "conditions": _conditions(claim) or None,
    }


def pending(claim: PersistentVolumeClaim, size: int, why: str, *, now: str) -> dict[str, Any]:
    """Return the patch of the status of a claim whose volume has that many bytes, and its file system not yet."""
    status = {"allocatedResources": {STORAGE: from_bytes(size)}, "allocatedResourceStatuses": {STORAGE: NODE_PENDING}}
    known = claim.status.conditions
    waits = [true(RESIZING, "", now, known=known), true(AWAITS_NODE, why, now, known=known)]
    return {
        "metadata": {"annotations": {NODE_NOT_REQUIRED: None}},
        "status": status | {"conditions": [*_conditions(claim), *waits]},
    }


def failed(claim: PersistentVolumeClaim, why: str, *, infeasible: bool, now: str) -> dict[str, Any] | None:
    """Return the patch of the status of a claim whose volume was not expanded; None if its status says so already.

    infeasible: it is tried again only after something has changed. Nothing is allocated for it.
    """
    status = CONTROLLER_INFEASIBLE if infeasible else None
    if claim.status.allocated_resource_statuses.get(STORAGE) == status and problem_of(claim) == why:
        return None
    conditions = [*_conditions(claim), true(CONTROLLER_ERROR, why, now, known=claim.status.conditions)]
    return {"status": {"allocatedResourceStatuses": {STORAGE: status}, "conditions": conditions}}


def _conditions(claim: PersistentVolumeClaim) -> list[Condition]:
    return without(claim.status.conditions, CONDITIONS)
