"""Defaulting of HorizontalPodAutoscaler (pkg/apis/autoscaling/*/defaults.go). Pure functions of normalized dicts."""

from __future__ import annotations

from tonnage_box.apiserver.storage.store import Obj

_CPU_PERCENT = 80


def autoscaler(obj: Obj) -> None:
    """HorizontalPodAutoscaler: at least one pod, 80 % of the CPU that its pods request."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("minReplicas", 1)
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": _CPU_PERCENT}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    obj.setdefault("status", {}).setdefault("desiredReplicas", 0)


def autoscaler_v1(obj: Obj) -> None:
    """HorizontalPodAutoscaler of autoscaling/v1: at least one pod."""
    obj.setdefault("spec", {}).setdefault("minReplicas", 1)
    status = obj.setdefault("status", {})
    for word in ("currentReplicas", "desiredReplicas"):
        status.setdefault(word, 0)
