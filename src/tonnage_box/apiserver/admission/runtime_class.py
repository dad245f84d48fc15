"""RuntimeClass of a pod: it must exist; its overhead and its nodes become the pod's (plugin/pkg/admission)."""

from __future__ import annotations

from tonnage.base.errors import ApiError
from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.request import errors
from tonnage_box.apiserver.request.admission_context import AdmissionContext
from tonnage_box.apiserver.storage.store import Obj


def of_pod(context: AdmissionContext, pod: Obj) -> None:
    """Complete a new pod by its class. Raises: a 403 for an unknown class and for what contradicts it."""
    spec = pod["spec"]
    name = spec.get("runtimeClassName")
    if not name:
        if "overhead" in spec:
            raise _rejected(context, "Pod Overhead set without corresponding RuntimeClass defined Overhead")
        return
    found = context.get(kinds.RUNTIME_CLASSES, name)
    if found is None:
        raise _rejected(context, f'RuntimeClass "{name}" not found')
    overhead = (found.get("overhead") or {}).get("podFixed")
    if spec.get("overhead", overhead) != overhead:
        raise _rejected(context, "Pod's Overhead doesn't match RuntimeClass's defined Overhead")
    if overhead:
        spec["overhead"] = overhead
    _schedule(context, spec, found.get("scheduling") or {})


def _schedule(context: AdmissionContext, spec: Obj, scheduling: Obj) -> None:
    wanted = scheduling.get("nodeSelector") or {}
    selector = spec.get("nodeSelector") or {}
    for key, value in wanted.items():
        if selector.get(key, value) != value:
            both = (
                f"runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {selector[key]}"
            )
            raise _rejected(context, f"conflict: {both}")
    if wanted:
        spec["nodeSelector"] = selector | wanted
    tolerations = spec.get("tolerations") or []
    added = [t for t in scheduling.get("tolerations") or () if t not in tolerations]
    if added:
        spec["tolerations"] = tolerations + added


def _rejected(context: AdmissionContext, why: str) -> ApiError:
    return errors.forbidden(kinds.PODS, context.name, f"pod rejected: {why}")
