"""The snapshot controller on an API server in this process: what it writes, in which order, and what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from tests.unit.controller.contexts import context
from tests.unit.controller.snapshots.world import OTHER, Recording, World
from tests.unit.fixture_types import Running, Settle, Told

from tonnage.controller.snapshots.controller import SnapshotController
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, SNAPSHOT_CLASSES, SNAPSHOT_CONTENTS, SNAPSHOTS, VOLUMES, Kind
from tonnage.kubernetes.api.snapshot import (
    AS_SOURCE,
    BEING_DELETED,
    BOUND,
    CONTENT_BOUND,
    MANAGED_BY,
    PROVISIONER_SOURCE,
    content_name,
)
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.apiserver.server.server import ApiServer


@pytest.fixture
def world(kube: Client) -> World:
    return World(kube)


@pytest.fixture
def recording(api_server: ApiServer) -> Recording:
    return Recording(api_server.transport("system:admin"))


class Controller:
    """The running controller; settled() lets it and the agents work until nothing changes."""

    def __init__(self, world: World, settle: Settle, recording: Recording, loop: SnapshotController) -> None:
        self._world, self._settle, self._recording, self.loop = world, settle, recording, loop

    async def settled(self, *, agents: bool = True) -> list[str]:
        """What the controller has written, until it is quiet."""
        before = len(self._recording.writes)
        for _ in range(6):
            await self._quiet()
            if agents:
                await self._world.act()
        await self._quiet()
        return self._recording.writes[before:]

    async def _quiet(self) -> None:
        for _ in range(3):
            await self._settle()
            for _ in range(200):
                queue = self.loop._controller.queue
                if not queue.counts["waiting"] and not queue.counts["working"] and not queue.counts["delayed"]:
                    break
                await asyncio.sleep(0.01)


@pytest.fixture
async def controller(
    world: World, recording: Recording, informers: Informers, events: EventRecorder, settle: Settle, running: Running
) -> AsyncIterator[Controller]:
    loop = SnapshotController(context(Client(recording), informers, events))
    async with running(loop):
        yield Controller(world, settle, recording, loop)


async def test_a_snapshot_costs_two_writes_in_the_box_and_its_end_two(
    world: World, controller: Controller, told: Told
) -> None:
    """Besides those of the agent: the content's status, and its finalizer."""
    await world.classed()
    await world.bound()
    made = await world.snapshot(of_class="tonnage")
    name = content_name(made.metadata.uid)
    status = "namespaces/default/volumesnapshots/monday/status"
    assert await controller.settled() == ["POST volumesnapshotcontents", f"PATCH {status}"]
    content = await world.content(name)
    assert content is not None
    assert content.metadata.finalizers == [CONTENT_BOUND]
    assert content.metadata.labels == {MANAGED_BY: "n1"}
    spec = content.spec
    assert (spec.driver, spec.deletion_policy, spec.source_volume_mode) == (names.DRIVER, "Delete", "Filesystem")
    assert (spec.source.volume_handle, spec.volume_snapshot_class_name) == ("pool/v-data", "tonnage")
    ref = spec.volume_snapshot_ref
    assert (ref.kind, ref.namespace, ref.name, ref.uid) == ("VolumeSnapshot", "default", "monday", made.metadata.uid)
    shown = await world.get()
    assert shown is not None
    assert (shown.status.ready_to_use, shown.status.restore_size, shown.status.error) == (True, "1Gi", None)
    assert shown.status.bound_volume_snapshot_content_name == name
    assert shown.status.creation_time == "2023-11-14T22:13:20Z"
    assert [(reason, text) for _, _, reason, text in await told()] == [
        ("CreatingSnapshot", "Waiting for a snapshot default/monday to be created by the CSI driver."),
        ("SnapshotCreated", "Snapshot default/monday was successfully created by the CSI driver."),
        ("SnapshotReady", "Snapshot default/monday is ready to use."),
    ]
    await world.kube.delete(SNAPSHOTS, "monday", "default")
    assert await controller.settled() == [
        f"DELETE volumesnapshotcontents/{name}", "PATCH namespaces/default/volumesnapshots/monday",
    ]  # fmt: skip
    assert (await world.get(), await world.contents(), world.storage) == (None, [], {})


async def test_on_kubernetes_one_write_more_brings_finalizers_and_default_class(
    world: World, controller: Controller
) -> None:
    await world.classed(default=True)
    await world.classed("other", default=True, driver=OTHER)
    await world.classed("named")
    await world.bound()
    async with _paused(controller):
        await world.snapshot(bare=True)
    writes = await controller.settled()
    assert [line.split()[0] for line in writes] == ["PATCH", "POST", "PATCH"]
    shown = await world.get()
    assert shown is not None
    assert (shown.spec.volume_snapshot_class_name, shown.metadata.finalizers) == ("tonnage", [AS_SOURCE, BOUND])
    assert shown.status.ready_to_use


@asynccontextmanager
async def _paused(controller: Controller) -> AsyncIterator[None]:
    """The controller sees the snapshot as it is afterwards."""
    queue = controller.loop._controller.queue
    take, queue.get = queue.get, lambda: None  # type: ignore[method-assign]
    try:
        yield
        await controller._settle()
    finally:
        queue.get = take  # type: ignore[method-assign]
        controller.loop._controller._wake.set()


@pytest.mark.parametrize(
    ("given", "reason", "text"),
    [
        ({"classes": ()}, "GetSnapshotClassFailed", '"tonnage" not found'),
        ({"named": False, "classes": ()}, "SetDefaultSnapshotClassFailed", "cannot find default snapshot class of"),
        ({"named": False, "classes": ("a", "b")}, "SetDefaultSnapshotClassFailed", "2 default snapshot classes were"),
        ({"claim": "missing"}, "SnapshotContentCreationFailed", "claim default/data does not exist"),
        ({"claim": "unbound"}, "SnapshotContentCreationFailed", "the PVC data is not yet bound to a PV"),
        ({"claim": "deleting"}, "SnapshotContentCreationFailed", "claim default/data is being deleted"),
        ({"claim": "local"}, "SnapshotContentCreationFailed", "snapshotting non-CSI volumes is not supported"),
        ({"driver": OTHER}, "SnapshotContentCreationFailed", f"class tonnage is of driver {OTHER}, the volume of cl"),
        (
            {"parameters": {"csi.storage.k8s.io/snapshotter-secret-name": "s"}},
            "SnapshotContentCreationFailed",
            "csi.tonnage.dev uses no secrets: remove it",
        ),
    ],
)
async def test_what_cannot_be_made_says_why_once_and_holds_nothing(
    world: World, controller: Controller, told: Told, given: dict[str, Any], reason: str, text: str
) -> None:
    for name in given.get("classes", ("tonnage",)):
        driver = given.get("driver", names.DRIVER)
        await world.classed(name, default=True, driver=driver, parameters=given.get("parameters"))
    claim = given.get("claim", "bound")
    if claim == "unbound":
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        await world.kube.create(CLAIMS, {"metadata": {"name": "data"}, "spec": spec}, "default")
    elif claim != "missing":
        await world.bound(volume={"local": {"path": "/x"}, "nodeAffinity": _ON_N1} if claim == "local" else None)
    if claim == "deleting":
        await world.kube.delete(CLAIMS, "data", "default")
    await world.snapshot(of_class="tonnage" if given.get("named", True) else "")
    assert await controller.settled() == ["PATCH namespaces/default/volumesnapshots/monday/status"]
    await world.kube.patch(SNAPSHOTS, "monday", {"metadata": {"labels": {"a": "b"}}}, "default")
    controller.loop.enqueue("default/monday")
    assert await controller.settled() == []
    shown = await world.get()
    assert shown is not None
    assert shown.status.error is not None
    assert text in shown.status.error.message
    assert [(kind, why) for _, kind, why, _ in await told()] == [("Warning", reason)]
    assert not shown.status.ready_to_use
    await world.kube.delete(SNAPSHOTS, "monday", "default")
    await controller.settled()
    assert await world.get() is None


_ON_N1 = {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["n1"]}]}]}}


async def test_what_was_missing_is_noticed_without_a_timer(world: World, controller: Controller) -> None:
    await world.snapshot(of_class="tonnage")
    await controller.settled()
    await world.classed()
    await controller.settled()
    shown = await world.get()
    assert shown is not None
    assert shown.status.error is not None
    assert "claim default/data does not exist" in shown.status.error.message
    await world.bound()
    await controller.settled()
    shown = await world.get()
    assert shown is not None
    assert (shown.status.ready_to_use, shown.status.error) == (True, None)


async def test_what_the_driver_rejects_is_shown_and_can_be_deleted(
    world: World, controller: Controller, told: Told
) -> None:
    """The agent of our own driver emits it; that of another does not."""
    world.rejection = "pool fast on node n1 has no room"
    for name, driver in (("tonnage", names.DRIVER), ("other", OTHER)):
        await world.classed(name, driver=driver)
        await world.bound(f"data-{name}", driver=driver)
        source = {"persistentVolumeClaimName": f"data-{name}"}
        await world.snapshot(name, source=source, of_class=name)
    await controller.settled()
    shown = await world.get("tonnage")
    assert shown is not None
    assert shown.status.error is not None
    assert (shown.status.ready_to_use, shown.status.error.message) == (False, world.rejection)
    failures = [about for about, _, reason, _ in await told() if reason == "SnapshotCreationFailed"]
    assert failures == ["other"]
    assert await controller.settled() == []
    for name in ("tonnage", "other"):
        await world.kube.delete(SNAPSHOTS, name, "default")
    await controller.settled()
    assert (await world.get("tonnage"), await world.get("other"), await world.contents()) == (None, None, [])


async def test_a_driver_of_others_is_told_before_its_content_is_deleted(world: World, controller: Controller) -> None:
    secrets = {
        "csi.storage.k8s.io/snapshotter-secret-name": "${volumesnapshot.name}-key",
        "csi.storage.k8s.io/snapshotter-secret-namespace": "${volumesnapshot.namespace}",
    }
    await world.classed("other", driver=OTHER, policy="Retain", parameters=secrets)
    await world.bound(driver=OTHER)
    made = await world.snapshot(of_class="other")
    await controller.settled()
    content = await world.content(content_name(made.metadata.uid))
    assert content is not None
    assert content.metadata.annotations == {
        "snapshot.storage.kubernetes.io/deletion-secret-name": "monday-key",
        "snapshot.storage.kubernetes.io/deletion-secret-namespace": "default",
    }
    await world.kube.patch(SNAPSHOT_CONTENTS, content.metadata.name, {"spec": {"deletionPolicy": "Delete"}})
    await world.kube.delete(SNAPSHOTS, "monday", "default")
    writes = await controller.settled(agents=False)
    assert [line.split()[0] for line in writes] == ["PATCH", "DELETE"]
    content = await world.content(content.metadata.name)
    assert content is not None
    assert content.metadata.annotations[BEING_DELETED] == "yes"


async def test_retained_contents_stay(world: World, controller: Controller) -> None:
    await world.classed(policy="Retain")
    await world.bound()
    made = await world.snapshot(of_class="tonnage")
    await controller.settled()
    await world.kube.delete(SNAPSHOTS, "monday", "default")
    assert await controller.settled() == ["PATCH namespaces/default/volumesnapshots/monday"]
    assert await world.get() is None
    assert await world.content(content_name(made.metadata.uid)) is not None
    assert len(world.storage) == 1
    await world.kube.delete(SNAPSHOT_CONTENTS, content_name(made.metadata.uid))
    await controller.settled()
    assert (await world.contents(), len(world.storage)) == ([], 1), "the data of a retained content is kept"


async def test_a_content_without_its_snapshot_is_never_deleted(world: World, controller: Controller) -> None:
    """A restored backup of the cluster's objects must not destroy data."""
    await world.existing("restored", uid="gone")
    await controller.settled()
    assert len(await world.contents()) == 1
    await world.classed()
    await world.bound()
    await world.snapshot(of_class="tonnage")  # of the same name, but not the same
    await controller.settled()
    await world.kube.delete(SNAPSHOTS, "monday", "default")
    await controller.settled()
    assert [content.metadata.name for content in await world.contents()] == ["restored"]


@pytest.mark.parametrize("first", ["content", "snapshot"])
@pytest.mark.parametrize("policy", ["Delete", "Retain"])
async def test_a_snapshot_that_exists_is_bound(
    world: World, controller: Controller, first: str, policy: str, told: Told
) -> None:
    source = {"volumeSnapshotContentName": "old"}
    if first == "content":
        await world.existing(policy=policy)
    made = await world.snapshot(source=source)
    await controller.settled()
    if first == "snapshot":
        assert "SnapshotContentMissing" in {reason for _, _, reason, _ in await told()}
        await world.existing(policy=policy)
    writes = await controller.settled()
    if first == "snapshot":
        assert writes == ["PATCH volumesnapshotcontents/old", "PATCH namespaces/default/volumesnapshots/monday/status"]
    content, shown = await world.content("old"), await world.get()
    assert content is not None
    assert shown is not None
    assert content.spec.volume_snapshot_ref.uid == made.metadata.uid
    assert (shown.status.ready_to_use, shown.status.bound_volume_snapshot_content_name) == (True, "old")
    await world.kube.delete(SNAPSHOTS, "monday", "default")
    await controller.settled()
    assert (await world.get() is None, len(await world.contents())) == (True, int(policy == "Retain"))


@pytest.mark.parametrize(
    ("to", "uid", "reason"),
    [("tuesday", "", "SnapshotContentMisbound"), ("monday", "another", "SnapshotContentMisbound")],
)
async def test_a_content_of_another_snapshot_is_not_taken(
    world: World, controller: Controller, told: Told, to: str, uid: str, reason: str
) -> None:
    await world.existing(to=to, uid=uid)
    await world.snapshot(source={"volumeSnapshotContentName": "old"})
    assert await controller.settled() == ["PATCH namespaces/default/volumesnapshots/monday/status"]
    assert reason in {why for _, _, why, _ in await told()}
    await world.kube.delete(SNAPSHOTS, "monday", "default")
    await controller.settled()
    assert (await world.get(), len(await world.contents())) == (None, 1)


async def test_a_snapshot_in_use_waits_for_its_claim(world: World, controller: Controller, told: Told) -> None:
    await world.classed()
    await world.bound()
    await world.snapshot(of_class="tonnage")
    await controller.settled()
    await world.restoring("monday")
    await world.kube.delete(SNAPSHOTS, "monday", "default")
    assert await controller.settled() == []
    assert [why for _, kind, why, _ in await told() if kind == "Warning"] == ["SnapshotDeletePending"]
    await world.kube.patch(CLAIMS, "copy", {"status": {"phase": "Bound"}}, "default", subresource="status")
    await controller.settled()
    assert (await world.get(), await world.contents()) == (None, [])


async def test_the_finalizer_of_an_earlier_provisioner_goes_with_the_snapshot(
    world: World, controller: Controller
) -> None:
    await world.classed()
    await world.bound()
    made = await world.snapshot(of_class="tonnage")
    await controller.settled()
    finalizers = [*made.metadata.finalizers, PROVISIONER_SOURCE]
    await world.kube.patch(SNAPSHOTS, "monday", {"metadata": {"finalizers": finalizers}}, "default")
    await world.kube.delete(SNAPSHOTS, "monday", "default")
    await controller.settled()
    assert (await world.get(), await world.contents()) == (None, [])


async def test_a_ready_snapshot_is_never_made_again(world: World, controller: Controller, told: Told) -> None:
    await world.classed()
    await world.bound()
    made = await world.snapshot(of_class="tonnage")
    await controller.settled()
    name = content_name(made.metadata.uid)
    await world.kube.patch(SNAPSHOT_CONTENTS, name, {"metadata": {"finalizers": None}})
    await world.kube.delete(SNAPSHOT_CONTENTS, name)
    assert await controller.settled() == ["PATCH namespaces/default/volumesnapshots/monday/status"]
    shown = await world.get()
    assert shown is not None
    assert (shown.status.ready_to_use, await world.contents()) == (False, [])
    assert "SnapshotContentMissing" in {why for _, _, why, _ in await told()}
    await world.kube.delete(SNAPSHOTS, "monday", "default")
    await controller.settled()
    assert await world.get() is None


async def test_it_begins_over_objects_that_are_known_already(
    world: World, kube: Client, events: EventRecorder, running: Running
) -> None:
    """The other loops of the process have watched claims and volumes for long; snapshots may be known too."""
    await world.classed()
    await world.bound()
    await world.snapshot(of_class="tonnage")
    async with AsyncExitStack() as stack:
        known = Informers(kube)
        stack.push_async_callback(known.close)
        kinds: list[Kind[Any]] = [VOLUMES, CLAIMS, SNAPSHOTS, SNAPSHOT_CONTENTS, SNAPSHOT_CLASSES]
        for kind in kinds:
            known.of(kind)
        known.start()
        await known.wait_synced()
        await stack.enter_async_context(running(SnapshotController(context(kube, known, events))))
        async with asyncio.timeout(60):
            while not await world.contents():
                await asyncio.sleep(0.01)


async def test_two_controllers_do_no_harm(
    world: World, controller: Controller, recording: Recording, kube: Client, events: EventRecorder, running: Running
) -> None:
    await world.classed()
    await world.bound()
    async with AsyncExitStack() as stack:
        second = Informers(kube)
        second.start()
        stack.push_async_callback(second.close)
        await stack.enter_async_context(running(SnapshotController(context(kube, second, events))))
        await world.snapshot(of_class="tonnage")
        await controller.settled()
        shown = await world.get()
        assert shown is not None
        assert (shown.status.ready_to_use, len(await world.contents()), len(world.storage)) == (True, 1, 1)
        await world.kube.delete(SNAPSHOTS, "monday", "default")
        await controller.settled()
        assert (await world.get(), await world.contents(), world.storage) == (None, [], {})


async def test_a_class_that_goes_later_does_not_matter(world: World, controller: Controller) -> None:
    await world.classed()
    await world.bound()
    await world.snapshot(of_class="tonnage")
    await controller.settled()
    await world.kube.delete(SNAPSHOT_CLASSES, "tonnage")
    await world.kube.delete(SNAPSHOTS, "monday", "default")
    await controller.settled()
    assert (await world.get(), await world.contents()) == (None, [])
