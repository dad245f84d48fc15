"""Nothing leaks, and nothing is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs
from tests.hanging import HangingPool
from tests.unit.node.agents import AllEvents

from tonnage.base.errors import UnavailableError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import ContentSource, VolumeCapability
from tonnage.kubernetes.api import kinds, names
from tonnage.node.orphans import AGE
from tonnage.storage.pools.base.record import STAGED
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim, MakePod, MakeVolume
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30
_PLAIN: dict[str, Any] = {names.PARAM_EPHEMERAL: "false"}
_KEPT: dict[str, Any] = {**_PLAIN, names.PARAM_RECLAIM: "Retain"}


async def _left_behind(
    node: FakeNode, uid: str = "u-1", *, claim: str = "gone", cluster: str = "cluster-1", size: int = GIB, **record: Any
) -> str:
    """A volume as a crash leaves it: made, with its record, but without a PersistentVolume."""
    parameters = {
        names.CSI_PVC_NAME: claim,
        names.CSI_PVC_NAMESPACE: "default",
        names.CSI_PV_NAME: names.volume_name(uid),
        names.PARAM_CLUSTER: cluster,
        names.PARAM_EPHEMERAL: "true",
        names.PARAM_RECLAIM: "Delete",
        **record,
    }
    async with CsiClient(node.driver.endpoints[0]) as agent:
        await agent.create_volume(names.volume_name(uid), size, [VolumeCapability()], parameters=parameters)
    return names.volume_name(uid)


async def _sweep(node: FakeNode) -> Any:
    agent = node.agents[-1]
    driver = agent.drivers.get(names.DRIVER)
    assert driver is not None
    return await agent.sweep.sweep(driver)


async def _grown_up(node: FakeNode, eventually: Eventually) -> None:
    async def attached() -> bool:
        return node.agents[-1].drivers.complete

    await eventually(attached)
    await asyncio.sleep(61.0)


async def test_what_no_pod_ever_had_is_removed_at_the_first_look_after_a_minute(
    make_node: MakeNode, eventually: Eventually
) -> None:
    node = await make_node("10Gi", agent=False)
    await _left_behind(node)
    await node.start_agent()
    await eventually(lambda: node.publishes("9Gi", "9Gi"))
    assert len(await node.volumes()) == 1
    await asyncio.sleep(70.0)
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    assert await node.volumes() == []


@pytest.mark.parametrize(
    ("record", "is_used"),
    [
        ({}, True),
        *((record, False) for record in (_PLAIN, {names.PARAM_RECLAIM: "Retain"})),
        *((record, False) for record in ({names.CSI_PV_NAME: "by-hand"}, {"cluster": ""})),
    ],
)
async def test_what_may_hold_data_is_an_orphan_kept_and_told_once(
    make_node: MakeNode, eventually: Eventually, all_events: AllEvents, record: dict[str, Any], *, is_used: bool
) -> None:
    node = await make_node("10Gi")
    name = await _left_behind(node, **record)
    if is_used:
        await node.use(name)
    await _grown_up(node, eventually)
    for _ in range(2):
        found = await _sweep(node)
        assert (found.removed, [o.id for o in found.orphans]) == ([], [f"scratch/{name}"])
    assert node.agents[0].sweep.orphans == found.orphans

    async def told() -> Any:
        return [(about, text) for about, reason, text in await all_events() if reason == "OrphanedVolumes"]

    ((about, text),) = await eventually(told)
    assert about == "node-1"
    assert f"scratch/{name}" in text


async def test_volumes_of_another_cluster_are_not_ours_to_judge(make_node: MakeNode, eventually: Eventually) -> None:
    node = await make_node("10Gi")
    await _left_behind(node, cluster="cluster-2")
    await _grown_up(node, eventually)
    found = await _sweep(node)
    assert (found.removed, found.orphans, found.again) == ([], [], False)


async def test_young_volumes_are_looked_at_later(make_node: MakeNode, eventually: Eventually) -> None:
    node = await make_node("10Gi", agent=False)
    await node.start_agent()
    await _grown_up(node, eventually)
    await _left_behind(node)
    found = await _sweep(node)
    assert (found.removed, found.orphans, found.again) == ([], [], True)


async def test_a_volume_whose_claim_still_waits_is_kept_here_and_removed_elsewhere(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    for name in ("elsewhere", "unsent"):
        claim = await make_claim(name, storageClassName="late")
        await _left_behind(node, claim.metadata.uid, claim=name, **_KEPT)
    await node.select("elsewhere", node="node-2")
    await make_claim("mine", storageClassName="late")
    await node.select("mine")
    await eventually(lambda: node.is_bound("mine"))
    await _grown_up(node, eventually)
    await _sweep(node)
    assert await node.volumes() == [(await node.claim("mine")).spec.volume_name]


@pytest.mark.parametrize("is_used", [True, False])
async def test_a_volume_that_was_made_too_late_for_a_claim_is_removed(
    make_node: MakeNode, make_claim: MakeClaim, make_volume: MakeVolume, eventually: Eventually, *, is_used: bool
) -> None:
    """The claim was bound on another node meanwhile; the driver was killed before it deleted what it had made."""
    node = await make_node("10Gi")
    there = {"matchExpressions": [{"key": names.TOPOLOGY_NODE, "operator": "In", "values": ["node-2"]}]}
    await make_volume("elsewhere", nodeAffinity={"required": {"nodeSelectorTerms": [there]}})
    claim = await make_claim("data", storageClassName="late", volumeName="elsewhere")
    name = await _left_behind(node, claim.metadata.uid, claim="data", **_PLAIN)
    if is_used:
        await node.use(name)
    await _grown_up(node, eventually)
    found = await _sweep(node)
    assert [orphan.id for orphan in found.orphans] == ([f"scratch/{name}"] if is_used else [])
    assert await node.volumes() == ([name] if is_used else [])


@pytest.mark.parametrize("node", ["node-2", ""])
@pytest.mark.parametrize("kept", ["used", "restored"])
async def test_a_volume_that_a_pod_had_stays_although_its_claim_waits_elsewhere(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, node: str, kept: str
) -> None:
    """As after the restore of a backup that is older than the binding."""
    here = await make_node("10Gi")
    claim = await make_claim("data", storageClassName="late")
    record = {**_KEPT, **({names.UNDELETE: "3600"} if kept == "restored" else {})}
    name = await _left_behind(here, claim.metadata.uid, claim="data", **record)
    if kept == "used":
        await here.use(name)
    else:
        await here.pool.trash.discard(name)
        await here.pool.trash.restore(name)
    if node:
        await here.select("data", node=node)
    await _grown_up(here, eventually)
    found = await _sweep(here)
    assert (found.removed, found.orphans) == ([], [])
    await here.select("data")
    await eventually(lambda: here.is_bound("data"))
    assert await here.volumes() == [name], "the claim gets it when it comes back"


async def test_a_copy_stays_although_no_pod_had_it(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    claim = await make_claim("data", storageClassName="late")
    await make_claim("mine", storageClassName="late")
    await node.select("mine")
    await eventually(lambda: node.is_bound("mine"))
    source = (await node.claim("mine")).spec.volume_name
    copy = names.volume_name(claim.metadata.uid)
    parameters = {**_KEPT, names.CSI_PVC_NAME: "data", names.CSI_PVC_NAMESPACE: "default"}
    parameters |= {names.CSI_PV_NAME: copy, names.PARAM_CLUSTER: "cluster-1"}
    async with CsiClient(node.driver.endpoints[0]) as agent:
        content = ContentSource(volume_id=f"scratch/{source}")
        await agent.create_volume(copy, 5 * GIB, [VolumeCapability()], parameters=parameters, source=content)
    await _grown_up(node, eventually)
    found = await _sweep(node)
    assert (found.removed, found.orphans) == ([], [])
    assert copy in await node.volumes()


async def test_a_volume_of_an_earlier_version_stays(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    claim = await make_claim("data", storageClassName="late")
    name = await _left_behind(node, claim.metadata.uid, claim="data", **_KEPT)
    record = node.pool.backend.records.volumes[name]
    owner = {key: value for key, value in record.owner.items() if key != STAGED}
    node.pool.backend.write(structs.replace(record, owner=owner))
    await _grown_up(node, eventually)
    assert (await _sweep(node)).removed == []
    assert await node.volumes() == [name]


async def test_a_volume_whose_pv_was_removed_by_force_is_an_orphan(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await scratch_pod("app", "1Gi")
    await node.select("app-v0")
    await eventually(lambda: node.is_bound("app-v0"))
    name = (await node.claim("app-v0")).spec.volume_name
    await _grown_up(node, eventually)
    assert (await _sweep(node)).orphans == []
    await node.client.delete(kinds.VOLUMES, name)
    await node.client.patch(kinds.VOLUMES, name, {"metadata": {"finalizers": None}})

    async def seen() -> bool:
        return [o.id for o in node.agents[0].sweep.orphans] == [f"scratch/{name}"]

    await eventually(seen)
    assert await node.volumes() == [name]


async def test_a_volume_that_is_made_when_its_claim_is_gone_is_deleted(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    """CreateVolume hangs until then."""
    pool = HangingPool("scratch", 10 * GIB)
    node = await make_node(pool=pool)
    await make_claim("data", "8Gi", storageClassName="late")
    pool.goes.clear()
    await node.select("data")

    async def has_left() -> bool:
        return names.SELECTED_NODE not in (await node.claim("data")).metadata.annotations

    await eventually(has_left)
    await node.remove_claim("data")
    pool.goes.set()
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    assert await node.volumes() == []


async def test_a_large_volume_that_no_pod_had_stops_no_sweep(make_node: MakeNode, eventually: Eventually) -> None:
    node = await make_node("10Gi")
    await _left_behind(node, size=8 * GIB)
    await _grown_up(node, eventually)
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    assert await node.volumes() == []


async def test_a_volume_that_cannot_be_deleted_now_stops_no_other(
    make_node: MakeNode, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await make_node("10Gi")
    first, _ = [await _left_behind(node, uid) for uid in ("u-1", "u-2")]
    delete_unused = node.pool.delete_unused
    hangs = [first]

    async def delete(name: str, **how: Any) -> str:
        if name in hangs:
            raise UnavailableError("its disk does not answer")
        return await delete_unused(name, **how)

    monkeypatch.setattr(node.pool, "delete_unused", delete)

    still: list[str]
    for still in ([first], []):  # by the agent's own sweep, as no interval is configured
        hangs[:] = still
        await asyncio.sleep(2 * AGE)
        assert await node.volumes() == still


async def test_a_sweep_of_many_stops_and_asks(
    make_node: MakeNode, eventually: Eventually, all_events: AllEvents
) -> None:
    node, count = await make_node("10Gi"), 11
    for n in range(count):
        await _left_behind(node, f"u-{n}", size=GIB // 64)
    await _grown_up(node, eventually)
    found = await _sweep(node)
    assert (len(found.asked), found.removed) == (count, [])
    assert len(await node.volumes()) == count

    async def told() -> Any:
        return [text for _, reason, text in await all_events() if reason == "SweepStopped"]

    assert (await eventually(told))[0].startswith(f"{count} volumes of driver csi.tonnage.dev have no PersistentVolume")


async def test_a_claim_that_comes_here_at_that_moment_wins(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    claim = await make_claim("data", storageClassName="late")
    uid = claim.metadata.uid
    await _left_behind(node, uid, claim="data")
    await _grown_up(node, eventually)
    provisioner = node.agents[0].provisioner
    assert provisioner.block(uid)
    await node.select("data")
    await asyncio.sleep(1.0)
    assert await node.phase("data") == "Pending", "nothing is made while it is being removed"
    assert not provisioner.block(uid), "and nothing is removed that is being made"
    provisioner.unblock(uid)
    await eventually(lambda: node.is_bound("data"))


async def _flexvolume(node: FakeNode, uid: str, **record: str) -> str:
    """A volume as the mount of a PersistentVolume with flexVolume makes it."""
    parameters = {names.PARAM_CLUSTER: "cluster-1", **record}
    async with CsiClient(node.driver.endpoints[0]) as agent:
        made = await agent.create_volume(names.flex_volume(uid), GIB, [VolumeCapability()], parameters=parameters)
    return made.id


async def test_a_flexvolume_without_its_persistent_volume_is_an_orphan(
    make_node: MakeNode, eventually: Eventually
) -> None:
    node = await make_node("20Gi", agent=False)
    flex = {"driver": "tonnage.dev/local"}
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "flexVolume": flex}
    old = await node.client.create(kinds.VOLUMES, {"metadata": {"name": "old"}, "spec": spec})
    there, gone = await _flexvolume(node, old.metadata.uid), await _flexvolume(node, "gone")
    foreign = await _flexvolume(node, "foreign", **{names.PARAM_CLUSTER: "cluster-2"})
    await node.start_agent()
    await eventually(lambda: node.publishes("17Gi", "17Gi"))
    await asyncio.sleep(70.0)

    async def is_reported() -> bool:
        return [orphan.id for orphan in node.agents[-1].sweep.orphans] == [gone]

    await eventually(is_reported)
    assert set(await node.volumes()) == {one.partition("/")[2] for one in (there, gone, foreign)}
