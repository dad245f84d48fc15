"""Defaulting of PriorityClass and PodDisruptionBudget. Pure functions of normalized dicts."""

from __future__ import annotations

from tonnage_box.apiserver.kinds.shared.defaults import counts
from tonnage_box.apiserver.storage.store import Obj


def priority_class(obj: Obj) -> None:
    """PriorityClass: others may be pushed out for its pods."""
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def budget(obj: Obj) -> None:
    """PodDisruptionBudget: nothing counted yet."""
    counts(obj, "currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods")
