"""Validation of HorizontalPodAutoscaler, which the box stores (pkg/apis/autoscaling/validation)."""

from __future__ import annotations

from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults, items
from tonnage_box.apiserver.validation.meta import kind_rules

_SOURCES = {
    "ContainerResource": "containerResource", "External": "external", "Object": "object", "Pods": "pods",
    "Resource": "resource",
}  # fmt: skip


@kind_rules(whole=True)
def autoscaler(faults: Faults, new: Obj, old: Obj | None) -> None:
    """HorizontalPodAutoscaler of either version: bounds, target and measures."""
    spec = new.get("spec") or {}
    least, most = spec.get("minReplicas", 1), spec.get("maxReplicas", 0)
    if least < 1:
        faults.invalid("spec.minReplicas", least, "must be greater than or equal to 1")
    if most < 1:
        faults.invalid("spec.maxReplicas", most, "must be greater than 0")
    elif most < least:
        faults.invalid("spec.maxReplicas", most, "must be greater than or equal to `minReplicas`")
    faults.given("spec.scaleTargetRef", spec.get("scaleTargetRef") or {}, "kind", "name")
    percent = spec.get("targetCPUUtilizationPercentage")
    if percent is not None and percent < 1:
        faults.invalid("spec.targetCPUUtilizationPercentage", percent, "must be greater than 0")
    for path, metric in items(spec, "metrics", "spec."):
        _metric(faults, metric, path)


def _metric(faults: Faults, metric: Obj, path: str) -> None:
    kind = metric.get("type", "")
    if not kind:
        faults.required(f"{path}.type", "must specify a metric source type")
        return
    if kind not in _SOURCES:
        faults.not_supported(f"{path}.type", kind, _SOURCES)
        return
    word = _SOURCES[kind]
    for other in sorted(metric.keys() & set(_SOURCES.values()) - {word}):
        faults.forbidden(f"{path}.{other}", f"must be unset when type is {kind}")
    source, here = metric.get(word), f"{path}.{word}"
    if source is None:
        faults.required(here, "must populate information for the given metric source")
        return
    if "resource" in word.lower():
        faults.given(here, source, "name", *(["container"] if kind == "ContainerResource" else []))
    else:
        faults.given(f"{here}.metric", source.get("metric") or {}, "name")
    target = source.get("target") or {}
    faults.name(f"{here}.target.type", target.get("type"), _target_type)
    if not target.keys() & {"value", "averageValue", "averageUtilization"}:
        faults.required(f"{here}.target", "must set a value, an averageValue or an averageUtilization")


def _target_type(text: str) -> tuple[str, ...]:
    known = ("AverageValue", "Utilization", "Value")
    return () if text in known else ("must be either Utilization, Value, or AverageValue",)
