"""Snapshots of one node: whose content it is, what is made, told and deleted, and what never is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.unit.node.agents import AllEvents
from tests.unit.node.snapshotworld import Counting, SnapshotWorld

from tonnage.base.errors import NotFoundError, PreconditionError, UnavailableError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.snapshot import (
    BEING_DELETED,
    CONTENT_BOUND,
    MANAGED_BY,
    SECRET_NAME,
    VolumeSnapshot,
    content_name,
    snapshot_name,
)
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Response
from tonnage.node.snapshots.shared import LOOK_EVERY, RETRY_MAX
from tonnage.storage.pools.base.contract import Snapshot, VolumeOrigin, VolumeRequest
from tonnage.storage.pools.fake.backend import FEATURES, FakePool
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.testing import apiserver
from tonnage_box.testing.node import MakeNode
from tonnage_box.testing.objects import MakeClaim
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30
HOUR = 3600.0


class _Stubborn(FakePool):
    """Snapshots fail while `why` or `keeps` is set; `asked` counts the calls."""

    why: Exception | None = None
    keeps: Exception | None = None
    asked = 0

    def __init__(self, name: str, size: int, **more: Any) -> None:
        super().__init__(name, size, **more)
        create, delete = self.snapshots.create, self.snapshots.delete

        async def created(name: str, volume: str, **more: Any) -> Snapshot:
            self.asked += 1
            if self.why is not None:
                raise self.why
            return await create(name, volume, **more)

        async def deleted(name: str) -> None:
            if self.keeps is not None:
                raise self.keeps
            await delete(name)

        self.snapshots.create, self.snapshots.delete = created, deleted  # type: ignore[method-assign]


@pytest.fixture
def world(kube: Client, make_claim: MakeClaim) -> SnapshotWorld:
    """Contents by hand."""
    return SnapshotWorld(kube, make_claim)


def _stubborn(size: int = 10 * GIB) -> _Stubborn:
    return _Stubborn("scratch", size, directories=False)


async def _names(pool: FakePool) -> list[str]:
    return [snapshot.name for snapshot in await pool.snapshots.list()]


async def test_a_content_gets_its_snapshot_in_one_write_and_goes_with_it(
    api_server: ApiServer, make_node: MakeNode, world: SnapshotWorld
) -> None:
    counting = Counting(api_server.transport(apiserver.ADMINISTRATOR))
    node = await make_node(agent=False)
    node.client = Client(counting)
    await node.start_agent()
    source = await world.bound(node)
    snapshot = await world.snapshot("monday")
    counting.writes.clear()
    content = await world.ready(await world.content(snapshot, volume=source))
    name = content.metadata.name
    uid = snapshot.metadata.uid
    path = kinds.SNAPSHOT_CONTENTS.path("", name)
    assert counting.writes == [f"PATCH {path}/status"]
    assert content.status.snapshot_handle == f"scratch/{snapshot_name(uid)}"
    assert (content.status.restore_size, content.status.error) == (4 * GIB, None)
    made = await node.pool.snapshots.get(snapshot_name(uid))
    assert content.status.creation_time == pytest.approx(made.created * 1e9)
    counting.writes.clear()
    await world.delete("monday")
    assert await world.is_gone(name) or await _later(partial(world.is_gone, name))
    ours = [write for write in counting.writes if "volumesnapshot" in write]
    assert (ours, await _names(node.pool)) == ([f"PATCH {path}"], [])


async def _later(condition: Callable[[], Any]) -> bool:
    """Whether the condition comes to hold within an hour."""
    for _ in range(720):
        if await condition():
            return True
        await asyncio.sleep(5)
    return False


async def test_capacity_is_published_soon_after_a_snapshot_comes_and_goes(
    make_node: MakeNode, world: SnapshotWorld, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await world.take(node, "monday")
    await eventually(lambda: node.publishes("2Gi", "2Gi"))
    await world.delete("monday")
    await eventually(lambda: node.publishes("6Gi", "6Gi"))


@pytest.mark.parametrize("how", ["volume", "snapshot", "made before"])
async def test_a_content_without_a_label_is_taken_by_the_node_that_has_it(
    make_node: MakeNode, world: SnapshotWorld, how: str
) -> None:
    node = await make_node(pool=_stubborn())
    await make_node(name="node-2", pool=FakePool("scratch", 10 * GIB, directories=False))
    source = await world.bound(node)
    if how == "volume":
        name = await world.content(await world.snapshot("s"), volume=source, node="")
    else:
        uid = "01234567-89ab-cdef-0123-456789abcdef"
        await node.pool.snapshots.create(snapshot_name(uid), source.partition("/")[2], owner={})
        content = await world.snapshot("s", content="imported")
        handle = f"scratch/{snapshot_name(uid)}"
        name = await world.content(content, name="imported", handle=handle, node="")
    content_now = await world.ready(name)
    assert content_now.metadata.labels[MANAGED_BY] == "node-1"
    assert (await world.read(name)).status.restore_size == 4 * GIB


async def test_contents_that_are_not_certainly_of_this_node_are_left_alone(
    make_node: MakeNode, world: SnapshotWorld
) -> None:
    node = await make_node(pool=_stubborn())
    source = await world.bound(node)
    await node.pool.snapshots.create("monday", source.partition("/")[2], owner={})
    snapshot = await world.snapshot("s")
    left = [
        await world.content(snapshot, name="by-hand", handle="scratch/monday", node=""),
        await world.content(snapshot, name="elsewhere", volume=source, node="node-2"),
        await world.content(snapshot, name="unknown", volume="scratch/pvc-0", node=""),
        await world.content(snapshot, name="theirs", volume=source, node="node-1", driver="other.example"),
        await world.content(snapshot, name="hidden", handle="../monday", node=""),
    ]
    await asyncio.sleep(HOUR)
    for name in left:
        content = await world.read(name)
        assert (content.status.ready_to_use, content.status.error) == (None, None), name
        assert content.metadata.labels.get(MANAGED_BY) != "node-1" or name == "theirs"
    assert isinstance(node.pool, _Stubborn)
    assert node.pool.asked == 1


@pytest.mark.parametrize("handle", ["scratch/nobody-has-it", "scratch/snapshot-01234567-89ab-cdef-0123-456789abcdef"])
async def test_a_content_that_is_nobody_s_can_be_deleted(
    make_node: MakeNode, world: SnapshotWorld, handle: str
) -> None:
    """Without a label nothing was made for it: after a while any agent lets it go, of a served driver only."""
    for number in (1, 2, 3):
        await make_node(name=f"node-{number}")
    snapshot = await world.snapshot("s", content="by-hand")
    await world.content(snapshot, name="by-hand", handle=handle, node="")
    await world.content(snapshot, name="theirs", handle=handle, node="", driver="other.example")
    await asyncio.sleep(HOUR)
    for name in ("by-hand", "theirs"):
        assert not (await world.read(name)).metadata.labels
        await world.kube.delete(kinds.SNAPSHOT_CONTENTS, name)
    await asyncio.sleep(HOUR)
    assert not await world.is_gone("by-hand"), "its VolumeSnapshot lives"
    await world.kube.delete(kinds.SNAPSHOTS, "s", "default")
    assert await _later(partial(world.is_gone, "by-hand"))
    assert not await world.is_gone("theirs")


async def test_a_volume_that_becomes_known_later_is_the_content_s(make_node: MakeNode, world: SnapshotWorld) -> None:
    node = await make_node()
    source = await world.bound(node)
    volume = source.partition("/")[2]
    await world.kube.patch(kinds.VOLUMES, volume, {"metadata": {"labels": {names.NODE_LABEL: None}}})
    name = await world.content(await world.snapshot("s"), volume=source, node="")
    await asyncio.sleep(HOUR)
    assert (await world.read(name)).metadata.labels == {}
    await world.kube.patch(kinds.VOLUMES, volume, {"metadata": {"labels": {names.NODE_LABEL: "node-1"}}})
    assert (await world.ready(name)).metadata.labels == {MANAGED_BY: "node-1"}


async def test_a_snapshot_without_room_says_so_once_and_is_made_when_there_is_room(
    make_node: MakeNode, world: SnapshotWorld, all_events: AllEvents
) -> None:
    node = await make_node(pool=_stubborn(), poll=60)
    assert isinstance(node.pool, _Stubborn)
    source = await world.bound(node, "data", "4Gi")
    await world.bound(node, "other", "4Gi")
    name = await world.content(await world.snapshot("monday"), volume=source)
    text = await world.failure(name)
    assert text == (
        "pool scratch on node node-1 has no capacity for a snapshot of 4Gi (2Gi free): delete snapshots or volumes there"
    )
    assert (await world.read(name)).status.ready_to_use is False
    asked = node.pool.asked
    await asyncio.sleep(HOUR)
    assert node.pool.asked == asked, "no timer tries again"
    told = [(about, reason) for about, reason, message in await all_events() if text in message]
    assert sorted(told) == sorted([(name, "SnapshotCreationFailed"), ("monday", "SnapshotCreationFailed")])
    await node.release("other")
    content = await world.ready(name)
    assert (content.status.error, node.pool.asked) == (None, asked + 1)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_snapshot_that_could_not_be_made_can_be_deleted(
    make_node: MakeNode, world: SnapshotWorld, restarted: bool
) -> None:
    node = await make_node(pool=_stubborn(6 * GIB))
    source = await world.bound(node)
    name = await world.content(await world.snapshot("monday"), volume=source)
    await world.failure(name, "no capacity")
    if restarted:
        await node.kill_agent()
    await world.delete("monday")
    if restarted:
        await node.start_agent()
    assert await _later(partial(world.is_gone, name))


async def test_a_snapshot_that_was_made_and_not_told_is_deleted_too(make_node: MakeNode, world: SnapshotWorld) -> None:
    node = await make_node()
    source = await world.bound(node)
    snapshot = await world.snapshot("monday")
    await node.kill_agent()
    name = await world.content(snapshot, volume=source)
    await node.pool.snapshots.create(snapshot_name(snapshot.metadata.uid), source.partition("/")[2], owner={})
    await world.delete("monday")
    await node.start_agent()
    assert await _later(partial(world.is_gone, name))
    assert await _names(node.pool) == []


@pytest.mark.parametrize("handle", ["retired/pvc-1", "no form of ours", "scratch/../x", "scratch/pvc-1", "../../etc"])
async def test_forged_volumes_get_an_error_and_can_be_deleted(
    make_node: MakeNode, world: SnapshotWorld, handle: str
) -> None:
    await make_node()
    name = await world.content(await world.snapshot("monday"), volume=handle)
    assert "rpc error" in await world.failure(name)
    await world.delete("monday")
    assert await _later(partial(world.is_gone, name))


@pytest.mark.parametrize("handle", ["retired/s", "no form of ours", "scratch/../s", "../../etc/passwd", "scratch/gone"])
async def test_forged_snapshots_get_an_error_and_delete_nothing(
    make_node: MakeNode, world: SnapshotWorld, handle: str
) -> None:
    node = await make_node()
    await world.take(node, "monday")
    await world.content(await world.snapshot("imported", content="forged"), name="forged", handle=handle, node="node-1")
    assert await world.failure("forged")
    await world.kube.delete(kinds.SNAPSHOTS, "imported", "default")
    await world.kube.delete(kinds.SNAPSHOT_CONTENTS, "forged")
    assert await _later(partial(world.is_gone, "forged"))
    assert len(await _names(node.pool)) == 1


async def test_retain_keeps_the_snapshot(make_node: MakeNode, world: SnapshotWorld) -> None:
    node = await make_node()
    content = await world.take(node, "monday")
    await world.kube.patch(kinds.SNAPSHOT_CONTENTS, content.metadata.name, {"spec": {"deletionPolicy": "Retain"}})
    await world.delete("monday")
    assert await _later(partial(world.is_gone, content.metadata.name))
    assert await _names(node.pool) == [content.status.snapshot_handle.partition("/")[2]]


@pytest.mark.parametrize("by", ["annotation", "deletion"])
async def test_a_content_waits_for_its_snapshot_to_go(make_node: MakeNode, world: SnapshotWorld, by: str) -> None:
    node = await make_node()
    name = (await world.take(node, "monday")).metadata.name
    await world.kube.delete(kinds.SNAPSHOT_CONTENTS, name)
    await asyncio.sleep(HOUR)
    assert CONTENT_BOUND in (await world.read(name)).metadata.finalizers
    assert len(await _names(node.pool)) == 1
    if by == "annotation":
        note = {"metadata": {"annotations": {BEING_DELETED: "yes"}}}
        await world.kube.patch(kinds.SNAPSHOT_CONTENTS, name, note)
    else:
        await world.kube.delete(kinds.SNAPSHOTS, "monday", "default")
        await asyncio.sleep(LOOK_EVERY)
    assert await _later(partial(world.is_gone, name))
    assert await _names(node.pool) == []


@pytest.mark.parametrize("labelled", [True, False])
async def test_a_snapshot_that_another_content_names_is_never_deleted(
    make_node: MakeNode, world: SnapshotWorld, labelled: bool
) -> None:
    node = await make_node()
    content = await world.take(node, "monday")
    handle = content.status.snapshot_handle
    other = await world.snapshot("imported", content="second")
    await world.content(other, name="second", handle=handle, node="node-1" if labelled else "")
    await world.delete("monday")
    assert await _later(partial(world.is_gone, content.metadata.name))
    assert (await world.ready("second")).status.snapshot_handle == handle
    assert await _names(node.pool) == [handle.partition("/")[2]]
    await world.kube.delete(kinds.SNAPSHOTS, "imported", "default")
    await world.kube.delete(kinds.SNAPSHOT_CONTENTS, "second")
    assert await _later(partial(world.is_gone, "second"))
    assert await _names(node.pool) == []


async def test_a_content_that_waits_for_its_snapshot_keeps_what_it_has(
    make_node: MakeNode, world: SnapshotWorld
) -> None:
    """A content that somebody deleted by hand still serves its VolumeSnapshot."""
    node = await make_node()
    content = await world.take(node, "monday")
    other = await world.snapshot("imported", content="second")
    await world.content(other, name="second", handle=content.status.snapshot_handle)
    await world.ready("second")
    await world.kube.delete(kinds.SNAPSHOT_CONTENTS, "second")
    await world.delete("monday")
    assert await _later(partial(world.is_gone, content.metadata.name))
    assert len(await _names(node.pool)) == 1
    await world.kube.delete(kinds.SNAPSHOTS, "imported", "default")
    assert await _later(partial(world.is_gone, "second"))
    assert await _names(node.pool) == []


async def test_a_content_that_goes_while_its_snapshot_is_made_leaves_none(
    make_node: MakeNode, world: SnapshotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody took its finalizers off meanwhile."""
    node = await make_node()
    source = await world.bound(node)
    made, go_on = asyncio.Event(), asyncio.Event()
    create = node.pool.snapshots.create

    async def slow(*args: Any, **options: Any) -> Any:
        found = await create(*args, **options)
        made.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(node.pool.snapshots, "create", slow)
    name = await world.content(await world.snapshot("monday"), volume=source)
    await made.wait()
    await world.kube.delete(kinds.SNAPSHOTS, "monday", "default")
    await world.kube.delete(kinds.SNAPSHOT_CONTENTS, name)
    await world.kube.patch(kinds.SNAPSHOT_CONTENTS, name, {"metadata": {"finalizers": None}})
    go_on.set()

    async def is_empty() -> bool:
        return await _names(node.pool) == []

    assert await _later(is_empty)


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
async def test_a_content_that_is_made_to_delete_a_snapshot_waits_for_its_volume_snapshots(
    make_node: MakeNode, world: SnapshotWorld, all_events: AllEvents, policy: str
) -> None:
    """As Velero restores a backup and then deletes it."""
    node = await make_node()
    content = await world.take(node, "monday", policy="Retain")
    handle = content.status.snapshot_handle
    await world.delete("monday")
    assert await _later(partial(world.is_gone, content.metadata.name))
    await world.content(await world.snapshot("restored", content="second"), name="second", handle=handle, policy=policy)
    await world.ready("second")
    await world.content(VolumeSnapshot(metadata=ObjectMeta(name="none")), name="third", handle=handle)
    await world.kube.delete(kinds.SNAPSHOT_CONTENTS, "third")
    await asyncio.sleep(HOUR)
    assert await _names(node.pool) == [handle.partition("/")[2]]
    said = {message for _, reason, message in await all_events() if reason == "SnapshotDeleteError"}
    assert said == {
        f"Failed to delete snapshot: snapshot {handle} is also that of VolumeSnapshot default/restored; "
        "delete that first"
    }
    await world.kube.delete(kinds.SNAPSHOTS, "restored", "default")
    await world.release("restored")
    assert await _later(partial(world.is_gone, "third"))
    assert await _names(node.pool) == []


async def test_a_content_that_waits_for_its_volume_snapshot_keeps_the_snapshot(
    make_node: MakeNode, world: SnapshotWorld
) -> None:
    """The VolumeSnapshot of an import is made after the content."""
    node = await make_node()
    content = await world.take(node, "monday", policy="Retain")
    handle = content.status.snapshot_handle
    await world.delete("monday")
    later = VolumeSnapshot(metadata=ObjectMeta(name="later"))
    for name in ("second", "third"):
        await world.content(later, name=name, handle=handle)
    await world.kube.delete(kinds.SNAPSHOT_CONTENTS, "third")
    await asyncio.sleep(HOUR)
    assert await _names(node.pool) == [handle.partition("/")[2]]
    await world.kube.delete(kinds.SNAPSHOT_CONTENTS, "second")
    assert await _later(partial(world.is_gone, "third"))
    assert await _names(node.pool) == []


async def test_an_imported_content_that_is_deleted_before_it_is_looked_at_deletes_its_snapshot(
    make_node: MakeNode, world: SnapshotWorld
) -> None:
    node = await make_node()
    content = await world.take(node, "monday", policy="Retain")
    await world.delete("monday")
    assert await _later(partial(world.is_gone, content.metadata.name))
    await node.kill_agent()
    none = VolumeSnapshot(metadata=ObjectMeta(name="none"))
    await world.content(none, name="second", handle=content.status.snapshot_handle)
    await world.kube.delete(kinds.SNAPSHOT_CONTENTS, "second")
    await node.start_agent()
    assert await _later(partial(world.is_gone, "second"))
    assert await _names(node.pool) == []


async def test_an_abandoned_import_deletes_no_snapshot_of_a_node_that_has_the_same_name(
    make_node: MakeNode, world: SnapshotWorld
) -> None:
    """Any agent releases such a content, though names that people gave are not unique among nodes."""
    node = await make_node()
    source = await world.bound(node)
    await node.pool.snapshots.create("monday", source.partition("/")[2], owner={})
    none = VolumeSnapshot(metadata=ObjectMeta(name="none"))
    await world.content(none, name="by-hand", handle="scratch/monday", node="")
    await world.kube.delete(kinds.SNAPSHOT_CONTENTS, "by-hand")
    await asyncio.sleep(HOUR)
    assert await world.is_gone("by-hand")
    assert await _names(node.pool) == ["monday"]


async def test_a_content_that_is_made_to_delete_a_snapshot_waits_for_a_restore(
    make_node: MakeNode, world: SnapshotWorld
) -> None:
    """A VolumeSnapshot that is being deleted stays while a claim is made of it."""
    node = await make_node()
    content = await world.take(node, "monday", policy="Retain")
    await world.kube.delete(kinds.SNAPSHOTS, "monday", "default")
    handle = content.status.snapshot_handle
    await world.content(VolumeSnapshot(metadata=ObjectMeta(name="none")), name="second", handle=handle)
    await world.kube.delete(kinds.SNAPSHOT_CONTENTS, "second")
    await asyncio.sleep(HOUR)
    assert await _names(node.pool) == [handle.partition("/")[2]]
    await world.release("monday")
    assert await _later(partial(world.is_gone, "second"))
    assert await _names(node.pool) == []


async def test_a_content_of_another_node_does_not_keep_a_snapshot_of_the_same_id(
    make_node: MakeNode, world: SnapshotWorld
) -> None:
    node = await make_node()
    content = await world.take(node, "monday")
    other = await world.snapshot("imported", content="second")
    await world.content(other, name="second", handle=content.status.snapshot_handle, node="node-2")
    await world.delete("monday")
    assert await _later(partial(world.is_gone, content.metadata.name))
    assert await _names(node.pool) == []


async def test_an_imported_snapshot_that_is_not_there_is_looked_for_again(
    make_node: MakeNode, world: SnapshotWorld
) -> None:
    node = await make_node()
    source = await world.bound(node)
    snapshot = await world.snapshot("s", content="imported")
    name = await world.content(snapshot, name="imported", handle="scratch/monday")
    assert "can not find snapshot for snapshotID scratch/monday" in await world.failure(name)
    await node.pool.snapshots.create("monday", source.partition("/")[2], owner={})
    content = await world.ready(name)
    assert (content.status.restore_size, content.status.error) == (4 * GIB, None)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"csi.storage.k8s.io/snapshotter-secret-name": "s"}, "parameter csi.storage.k8s.io/snapshotter-secret-name"),
        ({"csi.storage.k8s.io/color": "red"}, 'unknown parameter key "csi.storage.k8s.io/color"'),
        ({"color": "red"}, "unknown parameter 'color'"),
        ({names.ON_NODE_GONE: "soon"}, "want keep, or release-after:TIME"),
        (None, "is of driver other.example"),
    ],
)
async def test_classes_that_are_rejected_by_name(
    make_node: MakeNode, world: SnapshotWorld, body: dict[str, str] | None, wanted: str
) -> None:
    node = await make_node()
    driver = names.DRIVER if body is not None else "other.example"
    snapshot_class = {"metadata": {"name": "daily"}, "driver": driver, "deletionPolicy": "Delete"}
    await world.kube.create(kinds.SNAPSHOT_CLASSES, {**snapshot_class, "parameters": body or {}})
    source = await world.bound(node)
    name = await world.content(await world.snapshot("s"), volume=source, volumeSnapshotClassName="daily")
    assert wanted in await world.failure(name)
    await world.kube.delete(kinds.SNAPSHOT_CLASSES, "daily")
    await asyncio.sleep(RETRY_MAX)
    assert (await world.ready(name)).status.error is None, "a class that is gone asks for nothing"


async def test_a_class_may_say_what_becomes_of_snapshots_of_a_lost_node(
    make_node: MakeNode, world: SnapshotWorld
) -> None:
    node = await make_node()
    body = {"driver": names.DRIVER, "deletionPolicy": "Delete", "parameters": {names.ON_NODE_GONE: "release-after:1h"}}
    await world.kube.create(kinds.SNAPSHOT_CLASSES, {"metadata": {"name": "daily"}, **body})
    name = await world.content(
        await world.snapshot("s"), volume=await world.bound(node), volumeSnapshotClassName="daily"
    )
    assert (await world.ready(name)).status.error is None


async def test_a_secret_of_the_class_is_rejected_and_does_not_keep_the_content(
    make_node: MakeNode, world: SnapshotWorld
) -> None:
    node = await make_node()
    source, snapshot = await world.bound(node), await world.snapshot("s")
    name = await world.content(snapshot, volume=source, annotations={SECRET_NAME: "s"})
    assert "uses no secrets" in await world.failure(name)
    await world.delete("s")
    assert await _later(partial(world.is_gone, name))


@pytest.mark.slow
@pytest.mark.parametrize("why", [UnavailableError("the disk is offline"), PreconditionError("it is busy")])
async def test_what_passes_is_tried_again_and_told_once(
    make_node: MakeNode, world: SnapshotWorld, all_events: AllEvents, why: Exception
) -> None:
    pool = _stubborn()
    node = await make_node(pool=pool)
    source = await world.bound(node)
    pool.why = why
    name = await world.content(await world.snapshot("monday"), volume=source)
    await world.failure(name, str(why))
    version = (await world.read(name)).metadata.resource_version
    await asyncio.sleep(HOUR)
    assert 10 < pool.asked < 30, "with a growing pause"
    assert (await world.read(name)).metadata.resource_version == version, "what is said is not written again"
    assert sum(reason == "SnapshotCreationFailed" for _, reason, _ in await all_events()) == 2
    pool.why = None
    await world.ready(name)


async def test_a_snapshot_that_cannot_be_deleted_keeps_its_content(
    make_node: MakeNode, world: SnapshotWorld, all_events: AllEvents, eventually: Eventually
) -> None:
    pool = _stubborn()
    node = await make_node(pool=pool)
    name = (await world.take(node, "monday")).metadata.name
    pool.keeps = PreconditionError("volume b is made from it")
    await world.delete("monday")

    async def told() -> list[str]:
        return [text for _, reason, text in await all_events() if reason == "SnapshotDeleteError"]

    assert "volume b is made from it" in (await eventually(told))[0]
    assert not await world.is_gone(name)
    pool.keeps = None
    assert await _later(partial(world.is_gone, name))
    assert await _names(pool) == []


async def test_a_node_whose_pools_offer_no_snapshots_says_so(make_node: MakeNode, world: SnapshotWorld) -> None:
    plain = FakePool("scratch", 10 * GIB, directories=False, features=replace(FEATURES, snapshots=False))
    node = await make_node(pool=plain)
    source = await world.bound(node)
    name = await world.content(await world.snapshot("monday"), volume=source)
    assert "driver csi.tonnage.dev on node node-1 offers no snapshots" in await world.failure(name)
    await world.delete("monday")
    assert await _later(partial(world.is_gone, name))


async def test_nothing_is_made_before_the_content_has_its_finalizer(make_node: MakeNode, world: SnapshotWorld) -> None:
    node = await make_node()
    source = await world.bound(node)
    snapshot = await world.snapshot("monday")
    name = await world.content(snapshot, volume=source, node="node-2")
    patch = {"metadata": {"finalizers": None, "labels": {MANAGED_BY: "node-1"}}}
    await world.kube.patch(kinds.SNAPSHOT_CONTENTS, name, patch)
    await asyncio.sleep(HOUR)
    assert await _names(node.pool) == []
    await world.kube.patch(kinds.SNAPSHOT_CONTENTS, name, {"metadata": {"finalizers": [CONTENT_BOUND]}})
    assert (await world.ready(content_name(snapshot.metadata.uid))).status.snapshot_handle


class _Without(Counting):
    """A server whose CustomResourceDefinitions are missing, while they are."""

    missing = True
    asked = 0

    async def request(self, request: Any) -> Any:
        if self.missing and "snapshot.storage.k8s.io" in request.path:
            self.asked += 1
            raise_ = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "the server could not find it"}
            return Response(404, msgspec.json.encode(raise_))
        return await super().request(request)


async def test_without_the_kinds_the_agent_works_and_begins_when_they_appear(
    api_server: ApiServer, make_node: MakeNode, world: SnapshotWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    without = _Without(api_server.transport(apiserver.ADMINISTRATOR))
    node = await make_node(agent=False)
    node.client = Client(without)
    agent = await node.start_agent()
    source = await world.bound(node)
    assert agent.unsynced() == []
    name = await world.content(await world.snapshot("monday"), volume=source)
    await asyncio.sleep(HOUR)
    assert 110 <= without.asked <= 130, "snapshots and groups, once a minute each"
    assert sum("kind not served" in record.message for record in caplog.records) == 2
    without.missing = False
    await world.ready(name)


async def test_a_pool_s_lock_keeps_a_restore_and_a_deletion_apart(make_node: MakeNode, world: SnapshotWorld) -> None:
    """One ends before the other begins: a volume is never made of half a snapshot."""
    node = await make_node()
    content = await world.take(node, "monday")
    snapshot = content.status.snapshot_handle.partition("/")[2]
    order: list[str] = []
    backend = node.pool.backend
    make, remove = backend.create, backend.delete_snapshot

    def slow_make(*args: Any) -> Any:
        order.append("make")
        return make(*args)

    def slow_remove(name: str) -> None:
        order.append("remove")
        remove(name)

    backend.create, backend.delete_snapshot = slow_make, slow_remove  # type: ignore[method-assign,assignment]
    async with node.pool.work.locks.hold(f"{snapshot}@"):
        request = VolumeRequest("restored", 4 * GIB, source=VolumeOrigin(snapshot=snapshot))
        both = [asyncio.ensure_future(node.pool.create(request))]
        await asyncio.sleep(1)
        both.append(asyncio.ensure_future(node.pool.snapshots.delete(snapshot)))  # type: ignore[arg-type]
        await asyncio.sleep(1)
        assert order == [], "both wait for the lock of the snapshot"
    await asyncio.gather(*both)
    assert order == ["make", "remove"]
    with pytest.raises(NotFoundError):
        await node.pool.snapshots.get(snapshot)


async def test_a_hundred_snapshots_at_once_cost_a_hundred_writes(
    api_server: ApiServer, make_node: MakeNode, world: SnapshotWorld, eventually: Eventually
) -> None:
    counting = Counting(api_server.transport(apiserver.ADMINISTRATOR))
    node = await make_node("1000Gi", agent=False)
    node.client = Client(counting)
    await node.start_agent()
    source = await world.bound(node)
    counting.writes.clear()
    made = [await world.snapshot(f"s{number}") for number in range(100)]
    contents = [await world.content(snapshot, volume=source) for snapshot in made]
    for name in contents:
        await world.ready(name)
    assert sorted(counting.writes) == sorted(f"PATCH {kinds.SNAPSHOT_CONTENTS.path('', n)}/status" for n in contents)
    assert len(await _names(node.pool)) == 100
    counting.writes.clear()
    counting.lists.clear()
    await asyncio.gather(*(world.delete(f"s{number}") for number in range(100)))
    for name in contents:  # in small steps: the server encodes long lists in a thread, which virtual time overtakes
        await eventually(partial(world.is_gone, name))
    ours = [write for write in counting.writes if write.startswith("PATCH")]
    assert sorted(ours) == sorted(f"PATCH {kinds.SNAPSHOT_CONTENTS.path('', n)}" for n in contents)
    assert await _names(node.pool) == []
    assert (
        len(counting.lists) < 100
    )  # those that are deleted in the same turn of the loop share two; alone each reads two
