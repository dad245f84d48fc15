"""ClusterRole aggregation: joins the rules of selected ClusterRoles (pkg/controller/clusterroleaggregation)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tonnage.kubernetes.api.kinds import CLUSTER_ROLES
from tonnage.kubernetes.api.rbac import ClusterRole
from tonnage.kubernetes.api.selectors import from_label_selector
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.informer import Informers


class ClusterRoleAggregator(Reconciler[str]):
    """Keeps the rules of each ClusterRole that has an aggregationRule."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        roles = informers.of(CLUSTER_ROLES)
        self._roles = roles.cache
        super().__init__("cluster_role_aggregation", workers=1)
        self.watch(roles, self._joining)

    def _joining(self, old: ClusterRole | None, new: ClusterRole | None) -> Iterable[str]:
        """All roles that join others: the change may concern each of them, and there are few."""
        if old is not None and new is not None and _shape(old) == _shape(new):
            return ()
        return [role.metadata.name for role in self._roles if role.aggregation_rule is not None]

    async def reconcile(self, name: str) -> None:
        """Write the rules of one role if they differ. Idempotent. Raises: ApiError."""
        role = self._roles.get(name)
        if role is None or role.aggregation_rule is None or role.metadata.deleting:
            return
        selectors = [from_label_selector(selector) for selector in role.aggregation_rule.cluster_role_selectors]
        rules: list[dict[str, Any]] = []
        for other in sorted(self._roles, key=lambda role: role.metadata.name):
            if other.metadata.name == name or not any(s.matches(other.metadata.labels) for s in selectors):
                continue
            rules += [rule for rule in other.rules if rule not in rules]
        if rules != role.rules:
            await self._client.patch(CLUSTER_ROLES, name, {"rules": rules}, uid=role.metadata.uid)


def _shape(role: ClusterRole) -> object:
    return (role.rules, role.aggregation_rule, role.metadata.labels)
