"""Claims restored from a snapshot: made where it lies, awaited, sent back from elsewhere, and rejected by name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents
from tests.unit.node.snapshotworld import Counting, SnapshotWorld

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.snapshot import content_name
from tonnage.kubernetes.client.client import Client
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.testing import apiserver
from tonnage_box.testing.node import MakeNode
from tonnage_box.testing.objects import MakeClaim, MakeClass
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
HOUR = 3600.0


def restored(snapshot: str = "monday", **spec: Any) -> dict[str, Any]:
    """The spec of a claim that is restored from a snapshot."""
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot}
    return {"storageClassName": "late", "dataSource": source, **spec}


@pytest.fixture
def world(kube: Client, make_claim: MakeClaim) -> SnapshotWorld:
    """Contents by hand."""
    return SnapshotWorld(kube, make_claim)


def told(all_events: AllEvents, reason: str) -> Any:
    async def ask() -> list[str]:
        return [text for _, why, text in await all_events() if why == reason]

    return ask


async def test_a_restored_claim_costs_no_more_writes_than_a_plain_one(
    api_server: ApiServer, make_node: MakeNode, world: SnapshotWorld, make_claim: MakeClaim, eventually: Eventually
) -> None:
    counting = Counting(api_server.transport(apiserver.ADMINISTRATOR))
    node = await make_node(agent=False)
    node.client = Client(counting)
    await node.start_agent()
    content = await world.take(node, "monday")
    written = {}
    for name, spec in (("plain", {"storageClassName": "late"}), ("restored", restored())):
        await make_claim(name, "4Gi", **spec)
        await asyncio.sleep(5)
        counting.writes.clear()
        await node.select(name)
        await eventually(lambda name=name: node.is_bound(name))
        await asyncio.sleep(5)
        written[name] = len(counting.writes)
    assert written["restored"] == written["plain"]
    volume = await node.pool.get((await node.claim("restored")).spec.volume_name)
    assert volume.source is not None
    assert volume.source.snapshot == content.status.snapshot_handle.partition("/")[2]
    snapshot = await world.kube.get(kinds.SNAPSHOTS, "monday", "default")
    ours = [name for name in snapshot.metadata.finalizers if name.startswith("provisioner.")]
    assert ours == [], "the lock of the pool is enough"


async def test_a_claim_may_be_larger_than_its_snapshot(
    make_node: MakeNode, world: SnapshotWorld, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node()
    await world.take(node, "monday")
    await make_claim("restored", "6Gi", **restored())
    await node.select("restored")
    await eventually(lambda: node.is_bound("restored"))
    claim = await node.claim("restored")
    assert claim.status.capacity == {"storage": "6Gi"}
    assert (await node.pool.get(claim.spec.volume_name)).size == 6 << 30


async def test_a_snapshot_outlives_its_volume_and_is_restored(
    make_node: MakeNode, world: SnapshotWorld, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node()
    await world.take(node, "monday")
    name = (await node.release("data")).metadata.name

    async def no_volumes() -> bool:
        return await node.volumes() == []

    await eventually(no_volumes)
    await world.kube.patch(kinds.VOLUMES, name, {"metadata": {"finalizers": None}})
    await make_claim("restored", "4Gi", **restored())
    await node.select("restored")
    await eventually(lambda: node.is_bound("restored"))


async def test_a_claim_waits_here_for_a_snapshot_that_is_made_here(
    make_node: MakeNode, world: SnapshotWorld, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node()
    source = await world.bound(node)
    await make_claim("restored", "4Gi", **restored())
    await node.select("restored")
    (text,) = await eventually(told(all_events, "ProvisioningFailed"))
    assert text.endswith("cannot restore: snapshot monday does not exist")
    snapshot = await world.snapshot("monday")
    await world.ready(await world.content(snapshot, volume=source))
    await asyncio.sleep(HOUR)
    assert any(t.endswith("snapshot monday is not ready yet") for t in await told(all_events, "ProvisioningFailed")())
    assert (await node.claim("restored")).metadata.annotations[names.SELECTED_NODE] == "node-1"
    status = {"boundVolumeSnapshotContentName": content_name(snapshot.metadata.uid), "readyToUse": True}
    await world.kube.patch(kinds.SNAPSHOTS, "monday", {"status": status}, "default", subresource="status")
    await eventually(lambda: node.is_bound("restored"))


async def test_a_class_that_goes_while_a_claim_waits_is_awaited(
    make_node: MakeNode, make_class: MakeClass, world: SnapshotWorld, make_claim: MakeClaim, eventually: Eventually,
    all_events: AllEvents,
) -> None:  # fmt: skip
    """Nothing is made without it, and its return is enough."""
    node = await make_node()
    source = await world.bound(node)
    await make_class("passing")
    await make_claim("restored", "4Gi", **restored(storageClassName="passing"))
    await node.select("restored")
    await eventually(told(all_events, "ProvisioningFailed"))
    await world.kube.delete(kinds.STORAGE_CLASSES, "passing")
    snapshot = await world.snapshot("monday")
    await world.ready(await world.content(snapshot, volume=source))
    status = {"boundVolumeSnapshotContentName": content_name(snapshot.metadata.uid), "readyToUse": True}
    await world.kube.patch(kinds.SNAPSHOTS, "monday", {"status": status}, "default", subresource="status")
    await asyncio.sleep(HOUR)
    assert (await node.claim("restored")).status.phase == "Pending"
    assert len(await node.volumes()) == len(await node.pool.list()) == 1
    await make_class("passing")
    await eventually(lambda: node.is_bound("restored"))


async def test_a_claim_that_was_sent_elsewhere_goes_to_the_snapshot(
    make_node: MakeNode, world: SnapshotWorld, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node()
    other = await make_node(name="node-2")
    await world.take(node, "monday")
    await make_claim("restored", "4Gi", **restored())
    await other.select("restored")
    (text,) = await eventually(told(all_events, "Rescheduled"))
    assert text == "claim restored restores snapshot monday, which lies on node node-1"
    assert await other.volumes() == []
    await node.select("restored")
    await eventually(lambda: node.is_bound("restored"))


async def test_a_snapshot_of_a_node_that_is_gone_is_told_and_sends_no_claim_around(
    make_node: MakeNode, world: SnapshotWorld, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node()
    other = await make_node(name="node-2")
    await world.take(node, "monday")
    await node.kill_agent()
    await world.kube.delete(kinds.NODES, "node-1")
    await make_claim("restored", "4Gi", **restored())
    await other.select("restored")
    (text,) = await eventually(told(all_events, "ProvisioningFailed"))
    assert text.endswith("snapshot default/monday lies on node node-1, which is gone")
    await asyncio.sleep(HOUR)
    assert await told(all_events, "Rescheduled")() == []
    assert (await other.claim("restored")).metadata.annotations[names.SELECTED_NODE] == "node-2"
    await world.kube.create(kinds.NODES, {"metadata": {"name": "node-1"}})
    await eventually(told(all_events, "Rescheduled"))


@pytest.mark.parametrize(
    ("size", "spec", "why"),
    [
        ("3Gi", {}, "requested volume size 3Gi is less than the size 4Gi for the source snapshot monday"),
        ("4Gi", {"volumeMode": "Block"}, "modifies the mode of the source volume"),
        ("4Gi", {"storageClassName": "xfs"}, "ext4"),
    ],
)
async def test_what_no_restore_can_be_is_rejected(
    make_node: MakeNode,
    make_class: MakeClass,
    world: SnapshotWorld,
    make_claim: MakeClaim,
    eventually: Eventually,
    all_events: AllEvents,
    size: str,
    spec: dict[str, Any],
    why: str,
) -> None:
    node = await make_node()
    await make_class("xfs", parameters={names.CSI_FSTYPE: "xfs"})
    await world.take(node, "monday")
    await make_claim("restored", size, **restored(**spec))
    await node.select("restored")

    async def is_told() -> bool:
        return any(why in text for text in await told(all_events, "ProvisioningFailed")())

    await eventually(is_told)
    assert (await node.claim("restored")).status.phase == "Pending"
    assert len(await node.volumes()) == 1


async def test_a_restore_and_the_deletion_of_its_snapshot_do_not_race(
    make_node: MakeNode, world: SnapshotWorld, make_claim: MakeClaim, eventually: Eventually
) -> None:
    """Whichever is first: the volume has all of the content, or is not made; never half of it."""
    node = await make_node("200Gi")
    for number in range(10):
        name = f"s{number}"
        content = await world.take(node, name)
        await make_claim(f"c{number}", "4Gi", **restored(name))
        await asyncio.gather(node.select(f"c{number}"), _delete_after(world, name, number * 0.0005))

        async def is_over(content: str = content.metadata.name) -> bool:
            return await world.is_gone(content)

        await eventually(is_over)
        await asyncio.sleep(30)
        claim = await node.claim(f"c{number}")
        assert await node.pool.snapshots.list() == []
        if claim.spec.volume_name:
            volume = await node.pool.get(claim.spec.volume_name)
            assert (volume.source.snapshot if volume.source else "", volume.size) != ("", 0)
        else:
            assert len(await node.volumes()) == 1 + sum(
                [bool((await node.claim(f"c{n}")).spec.volume_name) for n in range(number)]
            )


async def _delete_after(world: SnapshotWorld, name: str, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await world.delete(name)


async def test_a_deleted_snapshot_still_serves_the_claim_that_waits_for_it(
    make_node: MakeNode, world: SnapshotWorld, make_claim: MakeClaim, eventually: Eventually
) -> None:
    """The snapshot controller keeps its content for the claim; the agent must not wait for the snapshot to go."""
    node = await make_node()
    await world.take(node, "monday")
    await make_claim("restored", "4Gi", **restored())
    await world.kube.delete(kinds.SNAPSHOTS, "monday", "default")
    await node.select("restored")
    await eventually(lambda: node.is_bound("restored"))
