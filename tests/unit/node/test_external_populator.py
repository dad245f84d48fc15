"""Claims that a volume populator fills: the agent says so once, and leaves them and their siblings alone."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.kubernetes.api import kinds, names
from tonnage.node.provisioner.rejection import AGAIN
from tonnage.provisioning.claims.data_source import POPULATED
from tonnage_box.testing.node import MakeNode
from tonnage_box.testing.objects import MakeClaim, MakePod
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
SOURCE = {"dataSourceRef": {"apiGroup": "hello.example.com", "kind": "Hello", "name": "h"}}


async def test_it_is_said_once_and_nothing_else_is_done(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node("10Gi")
    await make_claim("data", "4Gi", storageClassName="late", **SOURCE)
    await node.select("data")
    version = (await node.claim("data")).metadata.resource_version

    assert await eventually(all_events) == [("data", "Provisioning", POPULATED)]
    await node.client.patch(kinds.CLAIMS, "data", {"metadata": {"annotations": {"a": "b"}}}, "default")
    await asyncio.sleep(AGAIN * 2)
    await node.kill_agent()
    await node.start_agent()
    await asyncio.sleep(AGAIN)
    (event,) = (await node.client.list(kinds.EVENTS)).items
    assert (event.type, event.reason, event.message, event.count) == ("Normal", "Provisioning", POPULATED, 1)
    assert await node.volumes() == []
    assert await node.publishes("10Gi", "10Gi")
    claim = await node.claim("data")
    assert (claim.metadata.annotations[names.SELECTED_NODE], claim.spec.volume_name) == ("node-1", "")
    assert int(claim.metadata.resource_version) > int(version), "the test's own patch, and no other write"


@pytest.mark.parametrize("first", ["app-data", "app-filled"])
async def test_siblings_do_not_wait_for_it(
    make_node: MakeNode,
    make_pod: MakePod,
    make_claim: MakeClaim,
    eventually: Eventually,
    all_events: AllEvents,
    first: str,
) -> None:
    """20Gi are asked of it, which this node does not have: that is not this claim's business."""
    node = await make_node("10Gi")
    template = {"storageClassName": "late"}
    pod = await make_pod("app", ephemeral={"data": template, "filled": {**template, **SOURCE}})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "app", "uid": pod.metadata.uid, "controller": True}
    await make_claim("app-data", "2Gi", owners=[owner], **template)
    await make_claim("app-filled", "20Gi", owners=[owner], **template, **SOURCE)
    other = {"app-data": "app-filled", "app-filled": "app-data"}[first]
    began = asyncio.get_running_loop().time()
    await node.select(first)
    if first == "app-filled":
        await node.select(other)
    await eventually(lambda: node.is_bound("app-data"))
    assert asyncio.get_running_loop().time() - began < 1, "virtual seconds: no wait for a sibling"
    await node.select(other)
    await asyncio.sleep(AGAIN)
    assert await all_events() == [("app-filled", "Provisioning", POPULATED)]
    assert names.SELECTED_NODE in (await node.claim("app-filled")).metadata.annotations
    assert await node.publishes("8Gi", "8Gi")


async def test_the_populators_own_claim_is_a_claim_like_any_other(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    """What lib-volume-populator does: a claim without source on the same node, whose volume it hands over."""
    node = await make_node("10Gi")
    target = await make_claim("data", "4Gi", storageClassName="late", **SOURCE)
    await node.select("data")
    prime = f"prime-{target.metadata.uid}"
    await make_claim(prime, "4Gi", storageClassName="late")
    await node.select(prime)
    await eventually(lambda: node.is_bound(prime))
    await eventually(lambda: node.publishes("6Gi", "6Gi"))
    volume = (await node.claim(prime)).spec.volume_name
    ref = {"namespace": "default", "name": "data", "uid": target.metadata.uid, "resourceVersion": None}
    await node.client.patch(kinds.VOLUMES, volume, {"spec": {"claimRef": ref}})
    await node.remove_claim(prime)
    await asyncio.sleep(AGAIN)
    assert len(await node.volumes()) == 1, "the volume is the target's now"
    reference = (await node.client.get(kinds.VOLUMES, volume)).spec.claim_ref
    assert reference is not None
    assert reference.name == "data"
