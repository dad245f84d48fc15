"""autoscaling/v1 and v2 HorizontalPodAutoscaler: v2 is stored, v1 is another form of the same object.

What v1 has no field for is in an annotation, so that it returns unchanged (pkg/apis/autoscaling/v1/conversion.go).
"""

from __future__ import annotations

import json
from typing import Any

from tonnage.base.errors import ApiError
from tonnage_box.apiserver.schema import decode
from tonnage_box.apiserver.storage.store import Obj

_METRICS = "autoscaling.alpha.kubernetes.io/metrics"
_SPEC = "autoscaling.v2.HorizontalPodAutoscalerSpec"
_BEHAVIOR = "autoscaling.alpha.kubernetes.io/behavior"


def _is_cpu(metric: Obj) -> bool:
    resource = metric.get("resource") or {}
    return resource.get("name") == "cpu" and "averageUtilization" in (resource.get("target") or {})


def outward(obj: Obj) -> Obj:
    """The v1 form of a stored object."""
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    metrics, behavior = spec.pop("metrics", None) or [], spec.pop("behavior", None)
    cpu = next((m for m in metrics if _is_cpu(m)), None)
    if cpu is not None:
        spec["targetCPUUtilizationPercentage"] = cpu["resource"]["target"]["averageUtilization"]
    rest = [m for m in metrics if m is not cpu]
    noted = ((_METRICS, rest), (_BEHAVIOR, behavior))
    notes = {key: json.dumps(value, separators=(",", ":")) for key, value in noted if value}
    meta = dict(obj.get("metadata") or {})
    if notes:
        meta["annotations"] = (meta.get("annotations") or {}) | notes
    for word in ("conditions", "currentMetrics"):
        status.pop(word, None)
    shown = obj | {"apiVersion": "autoscaling/v1", "metadata": meta, "spec": spec}
    return shown | ({"status": status} if "status" in obj else {})


def inward(obj: Obj) -> Obj:
    """The stored form of a v1 object. An annotation that cannot be read stays one."""
    spec, meta = dict(obj.get("spec") or {}), dict(obj.get("metadata") or {})
    notes = dict(meta.get("annotations") or {})
    percent, metrics = spec.pop("targetCPUUtilizationPercentage", None), []
    if percent is not None:
        target = {"type": "Utilization", "averageUtilization": percent}
        metrics = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    rest, behavior = _read(notes, _METRICS, "metrics"), _read(notes, _BEHAVIOR, "behavior")
    spec |= {word: value for word, value in (("metrics", metrics + (rest or [])), ("behavior", behavior)) if value}
    if notes:
        meta["annotations"] = notes
    else:
        meta.pop("annotations", None)
    status = dict(obj.get("status") or {})
    status.pop("currentCPUUtilizationPercentage", None)
    stored = obj | {"apiVersion": "autoscaling/v2", "metadata": meta, "spec": spec}
    return stored | ({"status": status} if "status" in obj else {})


def _read(notes: dict[str, str], key: str, field: str) -> Any:
    """The value of an annotation, which is taken out; None where it is not what the field of v2 may be."""
    try:
        held = {field: json.loads(notes[key])}
        decode.normalize(_SPEC, held)
    except (KeyError, ValueError, RecursionError, ApiError):
        return None
    if held.get(field):
        del notes[key]
    return held.get(field)
