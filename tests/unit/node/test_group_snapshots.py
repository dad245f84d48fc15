"""Groups of snapshots of one node: whose content it is, what is made, reported and deleted, and what never is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents
from tests.unit.node.groupworld import GroupNodeWorld
from tests.unit.node.snapshotworld import Counting

from tonnage.csi.client.client import CsiClient
from tonnage.csi.driver.group_members import member_name
from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.group_snapshot import GROUP_CONTENT_BOUND, group_name
from tonnage.kubernetes.api.snapshot import MANAGED_BY
from tonnage.kubernetes.client.client import Client
from tonnage.storage.pools.base.contract import Snapshot
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.testing import apiserver
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30
HOUR = 3600.0


@pytest.fixture
def world(kube: Client, make_claim: MakeClaim) -> GroupNodeWorld:
    """Contents by hand."""
    return GroupNodeWorld(kube, make_claim)


class _Asked(FakePool):
    """Counts the calls about snapshots."""

    made = deleted = 0

    def __init__(self, name: str, size: int, **more: Any) -> None:
        super().__init__(name, size, **more)
        create, delete = self.snapshots.create, self.snapshots.delete

        async def created(name: str, volume: str, **more: Any) -> Snapshot:
            self.made += 1
            return await create(name, volume, **more)

        async def deleted(name: str) -> None:
            self.deleted += 1
            await delete(name)

        self.snapshots.create, self.snapshots.delete = created, deleted  # type: ignore[method-assign]


async def _held(node: FakeNode) -> set[str]:
    return {f"scratch/{snapshot.name}" for snapshot in await node.pool.snapshots.list()}


async def test_a_content_gets_its_group_in_one_write_and_goes_with_it(
    api_server: ApiServer, make_node: MakeNode, world: GroupNodeWorld
) -> None:
    counting = Counting(api_server.transport(apiserver.ADMINISTRATOR))
    node = await make_node(agent=False)
    node.client = Client(counting)
    await node.start_agent()
    volumes = await world.pair(node)
    counting.writes.clear()
    group = await world.group()
    content = await world.group_ready(await world.group_content(group, volumes))
    path = kinds.GROUP_CONTENTS.path("", content.metadata.name)
    assert counting.writes == [f"PATCH {path}/status"]
    status = content.status
    assert status.volume_group_snapshot_handle == group_name(group.metadata.uid)
    assert sorted(one.volume_handle for one in status.volume_snapshot_info_list) == sorted(volumes)
    assert {one.snapshot_handle for one in status.volume_snapshot_info_list} == await _held(node)
    assert all(one.ready_to_use and one.restore_size == 2 * GIB for one in status.volume_snapshot_info_list)
    assert status.creation_time.endswith("Z")
    assert status.error is None
    counting.writes.clear()
    await world.delete_group()
    await world.group_gone(content.metadata.name)
    assert (counting.writes, await _held(node)) == ([f"PATCH {path}"], set())


async def test_a_content_without_a_label_is_taken_by_the_node_that_has_all_volumes(
    make_node: MakeNode, world: GroupNodeWorld
) -> None:
    """Upstream's controller sets no label."""
    node = await make_node()
    await make_node(name="node-2", pool=FakePool("scratch", 10 * GIB, directories=False))
    content = await world.group_ready(await world.group_content(await world.group(), await world.pair(node), node=""))
    assert content.metadata.labels == {MANAGED_BY: "node-1"}


async def test_a_content_of_two_nodes_is_left_alone_and_one_agent_says_so(
    make_node: MakeNode, world: GroupNodeWorld, all_events: AllEvents
) -> None:
    first = await make_node()
    second = await make_node(name="node-2", pool=FakePool("scratch", 10 * GIB, directories=False))
    volumes = [await world.bound(first, "data"), await world.bound(second, "log")]
    name = await world.group_content(await world.group(), volumes, node="")
    await asyncio.sleep(HOUR)
    content = await world.read_group(name)
    assert content is not None
    assert (content.metadata.labels, content.status.ready_to_use) == ({}, None)
    said = [event for event in await all_events() if "a group is of one node" in event[2]]
    assert {about for about, _, _ in said} == {"nightly", name}
    assert all(f"volumes {volumes[0]} are on node node-1, {volumes[1]} are not" in text for _, _, text in said)


async def test_a_full_pool_is_an_error_with_numbers_once_until_it_has_capacity(
    make_node: MakeNode, world: GroupNodeWorld, all_events: AllEvents
) -> None:
    node = await make_node(pool=_Asked("scratch", 7 * GIB, directories=False))
    volumes = await world.pair(node)
    name = await world.group_content(await world.group(), volumes)
    text = await world.group_failure(name, "no capacity")
    assert text == (
        "pool scratch on node node-1 has no capacity for snapshots of 2 volumes, 4Gi (3Gi free): delete snapshots or"
        " volumes there"
    )
    assert await _held(node) == set(), "all or none"
    content = await world.read_group(name)
    await asyncio.sleep(HOUR)
    assert await world.read_group(name) == content, "written once"
    said = [reason for _, reason, text in await all_events() if "no capacity" in text]
    assert said == ["GroupSnapshotCreationFailed"] * 2
    await world.delete_group()
    await world.group_gone(name)


async def test_a_full_pool_is_tried_again_when_something_is_deleted(
    make_node: MakeNode, world: GroupNodeWorld, eventually: Eventually
) -> None:
    node = await make_node("9Gi")
    volumes = await world.pair(node)
    single = await world.snapshot("monday")
    single_name = await world.content(single, volume=volumes[0])
    await world.ready(single_name)
    name = await world.group_content(await world.group(), volumes)
    await world.group_failure(name, "no capacity")
    await world.delete("monday")
    assert (await world.group_ready(name)).status.error is None


async def test_a_member_is_neither_made_nor_deleted_alone(make_node: MakeNode, world: GroupNodeWorld) -> None:
    pool = _Asked("scratch", 100 * GIB, directories=False)
    node = await make_node(pool=pool)
    content = await world.group_ready(await world.group_content(await world.group(), await world.pair(node)))
    assert pool.made == 0, "a group is taken in one call"
    members = [await world.member(content, index, node=label) for index, label in ((0, "node-1"), (1, ""))]
    await asyncio.sleep(HOUR)
    for member in members:
        found = await world.read(member)
        assert found.metadata.labels == {MANAGED_BY: "node-1"}
        await world.kube.delete(kinds.SNAPSHOTS, found.spec.volume_snapshot_ref.name, "default")
        await world.kube.delete(kinds.SNAPSHOT_CONTENTS, member)
    await asyncio.sleep(HOUR)
    assert [await world.is_gone(member) for member in members] == [True, True]
    assert (pool.made, pool.deleted, len(await _held(node))) == (0, 0, 2)
    await world.delete_group()
    await world.group_gone(content.metadata.name)
    assert await _held(node) == set()


async def test_a_member_that_upstream_s_controller_left_unready_is_looked_up(
    make_node: MakeNode, world: GroupNodeWorld
) -> None:
    node = await make_node()
    content = await world.group_ready(await world.group_content(await world.group(), await world.pair(node)))
    member = await world.member(content, 0)
    status = {"status": {"readyToUse": None, "restoreSize": None}}
    await world.kube.patch(kinds.SNAPSHOT_CONTENTS, member, status, subresource="status")
    assert (await world.ready(member)).status.restore_size == 2 * GIB


async def test_a_retained_group_stays_and_can_be_imported(make_node: MakeNode, world: GroupNodeWorld) -> None:
    node = await make_node()
    content = await world.group_ready(
        await world.group_content(await world.group(), await world.pair(node), policy="Retain")
    )
    await world.delete_group()
    await world.group_gone(content.metadata.name)
    held = await _held(node)
    assert held == set(content.snapshot_handles)
    again = await world.group("again", content="imported")
    name = await world.group_content(again, name="imported", handles=(content.handle, sorted(held)), node="")
    imported = await world.group_ready(name)
    assert imported.metadata.labels == {MANAGED_BY: "node-1"}
    assert set(imported.snapshot_handles) == held
    await world.kube.delete(kinds.GROUP_SNAPSHOTS, "again", "default")
    await world.kube.delete(kinds.GROUP_CONTENTS, "imported")
    await world.group_gone("imported")
    assert await _held(node) == set()


async def test_an_unrecorded_group_is_deleted_by_the_ids_that_its_members_have(
    make_node: MakeNode, world: GroupNodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the driver needs no pool but those of its volumes: another one may be offline."""
    node = await make_node()
    volumes = await world.pair(node)
    await node.kill_agent()
    group = await world.group()
    name = await world.group_content(group, volumes)
    await world.delete_group()
    asked: list[list[str]] = []
    delete = CsiClient.delete_group_snapshot

    async def recorded(self: CsiClient, handle: str, ids: list[str], **more: Any) -> None:
        asked.append(ids)
        await delete(self, handle, ids, **more)

    monkeypatch.setattr(CsiClient, "delete_group_snapshot", recorded)
    await node.start_agent()
    await world.group_gone(name)
    handle = group_name(group.metadata.uid)
    assert asked == [[f"scratch/{member_name(handle, volume)}" for volume in volumes]]


async def test_what_another_content_has_is_not_deleted(make_node: MakeNode, world: GroupNodeWorld) -> None:
    node = await make_node()
    content = await world.group_ready(await world.group_content(await world.group(), await world.pair(node)))
    single = await world.snapshot("kept", content="kept")
    await world.ready(await world.content(single, name="kept", handle=content.snapshot_handles[0]))
    await world.delete_group()
    await world.group_gone(content.metadata.name)
    assert await _held(node) == set(content.snapshot_handles)


async def test_a_member_whose_policy_is_retain_keeps_the_group(make_node: MakeNode, world: GroupNodeWorld) -> None:
    node = await make_node()
    content = await world.group_ready(await world.group_content(await world.group(), await world.pair(node)))
    await world.member(content, 0, policy="Retain")
    await world.member(content, 1)
    await world.delete_group()
    await world.group_gone(content.metadata.name)
    assert await _held(node) == set(content.snapshot_handles)


async def test_nothing_is_deleted_while_the_group_is_there(make_node: MakeNode, world: GroupNodeWorld) -> None:
    node = await make_node()
    content = await world.group_ready(await world.group_content(await world.group(), await world.pair(node)))
    await world.kube.delete(kinds.GROUP_CONTENTS, content.metadata.name)
    await asyncio.sleep(HOUR)
    now = await world.read_group(content.metadata.name)
    assert now is not None
    assert (now.metadata.finalizers, len(await _held(node))) == ([GROUP_CONTENT_BOUND], 2)
    await world.kube.delete(kinds.GROUP_SNAPSHOTS, "nightly", "default")
    await world.group_gone(content.metadata.name)
    assert await _held(node) == set()


async def test_what_is_not_asked_of_the_driver_says_why(make_node: MakeNode, world: GroupNodeWorld) -> None:
    node = await make_node()
    volumes = await world.pair(node)
    parameters = {"csi.storage.k8s.io/group-snapshotter-secret-name": "s"}
    body = {"metadata": {"name": "secret"}, "driver": "csi.tonnage.dev", "deletionPolicy": "Delete"}
    await world.kube.create(kinds.GROUP_CLASSES, {**body, "parameters": parameters})
    name = await world.group_content(await world.group(), volumes, volumeGroupSnapshotClassName="secret")
    assert "uses no secrets; remove it" in await world.group_failure(name)
    await world.delete_group()
    await world.group_gone(name)
