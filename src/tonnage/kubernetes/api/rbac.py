"""rbac.authorization.k8s.io/v1, with only the fields that we read."""

from __future__ import annotations

from typing import Any

from tonnage.kubernetes.api.meta import KubeObject, LabelSelector, Object


class AggregationRule(Object, frozen=True):
    """Which ClusterRoles are joined: those that one of the selectors matches."""

    cluster_role_selectors: list[LabelSelector] = []


class ClusterRole(KubeObject, frozen=True):
    """ClusterRole; rules as they are stored."""

    rules: list[dict[str, Any]] = []
    aggregation_rule: AggregationRule | None = None
