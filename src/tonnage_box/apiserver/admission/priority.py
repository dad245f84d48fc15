"""Priority admission: resolve priorityClassName of pods, check PriorityClasses.

Source: plugin/pkg/admission/priority.
"""

from __future__ import annotations

from typing import Any

from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.policy import LOWER, SYSTEM_CLASSES
from tonnage_box.apiserver.request.admission_context import AdmissionContext
from tonnage_box.apiserver.request.errors import forbidden
from tonnage_box.apiserver.storage.store import Obj

_TEXTS = {
    "system-cluster-critical": "Used for system critical pods that must run in the cluster, but can be moved to "
    "another node if necessary.",
    "system-node-critical": "Used for system critical pods that must not be moved from their current node.",
}


def system_class(name: str) -> Obj:
    """One of the classes that every cluster has."""
    return {"metadata": {"name": name}, "value": SYSTEM_CLASSES[name], "description": _TEXTS[name]}


async def of_pod(context: AdmissionContext, pod: Obj) -> None:
    """Write class, number and policy into a new pod. Raises: ApiError 403: no such class, or other values given."""
    spec = pod["spec"]
    found = await _class_of(context, pod)
    value = found.get("value", 0)
    policy = found.get("preemptionPolicy", LOWER)
    _compare(pod, "integer value of priority", spec.get("priority", value), value)
    _compare(pod, "string value of PreemptionPolicy", spec.get("preemptionPolicy", policy), policy)
    spec["priority"], spec["preemptionPolicy"] = value, policy


async def _class_of(context: AdmissionContext, pod: Obj) -> Obj:
    """The pod's PriorityClass: the one it names, or the default one, which it names then; {} for none."""
    spec = pod["spec"]
    name = spec.get("priorityClassName", "")
    if name:
        found = context.get(kinds.PRIORITY_CLASSES, name)
        if found is None:
            why = f"no PriorityClass with name {name} was found"
            raise forbidden(kinds.PODS, pod["metadata"]["name"], why)
        return found
    found = await _default(context)
    if found:
        spec["priorityClassName"] = found["metadata"]["name"]
    return found


async def _default(context: AdmissionContext) -> Obj:
    """The class of pods that name none; of several the lowest."""
    marked = [c for c in await context.list(kinds.PRIORITY_CLASSES) if c.get("globalDefault")]
    return min(marked, key=lambda c: int(c["value"]), default={})


def _compare(pod: Obj, what: str, given: Any, computed: Any) -> None:
    if given != computed:
        why = (
            f"the {what} ({given}) must not be provided in pod spec; priority admission controller computed {computed} "
            "from the given PriorityClass name"
        )
        raise forbidden(kinds.PODS, pod["metadata"]["name"], why)


async def of_class(context: AdmissionContext, new: Obj, old: Obj | None) -> None:
    """PriorityClasses: one of them at most is the default one. Raises: ApiError 403."""
    if context.operation == "DELETE" or not new.get("globalDefault"):
        return
    await context.hold("priorityclasses")
    there = await _default(context)
    if there and there["metadata"]["name"] != new["metadata"]["name"]:
        why = f"PriorityClass {there['metadata']['name']} is already marked as default. Only one default can exist"
        raise forbidden(kinds.PRIORITY_CLASSES, new["metadata"]["name"], why)
