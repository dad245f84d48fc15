"""Capacity objects whose node is gone and whose owner somebody took off."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.controller.contexts import context
from tests.unit.fixture_types import Running

from tonnage.controller.capacity_cleanup import GoneCapacity
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES, NAMESPACES, NODES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.testing.wait import Eventually

Settle = Callable[[], Awaitable[None]]
LONG = "a-name-that-is-longer-than-the-sixty-three-characters-of-a-label.example.com"


async def publish(kube: Client, name: str, node: str, *, owned: bool = False, **more: Any) -> None:
    label = names.label_value(node)
    labels = {
        names.CAPACITY_DRIVER: names.DRIVER,
        names.CAPACITY_MANAGED_BY: names.label_value(f"tonnage-{node}"),
        names.NODE_LABEL: label,
        **more.pop("labels", {}),
    }
    owners = [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": "u", "controller": True}] if owned else []
    body = {
        "metadata": {"name": name, "labels": {k: v for k, v in labels.items() if v}, "ownerReferences": owners},
        "storageClassName": "late",
        "nodeTopology": {"matchLabels": {names.TOPOLOGY_NODE: label}},
        "capacity": "1Gi",
    }
    await kube.create(CAPACITIES, body, more.pop("namespace", names.SYSTEM_NAMESPACE))


async def there(kube: Client) -> list[str]:
    return sorted(c.metadata.name for c in (await kube.list(CAPACITIES)).items)


@pytest.fixture
async def controller(kube: Client, informers: Informers) -> GoneCapacity:
    await kube.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    for name in ("n1", LONG):
        await kube.create(NODES, {"metadata": {"name": name}})
    return GoneCapacity(context(kube, informers))


async def test_what_nobody_owns_any_more_goes_with_its_node(
    kube: Client, controller: GoneCapacity, running: Running, eventually: Eventually
) -> None:
    for name, node in (("a", "n1"), ("b", LONG), ("c", "never")):
        await publish(kube, name, node)
    await publish(kube, "d", "n1", owned=True)  # the garbage collector's

    async def only(*names_: str) -> bool:
        return await there(kube) == list(names_)

    async with running(controller):
        await eventually(lambda: only("a", "b", "d"))
        await kube.delete(NODES, LONG)
        await eventually(lambda: only("a", "d"))
        await kube.delete(NODES, "n1")
        await eventually(lambda: only("d"))


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"labels": {names.CAPACITY_MANAGED_BY: "external-provisioner-x"}}, id="another's"),
        pytest.param({"labels": {names.CAPACITY_DRIVER: "foreign.example.com"}}, id="of another driver"),
        pytest.param({"labels": {names.NODE_LABEL: ""}}, id="of no node"),
        pytest.param({"namespace": "default"}, id="elsewhere"),
    ],
)
async def test_what_our_agents_did_not_make_stays(
    kube: Client, controller: GoneCapacity, settle: Settle, more: dict[str, Any]
) -> None:
    await publish(kube, "a", "never", **more)
    await settle()
    await controller.reconcile(f"{more.get('namespace', names.SYSTEM_NAMESPACE)}/a")
    assert await there(kube) == ["a"]


async def test_a_node_that_has_just_come_keeps_its_own(kube: Client, controller: GoneCapacity, settle: Settle) -> None:
    await publish(kube, "a", "n2")
    await settle()
    await kube.create(NODES, {"metadata": {"name": "n2"}})  # and the watch has not told it yet
    await controller.reconcile(f"{names.SYSTEM_NAMESPACE}/a")
    assert await there(kube) == ["a"]
