"""scheduling.k8s.io/v1 PriorityClass and policy/v1 PodDisruptionBudget."""

from __future__ import annotations

from tonnage.kubernetes.api.meta import Condition, KubeObject, LabelSelector, Object

NEVER, LOWER = "Never", "PreemptLowerPriority"
"""Preemption policies."""
SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""Priority classes that every cluster has, and their values."""


class PriorityClass(KubeObject, frozen=True):
    """scheduling.k8s.io/v1 PriorityClass."""

    value: int = 0
    preemption_policy: str = LOWER


class PodDisruptionBudgetSpec(Object, frozen=True):
    """minAvailable or maxUnavailable: a number or a percentage. selector None selects nothing."""

    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(Object, frozen=True):
    """Allowed disruptions.

    disrupted_pods: evicted pods that are not seen to terminate yet, with the time (RFC 3339).
    """

    observed_generation: int = 0
    disrupted_pods: dict[str, str] = {}
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    conditions: list[Condition] = []


class PodDisruptionBudget(KubeObject, frozen=True):
    """policy/v1 PodDisruptionBudget."""

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
