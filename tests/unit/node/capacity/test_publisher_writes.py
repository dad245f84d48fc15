"""The node's own capacity objects: written, and put right when somebody else changed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.node.agents import AllEvents

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage_box.testing.wait import Eventually


async def test_an_object_is_the_nodes_and_is_put_right(
    kube: Client, make_node: Callable[..., Any], eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node("4Gi")
    assert await eventually(lambda: node.publishes("4Gi", "4Gi"))
    (obj,) = (await kube.list(kinds.CAPACITIES, names.SYSTEM_NAMESPACE)).items
    (owner,) = obj.metadata.owner_references
    assert (owner.kind, owner.name, obj.metadata.labels[names.NODE_LABEL]) == ("Node", node.name, node.name)
    (agent,) = node.agents

    await kube.patch(kinds.CAPACITIES, obj.metadata.name, {"capacity": "9Gi"}, names.SYSTEM_NAMESPACE)

    async def told() -> bool:
        return any(reason == "CapacityTampered" for _, reason, _ in await all_events())

    assert await eventually(told)
    assert await eventually(lambda: node.publishes("4Gi", "4Gi"))
    assert agent.capacity.is_published
