"""What is published, when, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VOLUME_ACCESSIBILITY_CONSTRAINTS, VolumeCapability
from tonnage.kubernetes.api import kinds, names
from tonnage.node.capacity.publisher import INCREASE_EVERY
from tonnage.provisioning.claims.node_scope import CapacitySource
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim, MakeClass
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30


@asynccontextmanager
async def _writes(node: FakeNode) -> AsyncIterator[list[tuple[float, str | None]]]:
    """What is written about class late from now on: (seconds, capacity)."""
    seen: list[tuple[float, str | None]] = []
    loop = asyncio.get_running_loop()
    listing = await node.client.list(kinds.CAPACITIES, names.SYSTEM_NAMESPACE)

    async def watch() -> None:
        version = listing.resource_version
        async with node.client.watch(kinds.CAPACITIES, names.SYSTEM_NAMESPACE, resource_version=version) as batches:
            async for batch in batches:
                seen.extend((loop.time(), e.object.capacity) for e in batch if e.object.storage_class_name == "late")

    task = asyncio.ensure_future(watch())
    await asyncio.sleep(0.01)
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _objects(node: FakeNode) -> list[Any]:
    return (await node.client.list(kinds.CAPACITIES, names.SYSTEM_NAMESPACE)).items


async def test_an_object_says_whose_room_it_is_and_belongs_to_the_node(
    make_node: MakeNode, eventually: Eventually
) -> None:
    node = await make_node()
    await eventually(lambda: node.publishes("30716Mi", "30716Mi"))
    (obj,) = await _objects(node)
    owner = await node.client.get(kinds.NODES, "node-1")
    assert obj.metadata.name.startswith("csisc-")
    assert obj.metadata.labels == {
        names.CAPACITY_DRIVER: names.DRIVER,
        names.CAPACITY_MANAGED_BY: "tonnage-node-1",
        names.NODE_LABEL: "node-1",
        names.POOL_LABEL: "scratch",
    }
    assert [(o.kind, o.name, o.uid) for o in obj.metadata.owner_references] == [("Node", "node-1", owner.metadata.uid)]
    assert obj.node_topology.match_labels == {names.TOPOLOGY_NODE: "node-1"}


async def test_a_long_node_name_fits_into_labels(make_node: MakeNode, eventually: Eventually) -> None:
    name = "a" * 60 + ".b" * 40
    node = await make_node(name=name)
    await eventually(lambda: node.publishes("30716Mi", "30716Mi"))
    (obj,) = await _objects(node)
    assert max(len(value) for value in obj.metadata.labels.values()) <= 63
    assert obj.node_topology.match_labels == {names.TOPOLOGY_NODE: names.label_value(name)}


async def test_classes_come_change_and_go(make_node: MakeNode, make_class: MakeClass, eventually: Eventually) -> None:
    node = await make_node()
    await make_class("now", mode=names.IMMEDIATE)
    await make_class("theirs", provisioner="other.example.com")
    await make_class("wrong", parameters={"pool": "nowhere"})
    await make_class(
        "far", allowedTopologies=[{"matchLabelExpressions": [{"key": names.TOPOLOGY_NODE, "values": ["node-9"]}]}]
    )
    await eventually(lambda: node.publishes("30716Mi", "30716Mi", "now"))
    await eventually(lambda: node.publishes("0", "0", "wrong"))
    assert {o.storage_class_name for o in await _objects(node)} == {"late", "now", "wrong"}
    await node.client.delete(kinds.STORAGE_CLASSES, "now")

    async def without() -> bool:
        return {o.storage_class_name for o in await _objects(node)} == {"late", "wrong"}

    await eventually(without)


async def test_it_drops_within_a_tenth_of_a_second_and_tells_up_to_where_it_counts(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("100Gi")
    await eventually(lambda: node.publishes("100Gi", "100Gi"))
    for n in range(50):
        await make_claim(f"c{n}", "1Gi", storageClassName="late")
    async with _writes(node) as seen:
        begin = asyncio.get_running_loop().time()
        for n in range(50):
            await node.select(f"c{n}")
        version = int((await node.claim("c49")).metadata.resource_version)
        await eventually(lambda: node.publishes("50Gi", "50Gi"))
        await asyncio.sleep(3.0)
    assert seen[-1][0] - begin < 0.25
    assert 1 <= len(seen) <= 4, f"50 claims, but few writes: {seen}"
    (obj,) = await _objects(node)
    assert int(obj.metadata.annotations[names.OBSERVED_CLAIM_VERSION]) >= version


async def test_it_rises_at_most_four_times_a_second(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("100Gi")
    for n in range(20):
        await make_claim(f"c{n}", "1Gi", storageClassName="late")
    await node.select(*(f"c{n}" for n in range(20)))
    await eventually(lambda: node.publishes("80Gi", "80Gi"))
    for n in range(20):
        await eventually(lambda n=n: node.is_bound(f"c{n}"))
    await asyncio.sleep(2.0)
    async with _writes(node) as seen:
        for n in range(20):
            await node.release(f"c{n}")
            await asyncio.sleep(0.1)
        await eventually(lambda: node.publishes("100Gi", "100Gi"))
    times = [at for at, _ in seen]
    assert all(later - earlier >= INCREASE_EVERY - 0.001 for earlier, later in pairwise(times)), times
    assert 2 <= len(times) <= 2 / INCREASE_EVERY + 2


async def test_nothing_is_written_when_nothing_changed(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("100Gi", poll=1.0)
    await eventually(lambda: node.publishes("100Gi", "100Gi"))
    async with _writes(node) as seen:
        await asyncio.sleep(30.0)
        node.agents[0].capacity_changed()
        await asyncio.sleep(5.0)
    assert seen == []


async def test_what_others_take_is_seen_by_polling_or_by_being_told(
    make_node: MakeNode, eventually: Eventually
) -> None:
    node = await make_node("10Gi", poll=60.0)
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    async with CsiClient(node.driver.endpoints[0]) as stranger:
        await stranger.create_volume("one", 2 * GIB, [VolumeCapability()])
        await asyncio.sleep(61.0)
        await eventually(lambda: node.publishes("8Gi", "8Gi"))
        await stranger.create_volume("two", 2 * GIB, [VolumeCapability()])
        node.agents[0].capacity_changed()
        await eventually(lambda: node.publishes("6Gi", "6Gi"))


async def test_the_count_is_told_even_if_the_number_stays(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    """Else the scheduler would hold its own count of that claim for ever."""
    node = await make_node("10Gi")
    await make_claim("old", "4Gi", storageClassName="late")
    await node.select("old")
    await eventually(lambda: node.is_bound("old"))
    await eventually(lambda: node.publishes("6Gi", "6Gi"))
    agent = node.agents[0]
    source = CapacitySource(names.DRIVER, "late", "pool/scratch")
    await asyncio.sleep(2.0)
    agent.ledger.read(source, agent.ledger.begin(), 10 * GIB, 10 * GIB)  # room comes up at the moment ...
    await make_claim("new", "4Gi", storageClassName="late")
    await node.select("new")  # ... in which it is promised
    version = int((await node.claim("new")).metadata.resource_version)

    async def counted() -> bool:
        (obj,) = await _objects(node)
        return int(obj.metadata.annotations[names.OBSERVED_CLAIM_VERSION]) >= version

    await eventually(counted)


async def test_objects_that_are_obsolete_or_doubled_go_and_others_stay(
    make_node: MakeNode, eventually: Eventually
) -> None:
    node = await make_node(agent=False)

    async def make(name: str, storage_class: str, labels: dict[str, str]) -> None:
        body = {"metadata": {"name": name, "labels": labels}, "storageClassName": storage_class}
        await node.client.create(kinds.CAPACITIES, {**body, "nodeTopology": {}}, names.SYSTEM_NAMESPACE)

    ours = {names.CAPACITY_DRIVER: names.DRIVER, names.CAPACITY_MANAGED_BY: "tonnage-node-1"}
    await make("double", "late", ours)
    await make("obsolete", "gone", ours)
    await make("old-driver", "late", {**ours, names.CAPACITY_DRIVER: "gone.example.com"})
    await make("foreign", "late", {**ours, names.CAPACITY_MANAGED_BY: "tonnage-node-2"})
    await node.start_agent()

    async def tidy() -> bool:
        found = {o.metadata.name for o in await _objects(node)}
        return len(found) == 2 and "foreign" in found

    await eventually(tidy)


async def test_an_object_that_somebody_removes_or_changes_is_put_right(
    make_node: MakeNode, eventually: Eventually
) -> None:
    node = await make_node()
    await eventually(lambda: node.publishes("30716Mi", "30716Mi"))
    (obj,) = await _objects(node)
    await node.client.delete(kinds.CAPACITIES, obj.metadata.name, names.SYSTEM_NAMESPACE)
    await eventually(lambda: node.publishes("30716Mi", "30716Mi"))
    await node.client.patch(kinds.CAPACITIES, obj.metadata.name, {"capacity": "1Ti"}, names.SYSTEM_NAMESPACE)
    await eventually(lambda: node.publishes("30716Mi", "30716Mi"))


async def test_after_a_restart_nothing_is_published_before_all_promises_are_known(
    make_node: MakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi", binding="controller")
    secret = {f"{names.CSI_PREFIX}provisioner-secret-{part}": "not-there" for part in ("name", "namespace")}
    await make_class("keyed", parameters=secret)
    await make_claim("data", "4Gi", storageClassName="late")
    await make_claim("wrong", "3Gi", storageClassName="keyed")
    await node.select("data", "wrong")
    await eventually(lambda: node.publishes("3Gi", "3Gi"))
    await node.kill_agent()
    async with _writes(node) as seen:
        await node.start_agent()
        await asyncio.sleep(5.0)
    assert await node.publishes("3Gi", "3Gi")
    assert {capacity for _, capacity in seen} <= {"3Gi"}


async def test_drivers_that_share_a_pool_share_its_room(
    make_node: MakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi", drivers=(names.DRIVER, "other.example.com"))
    await make_class("other", provisioner="other.example.com")
    await eventually(lambda: node.publishes("10Gi", "10Gi", "other"))
    await make_claim("data", "4Gi", storageClassName="late")
    await node.select("data")
    await eventually(lambda: node.publishes("6Gi", "6Gi", "other"))
    await eventually(lambda: node.publishes("6Gi", "6Gi"))


async def test_what_somebody_did_to_an_object_is_said_once_and_nothing_is_said_of_our_own_writes(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node("10Gi")
    for n in range(5):
        await make_claim(f"c{n}", "1Gi", storageClassName="late")
        await node.select(f"c{n}")
    await eventually(lambda: node.publishes("5Gi", "5Gi"))
    await node.kill_agent()
    await node.start_agent()  # which finds all as it should be
    await asyncio.sleep(2.0)
    (good,) = await _objects(node)
    name = good.metadata.name
    owner = {"apiVersion": "v1", "kind": "Node", "name": "other", "uid": "u-9"}

    async def told() -> list[str]:
        return [text for _, reason, text in await all_events() if reason == "CapacityTampered"]

    async def is_good() -> bool:
        (now,) = await _objects(node)
        same = (now.capacity, now.metadata.owner_references) == (good.capacity, good.metadata.owner_references)
        return same and good.metadata.labels.items() <= now.metadata.labels.items()

    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"capacity": "9Ti"}, "capacity 9Ti, was 5Gi"),
        ({"capacity": "1Gi", "maximumVolumeSize": "1Gi"}, "capacity 1Gi, was 5Gi"),
        ({"metadata": {"ownerReferences": [owner]}}, "(owner)"),
        ({"metadata": {"labels": {names.NODE_LABEL: "other"}}}, "(labels)"),
    )
    for count, (change, word) in enumerate(changes, 1):
        await node.client.patch(kinds.CAPACITIES, name, change, names.SYSTEM_NAMESPACE)

        async def said(count: int = count) -> bool:
            return len(await told()) == count

        await eventually(said)
        await eventually(is_good)
        assert [text for text in await told() if word in text]
    await node.client.patch(
        kinds.CAPACITIES, name, {"metadata": {"labels": {"people/own": "x"}}}, names.SYSTEM_NAMESPACE
    )
    await make_claim("last", "1Gi", storageClassName="late")
    await node.select("last")
    await eventually(lambda: node.publishes("4Gi", "4Gi"))
    await asyncio.sleep(5.0)
    assert len(await told()) == 4
    (now,) = await _objects(node)
    assert now.metadata.labels["people/own"] == "x"


async def test_it_is_known_when_all_is_published(
    make_node: MakeNode, make_class: MakeClass, eventually: Eventually
) -> None:
    node = await make_node("10Gi", agent=False)
    await make_class("again")
    agent = await node.start_agent()
    assert not agent.capacity.is_published

    async def is_published() -> bool:
        return bool(agent.capacity.is_published)

    await eventually(is_published)
    assert await node.publishes("10Gi", "10Gi")
    assert await node.publishes("10Gi", "10Gi", "again")


async def test_what_all_nodes_share_is_published_by_no_node(make_node: MakeNode, eventually: Eventually) -> None:
    node = await make_node()
    await eventually(lambda: node.publishes("30716Mi", "30716Mi"))
    (agent,) = node.agents
    (driver,) = agent.drivers
    shared = replace(driver, plugin=driver.plugin - {VOLUME_ACCESSIBILITY_CONSTRAINTS}, segment={})
    agent.drivers.add(shared)
    agent.capacity.wake()

    async def none() -> bool:
        return await _objects(node) == []

    await eventually(none)
    assert agent.capacity.is_published, "the agent waits for nothing"
