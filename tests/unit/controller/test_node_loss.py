"""Volumes of nodes that are gone: what is kept, what is released and when, and what is never touched."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.controller.contexts import context
from tests.unit.fixture_types import Running, Told

from tonnage.base.errors import ApiNotFoundError
from tonnage.base.observe import metrics
from tonnage.controller.node_loss import GoneNodes, GoneSnapshots
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.group_snapshot import GROUP_CONTENT_BOUND, GROUP_HANDLE
from tonnage.kubernetes.api.kinds import (
    CLAIMS,
    GROUP_CLASSES,
    GROUP_CONTENTS,
    NODES,
    SNAPSHOT_CLASSES,
    SNAPSHOT_CONTENTS,
    STORAGE_CLASSES,
    VOLUMES,
)
from tonnage.kubernetes.api.snapshot import CONTENT_BOUND, MANAGED_BY
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.testing.clock import ManualClock
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
Settle = Callable[[], Awaitable[None]]
HOUR = 3600.0


class Cluster:
    """One node that stays, one that goes, and a bound volume on the latter."""

    def __init__(
        self, kube: Client, informers: Informers, events: EventRecorder, clock: Any, settle: Settle, makers: Any
    ) -> None:
        self.kube, self.clock, self.settle = kube, clock, settle
        self._informers, self._events = informers, events
        self._make_claim, self._make_volume = makers
        self.controller = self.restarted()

    def restarted(self) -> GoneNodes:
        """A controller that has just begun."""
        return GoneNodes(context(self.kube, self._informers, self._events, clock=self.clock))

    async def bound(self, storage_class: str = "hour", **volume: Any) -> None:
        claim = await self._make_claim("c", storageClassName=storage_class, volumeName="v")
        place = {"key": names.TOPOLOGY_NODE, "operator": "In", "values": ["lost"]}
        spec = {
            "storageClassName": storage_class,
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "c", "uid": claim.metadata.uid},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [place]}]}},
            "persistentVolumeReclaimPolicy": "Delete",
            **volume,
        }  # fmt: skip
        await self._make_volume("v", labels={names.NODE_LABEL: "lost"}, **spec)
        await self.phase("Bound")

    async def phase(self, phase: str) -> None:
        await self.kube.patch(VOLUMES, "v", {"status": {"phase": phase}}, subresource="status")

    async def lose(self) -> None:
        await self.kube.delete(NODES, "lost")

    async def back(self) -> None:
        await self.kube.create(NODES, {"metadata": {"name": "lost"}})

    async def look(self, controller: GoneNodes | None = None) -> float | None:
        await self.settle()
        return await (controller or self.controller).reconcile("v")

    async def since(self) -> str | None:
        return (await self.kube.get(VOLUMES, "v")).metadata.annotations.get(names.NODE_GONE_SINCE)

    async def has_claim(self) -> bool:
        try:
            return not (await self.kube.get(CLAIMS, "c", "default")).metadata.deleting
        except ApiNotFoundError:
            return False


@pytest.fixture
async def cluster(
    kube: Client,
    informers: Informers,
    events: EventRecorder,
    manual_clock: ManualClock,
    settle: Settle,
    make_class: Make,
    make_claim: Make,
    make_volume: Make,
) -> Cluster:
    await make_class("hour", parameters={names.ON_NODE_GONE: "release-after:1h"})
    await make_class("kept", parameters={names.ON_NODE_GONE: "keep"})
    await make_class("silent")
    await make_class("unclear", parameters={names.ON_NODE_GONE: "soon"})
    for name in ("stays", "lost"):
        await kube.create(NODES, {"metadata": {"name": name}})
    return Cluster(kube, informers, events, manual_clock, settle, (make_claim, make_volume))


async def test_the_claim_is_released_after_the_time_and_the_volume_is_remembered(cluster: Cluster, told: Told) -> None:
    await cluster.bound()
    assert await cluster.look() is None
    assert await cluster.since() is None
    await cluster.lose()
    assert await cluster.look() == HOUR
    assert await cluster.since() == "2027-01-15T08:00:00Z"
    cluster.clock.now += HOUR - 1
    assert await cluster.look() == 1.0
    assert await cluster.has_claim()
    cluster.clock.now += 1
    assert await cluster.look() is None
    assert not await cluster.has_claim()
    volume = await cluster.kube.get(VOLUMES, "v")  # its node's agent erases it, should the node come back
    assert not volume.metadata.deleting
    seen = [(who, reason, text) for who, _, reason, text in await told()]
    assert [(who, reason) for who, reason, _ in seen] == [("c", "NodeGone"), ("v", "NodeGone"), ("v", "NodeGone")]
    assert "if it stays away for 3600 s, claim default/c is deleted, as class hour says" in " ".join(
        t for *_, t in seen
    )


async def test_the_time_goes_on_while_no_controller_runs(cluster: Cluster) -> None:
    await cluster.bound()
    await cluster.lose()
    await cluster.look()
    cluster.clock.now += HOUR / 2
    assert await cluster.look(cluster.restarted()) == HOUR / 2
    cluster.clock.now += HOUR
    assert await cluster.look(cluster.restarted()) is None
    assert not await cluster.has_claim()


async def test_a_node_that_comes_back_in_time_keeps_its_volumes(cluster: Cluster) -> None:
    await cluster.bound()
    await cluster.lose()
    await cluster.look()
    cluster.clock.now += HOUR / 2
    await cluster.back()
    assert await cluster.look() is None
    assert await cluster.since() is None
    await cluster.lose()
    cluster.clock.now += HOUR
    assert await cluster.look() == HOUR  # it begins anew
    assert await cluster.has_claim()


async def test_a_node_out_of_service_is_gone(cluster: Cluster) -> None:
    await cluster.bound()
    taint = {"key": names.OUT_OF_SERVICE_TAINT, "value": "nodeshutdown", "effect": "NoExecute"}
    await cluster.kube.patch(NODES, "lost", {"spec": {"taints": [taint]}})
    assert await cluster.look() == HOUR
    await cluster.kube.patch(NODES, "lost", {"spec": {"taints": None}})
    await cluster.look()
    assert await cluster.since() is None


@pytest.mark.parametrize("storage_class", ["kept", "silent", "unclear", "no-such-class"])
async def test_kept_is_what_no_class_releases(cluster: Cluster, storage_class: str) -> None:
    await cluster.bound(storage_class)
    await cluster.lose()
    for _ in range(2):
        assert await cluster.look() is None
        cluster.clock.now += 100 * HOUR
    assert await cluster.since() is None
    assert await cluster.has_claim()


@pytest.mark.parametrize(
    "volume",
    [
        pytest.param({"persistentVolumeReclaimPolicy": "Retain"}, id="retained"),
        pytest.param({"nodeAffinity": None}, id="reached from everywhere"),
        pytest.param(
            {"nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["stays"]}]}]}}},
            id="reached from another node",
        ),
        pytest.param({"csi": {"driver": "foreign.example.com", "volumeHandle": "h"}}, id="of another driver"),
    ],
)  # fmt: skip
async def test_what_is_never_released(cluster: Cluster, volume: dict[str, Any]) -> None:
    await cluster.bound(**volume)
    await cluster.lose()
    for _ in range(2):
        assert await cluster.look() is None
        cluster.clock.now += 100 * HOUR
    assert await cluster.has_claim()


async def test_nothing_is_released_where_there_is_no_node_at_all(cluster: Cluster) -> None:
    await cluster.bound()
    await cluster.lose()
    await cluster.kube.delete(NODES, "stays")
    assert await cluster.look() is None
    assert await cluster.since() is None


async def test_the_last_look_is_a_live_one(cluster: Cluster) -> None:
    await cluster.bound()
    await cluster.lose()
    await cluster.look()
    await cluster.settle()
    cluster.clock.now += 2 * HOUR
    await cluster.back()  # and the watch has not told it yet
    assert await cluster.controller.reconcile("v") is None
    assert await cluster.has_claim()


async def test_a_clock_that_jumps_releases_nothing(cluster: Cluster) -> None:
    await cluster.bound()
    await cluster.lose()
    await cluster.look()
    steady = cluster.clock.now
    cluster.clock.monotonic = lambda: steady
    cluster.clock.now += 1000 * HOUR
    assert await cluster.look() == HOUR
    assert await cluster.has_claim()


async def test_a_note_from_the_future_counts_from_now(cluster: Cluster) -> None:
    await cluster.bound()
    await cluster.lose()
    note = {"metadata": {"annotations": {names.NODE_GONE_SINCE: "2099-01-01T00:00:00Z"}}}
    await cluster.kube.patch(VOLUMES, "v", note)
    assert await cluster.look() == HOUR


async def test_another_claim_of_that_name_is_left_alone(cluster: Cluster) -> None:
    await cluster.bound()
    await cluster.lose()
    await cluster.look()
    await cluster.kube.delete(CLAIMS, "c", "default")
    await cluster.kube.patch(CLAIMS, "c", {"metadata": {"finalizers": None}}, "default")
    await cluster._make_claim("c", storageClassName="hour")
    cluster.clock.now += 2 * HOUR
    assert await cluster.look() is None
    assert await cluster.has_claim()


async def test_released_volumes_need_nothing_more(cluster: Cluster) -> None:
    await cluster.bound()
    await cluster.lose()
    await cluster.look()
    await cluster.phase("Released")
    before = await cluster.kube.get(VOLUMES, "v")
    assert await cluster.look() is None
    await cluster.back()
    assert await cluster.look() is None
    assert await cluster.kube.get(VOLUMES, "v") == before


async def test_it_sees_by_itself_what_happens_to_nodes(
    cluster: Cluster, running: Running, eventually: Eventually, make_class: Make
) -> None:
    await cluster.bound("later")

    async def noted() -> bool:
        return await cluster.since() is not None

    async def forgotten() -> bool:
        return await cluster.since() is None

    async def counted() -> bool:
        return bool(metrics.GONE._value.get() == 1)

    async with running(cluster.controller):
        await cluster.lose()
        await eventually(counted)
        await make_class("later", parameters={names.ON_NODE_GONE: "release-after:1h"})
        await eventually(noted)
        await cluster.back()
        await eventually(forgotten)
        await cluster.lose()
        await eventually(noted)
        await cluster.kube.delete(STORAGE_CLASSES, "later")
        await cluster.kube.patch(VOLUMES, "v", {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
        await eventually(forgotten)


class Snapshots:
    """One node that stays, one that goes, and a content on the latter."""

    def __init__(self, kube: Client, informers: Informers, events: EventRecorder, clock: Any, settle: Settle) -> None:
        self.kube, self.clock, self.settle = kube, clock, settle
        self.controller = GoneSnapshots(context(kube, informers, events, clock=clock))

    async def content(self, **more: Any) -> None:
        meta = {"name": "c", "finalizers": [CONTENT_BOUND, "example.com/x"], "labels": {MANAGED_BY: "lost"}}
        spec = {
            "driver": names.DRIVER,
            "deletionPolicy": "Delete",
            "source": {"volumeHandle": "p/v"},
            "volumeSnapshotClassName": "hour",
            "volumeSnapshotRef": {"namespace": "default", "name": "s", "uid": "u"},
            **more,
        }
        await self.kube.create(SNAPSHOT_CONTENTS, {"metadata": meta, "spec": spec})

    async def look(self) -> float | None:
        await self.settle()
        return await self.controller.reconcile("volumesnapshotcontents/c")

    async def is_kept(self) -> bool:
        await self.settle()
        return CONTENT_BOUND in (await self.kube.get(SNAPSHOT_CONTENTS, "c")).metadata.finalizers


@pytest.fixture
async def snapshots(
    kube: Client, informers: Informers, events: EventRecorder, manual_clock: ManualClock, settle: Settle
) -> Snapshots:
    for node in ("lost", "other"):
        await kube.create(NODES, {"metadata": {"name": node}})
    for name, parameters in (("hour", {names.ON_NODE_GONE: "release-after:1h"}), ("keep", {})):
        body = {"driver": names.DRIVER, "deletionPolicy": "Delete", "parameters": parameters}
        await kube.create(SNAPSHOT_CLASSES, {"metadata": {"name": name}, **body})
    return Snapshots(kube, informers, events, manual_clock, settle)


async def test_a_deleted_snapshot_of_a_lost_node_is_let_go_after_the_time_of_its_class(
    snapshots: Snapshots, told: Told
) -> None:
    await snapshots.content()
    await snapshots.kube.delete(NODES, "lost")
    assert await snapshots.look() is None, "nobody deletes it"
    await snapshots.kube.delete(SNAPSHOT_CONTENTS, "c")
    assert await snapshots.look() == HOUR
    snapshots.clock.now += HOUR - 1
    assert await snapshots.look() == pytest.approx(1, abs=1)
    assert await snapshots.is_kept()
    snapshots.clock.now += 2
    assert await snapshots.look() is None
    content = await snapshots.kube.get(SNAPSHOT_CONTENTS, "c")
    assert content.metadata.finalizers == ["example.com/x"]
    assert [about for about, _, reason, _ in await told() if reason == "NodeGone"] == ["c", "c", "s", "s"]


@pytest.mark.parametrize("why", ["node is there", "node returns", "class keeps", "another driver", "no nodes at all"])
async def test_snapshots_that_are_not_let_go(snapshots: Snapshots, why: str) -> None:
    more = {"class keeps": {"volumeSnapshotClassName": "keep"}, "another driver": {"driver": "other.example"}}
    await snapshots.content(**more.get(why, {}))
    await snapshots.kube.delete(SNAPSHOT_CONTENTS, "c")
    if why != "node is there":
        await snapshots.kube.delete(NODES, "lost")
    if why == "no nodes at all":
        await snapshots.kube.delete(NODES, "other")
    await snapshots.look()
    if why == "node returns":
        await snapshots.kube.create(NODES, {"metadata": {"name": "lost"}})
        await snapshots.look()
        assert names.NODE_GONE_SINCE not in (await snapshots.kube.get(SNAPSHOT_CONTENTS, "c")).metadata.annotations
    for _ in range(3):
        snapshots.clock.now += HOUR
        await snapshots.look()
    assert await snapshots.is_kept()


async def test_a_group_of_a_lost_node_is_released_with_its_members_by_the_class_of_the_group(
    snapshots: Snapshots, told: Told
) -> None:
    kube = snapshots.kube
    body = {"driver": names.DRIVER, "deletionPolicy": "Delete"}
    released = {names.ON_NODE_GONE: "release-after:1h"}
    await kube.create(GROUP_CLASSES, {"metadata": {"name": "together"}, **body, "parameters": released})
    ref = {"namespace": "default", "name": "g", "uid": "u"}
    spec = {**body, "source": {"volumeHandles": ["p/v"]}, "volumeGroupSnapshotClassName": "together"}
    meta = {"name": "gc", "finalizers": [GROUP_CONTENT_BOUND], "labels": {MANAGED_BY: "lost"}}
    await kube.create(GROUP_CONTENTS, {"metadata": meta, "spec": {**spec, "volumeGroupSnapshotRef": ref}})
    status = {"volumeGroupSnapshotHandle": "h"}
    await kube.patch(GROUP_CONTENTS, "gc", {"status": status}, subresource="status")
    await snapshots.content(volumeSnapshotClassName=None)
    await kube.patch(SNAPSHOT_CONTENTS, "c", {"metadata": {"annotations": {GROUP_HANDLE: "h"}}})
    await kube.delete(NODES, "lost")
    await kube.delete(SNAPSHOT_CONTENTS, "c")
    assert await snapshots.look() == HOUR
    snapshots.clock.now += HOUR + 1
    assert await snapshots.look() is None
    assert not await snapshots.is_kept()
    group = f"{GROUP_CONTENTS.plural}/gc"
    assert await snapshots.controller.reconcile(group) is None, "it is not deleted"
    await kube.delete(GROUP_CONTENTS, "gc")
    await snapshots.settle()
    assert await snapshots.controller.reconcile(group) == HOUR
    snapshots.clock.now += HOUR + 1
    await snapshots.settle()
    assert await snapshots.controller.reconcile(group) is None
    with pytest.raises(ApiNotFoundError):
        await kube.get(GROUP_CONTENTS, "gc")
    reported = [about for about, _, reason, _ in await told() if reason == "NodeGone"]
    assert sorted(reported) == ["c", "c", "g", "g", "gc", "gc", "s", "s"]


async def test_a_member_of_a_group_that_is_gone_or_of_another_node_stays(snapshots: Snapshots) -> None:
    """Ids of groups are unique on their node only."""
    kube = snapshots.kube
    body = {"driver": names.DRIVER, "deletionPolicy": "Delete"}
    released = {names.ON_NODE_GONE: "release-after:1h"}
    await kube.create(GROUP_CLASSES, {"metadata": {"name": "together"}, **body, "parameters": released})
    spec = {**body, "source": {"volumeHandles": ["p/v"]}, "volumeGroupSnapshotClassName": "together"}
    meta = {"name": "gc", "finalizers": [GROUP_CONTENT_BOUND], "labels": {MANAGED_BY: "other"}}
    ref = {"namespace": "default", "name": "g", "uid": "u"}
    await kube.create(GROUP_CONTENTS, {"metadata": meta, "spec": {**spec, "volumeGroupSnapshotRef": ref}})
    await kube.patch(GROUP_CONTENTS, "gc", {"status": {"volumeGroupSnapshotHandle": "h"}}, subresource="status")
    await snapshots.content(volumeSnapshotClassName=None)
    await kube.patch(SNAPSHOT_CONTENTS, "c", {"metadata": {"annotations": {GROUP_HANDLE: "h"}}})
    await kube.delete(NODES, "lost")
    await kube.delete(SNAPSHOT_CONTENTS, "c")
    for _ in range(2):
        assert await snapshots.look() is None
        snapshots.clock.now += 2 * HOUR
    assert await snapshots.is_kept()
