"""A pod that fits nowhere: what it costs, and that it misses nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.node.provisioner.contexts import context

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.node.provisioner.other_nodes import have_capacity
from tonnage.node.provisioner.state import NodeSearch, PodClaimGroup
from tonnage.provisioning.claims.node_scope import CapacitySource
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim, MakePod
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30
MINUTE = 60.0
OFTEN = {names.RESCHEDULES: "20"}


async def test_capacity_that_another_node_got_since_is_found_once(kube: Client, make_claim: MakeClaim) -> None:
    claim = await make_claim("data", "4Gi", storageClassName="late")
    node, search = context(client=kube), NodeSearch()
    source = CapacitySource(names.DRIVER, "late", "pool/scratch")
    node.ledger.see(claim.metadata.uid, source, 4 * GIB, attempt="", version=1, now=0.0)
    found = PodClaimGroup("data", "default", None, (claim.key,), frozenset((claim.key,)))
    assert not await have_capacity(node, found, [claim], search), "nothing is published"
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    labels = {names.CAPACITY_DRIVER: names.DRIVER, names.NODE_LABEL: "node-2"}
    body = {"metadata": {"name": "of-node-2", "labels": labels}, "storageClassName": "late", "nodeTopology": {}}
    await kube.create(kinds.CAPACITIES, {**body, "capacity": "4Gi"}, names.SYSTEM_NAMESPACE)
    assert not await have_capacity(node, found, [claim], search), "the next check is not due"
    search.check_at = 0.0
    assert await have_capacity(node, found, [claim], search)
    search.check_at = 0.0
    assert not await have_capacity(node, found, [claim], search), "no news"


async def _keep_sending(node: FakeNode, *claims: str) -> None:
    """A scheduler that sends to this node at once whatever comes back."""
    while True:
        there = {c.metadata.name: c for c in (await node.client.list(kinds.CLAIMS, "default")).items}
        await node.select(*(c for c in claims if names.SELECTED_NODE not in there[c].metadata.annotations))
        await asyncio.sleep(3.0)


async def _written(node: FakeNode) -> int:
    """How often anything was written so far: each write has a version of its own."""
    return int(await node.client.revision(kinds.CLAIMS, "", fields=""))


@pytest.mark.slow
@pytest.mark.parametrize("volumes", [1, 2, 8])
async def test_after_five_minutes_it_costs_less_than_a_write_a_minute(
    make_node: MakeNode, make_claim: MakeClaim, scratch_pod: MakePod, eventually: Eventually, volumes: int
) -> None:
    node = await make_node("30Gi")
    await eventually(lambda: node.publishes("30Gi", "30Gi"))
    size = "40Gi" if volumes == 1 else "20Gi"
    await scratch_pod("app", *[size] * volumes)
    scheduler = asyncio.ensure_future(_keep_sending(node, *(f"app-v{n}" for n in range(volumes))))
    await asyncio.sleep(5 * MINUTE)
    before, minutes = await _written(node), 120
    await asyncio.sleep(minutes / 2 * MINUTE)
    await node.kill_agent()
    await node.start_agent()
    await asyncio.sleep(minutes / 2 * MINUTE)
    took = await _written(node) - before
    attempts = int((await node.claim("app-v0")).metadata.annotations[names.RESCHEDULES])
    scheduler.cancel()
    assert attempts > 10
    assert took <= minutes, f"{took} writes in {minutes} minutes"
    assert await node.volumes() == []


async def test_room_that_comes_back_here_is_used_at_once(
    make_node: MakeNode, make_claim: MakeClaim, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await make_claim("old", "8Gi", storageClassName="late")
    await node.select("old")
    await eventually(lambda: node.is_bound("old"))
    await make_claim("new", "8Gi", storageClassName="late", annotations=OFTEN)
    await node.select("new")
    await asyncio.sleep(3 * MINUTE)
    assert await node.phase("new") == "Pending"
    await node.release("old")
    await eventually(lambda: node.is_bound("new"))


async def test_so_is_room_that_the_driver_had_denied(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi", poll=20)
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    async with CsiClient(node.driver.endpoints[0]) as stranger:
        theirs = await stranger.create_volume("theirs", 8 * GIB, [VolumeCapability()])
    await make_claim("new", "8Gi", storageClassName="late", annotations=OFTEN)
    await node.select("new")
    await asyncio.sleep(3 * MINUTE)
    assert await node.phase("new") == "Pending"
    async with CsiClient(node.driver.endpoints[0]) as stranger:
        await stranger.delete_volume(theirs.id)
    await eventually(lambda: node.is_bound("new"))


async def _roomy(node: FakeNode, name: str, free: str) -> None:
    """Another node comes to have room."""
    topology = {"matchLabels": {names.TOPOLOGY_NODE: name}}
    labels = {names.CAPACITY_DRIVER: names.DRIVER, names.NODE_LABEL: name}
    body = {"metadata": {"name": f"of-{name}", "labels": labels}, "storageClassName": "late", "nodeTopology": topology}
    await node.client.create(kinds.CAPACITIES, {**body, "capacity": free}, names.SYSTEM_NAMESPACE)


async def _held(node: FakeNode, scratch_pod: MakePod, **node_labels: str) -> Any:
    """A pod that fits nowhere, and has gone back often; another node is there, without room."""
    await node.client.create(kinds.NODES, {"metadata": {"name": "node-2", "labels": node_labels}})
    pod = await scratch_pod("app", "20Gi", "20Gi")
    for claim in ("app-v0", "app-v1"):
        await node.client.patch(kinds.CLAIMS, claim, {"metadata": {"annotations": OFTEN}}, "default")
    return pod


async def _stays(node: FakeNode) -> None:
    await asyncio.sleep(3 * MINUTE)
    assert names.SELECTED_NODE in (await node.claim("app-v0")).metadata.annotations


def _went_back(node: FakeNode) -> Any:
    async def ask() -> bool:
        return names.SELECTED_NODE not in (await node.claim("app-v1")).metadata.annotations

    return ask


async def test_it_goes_back_when_another_node_has_room(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("30Gi")
    await _held(node, scratch_pod)
    await node.select("app-v0", "app-v1")
    await _stays(node)
    await _roomy(node, "node-3", "39Gi")
    await _stays(node)
    await _roomy(node, "node-2", "40Gi")
    await eventually(_went_back(node))


async def test_room_that_came_before_it_was_looked_for_is_news_too(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("30Gi", agent=False)
    await _held(node, scratch_pod)
    await node.select("app-v0", "app-v1")
    await _roomy(node, "node-2", "40Gi")
    await node.start_agent()
    await eventually(_went_back(node))
    await node.select("app-v0", "app-v1")
    await _stays(node)


async def test_a_node_that_the_scheduler_knew_of_or_where_the_pod_may_not_be_is_no_reason(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("30Gi")
    await _held(node, scratch_pod)
    cordon = {"metadata": {"name": "node-3"}, "spec": {"unschedulable": True}}
    await node.client.create(kinds.NODES, cordon)
    await _roomy(node, "node-2", "40Gi")
    await node.select("app-v0", "app-v1")
    await _roomy(node, "node-3", "40Gi")
    await _stays(node)
