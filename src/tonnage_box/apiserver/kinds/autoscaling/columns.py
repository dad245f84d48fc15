"""Columns of `kubectl get hpa` (pkg/printers/internalversion)."""

from __future__ import annotations

from collections.abc import Iterable

from tonnage_box.apiserver.printers.cells import few
from tonnage_box.apiserver.printers.table import AGE, NAME, Column, Obj, at, dig, of

_MEASURES = {
    "Resource": "resource", "ContainerResource": "containerResource", "Pods": "pods", "Object": "object",
    "External": "external",
}  # fmt: skip


def _metrics(obj: Obj) -> str:
    """`cpu: <unknown>/80%`: what was measured and the goal of each measure."""
    wanted, seen = dig(obj, "spec", "metrics") or (), dig(obj, "status", "currentMetrics") or ()
    shown = [_metric(spec, seen[n] if n < len(seen) else {}) for n, spec in enumerate(wanted)]
    return few(shown, 2).replace(",", ", ") or "<none>"


def _metric(spec: Obj, status: Obj) -> str:
    word = _MEASURES.get(spec.get("type", ""), "")
    source, target = spec.get(word) or {}, dig(spec, word, "target") or {}
    current = dig(status, word, "current") or {}
    name = f"{source['name']}: " if source.get("name") else ""
    if "averageValue" in target:
        tail = " (avg)" if word in ("object", "external") else ""
        return f"{name}{current.get('averageValue', '<unknown>')}/{target['averageValue']}{tail}"
    if word in ("object", "external"):
        return f"{current.get('value', '<unknown>')}/{target.get('value', '<unknown>')}"
    return f"{name}{_percent(current, '<unknown>')}/{_percent(target, '<auto>')}" if word else "<unknown type>"


def _percent(amounts: Obj, empty: str) -> str:
    return f"{amounts['averageUtilization']}%" if "averageUtilization" in amounts else empty


def _scaled(obj: Obj) -> str:
    ref = dig(obj, "spec", "scaleTargetRef") or {}
    return f"{ref.get('kind', '')}/{ref.get('name', '')}"


def autoscaler(columns: Iterable[Column] = ()) -> tuple[Column, ...]:
    """Columns of HorizontalPodAutoscalers; columns: those before the numbers of pods, for another version."""
    return (
        NAME,
        of("Reference", _scaled, text="The workload that it scales."),
        *(columns or (of("Targets", _metrics, text="What is measured, and the goal."),)),
        of("MinPods", lambda o: str(dig(o, "spec", "minReplicas") or "<unset>")),
        at("MaxPods", "spec", "maxReplicas", empty=0, kind="integer"),
        at("Replicas", "status", "currentReplicas", empty=0, kind="integer"),
        AGE,
    )


def _cpu(obj: Obj) -> str:
    wanted, seen = (
        dig(obj, "spec", "targetCPUUtilizationPercentage"),
        dig(obj, "status", "currentCPUUtilizationPercentage"),
    )
    return "<none>" if wanted is None else f"cpu: {'<unknown>' if seen is None else f'{seen}%'}/{wanted}%"


AUTOSCALER = autoscaler()
AUTOSCALER_V1 = autoscaler((of("Targets", _cpu),))
