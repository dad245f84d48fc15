"""ClusterRoles that are joined from others."""

from __future__ import annotations

from typing import Any

from tests.unit.fixture_types import Running

from tonnage.kubernetes.api.kinds import CLUSTER_ROLES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.cluster_role_aggregation import ClusterRoleAggregator
from tonnage_box.testing.wait import Eventually


def rule(resource: str) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": [resource], "verbs": ["get"]}


async def test_rules_follow_the_selected_roles(
    kube: Client, informers: Informers, running: Running, eventually: Eventually
) -> None:
    async def resources() -> list[str]:
        return [rule["resources"][0] for rule in (await kube.get(CLUSTER_ROLES, "all")).rules]

    async def make(name: str, label: str) -> None:
        meta = {"name": name, "labels": {"join": label}}
        await kube.create(CLUSTER_ROLES, {"metadata": meta, "rules": [rule(name)]})

    selectors = [{"matchLabels": {"join": "yes"}}]
    async with running(ClusterRoleAggregator(kube, informers)):
        await make("pods", "yes")
        await make("nodes", "no")
        body = {"metadata": {"name": "all"}, "aggregationRule": {"clusterRoleSelectors": selectors}}
        await kube.create(CLUSTER_ROLES, body)

        async def has(*wanted: str) -> bool:
            return await resources() == list(wanted)

        assert await eventually(lambda: has("pods"))
        await kube.patch(CLUSTER_ROLES, "nodes", {"metadata": {"labels": {"join": "yes"}}})
        assert await eventually(lambda: has("nodes", "pods"))
        await kube.delete(CLUSTER_ROLES, "pods")
        assert await eventually(lambda: has("nodes"))
