"""Copies of claims go where their source is, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.scheduler.world import World

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.snapshot import MANAGED_BY
from tonnage.scheduler.explain import explain
from tonnage.scheduler.framework.plugin import Diagnosis, RejectionCause, SchedulingDecision

NO_SOURCE = "2 node(s) did not have the data source of a claim"


def copy_of(name: str, **more: Any) -> dict[str, Any]:
    return {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": name, **more}}


@pytest.fixture
def stage(world: World) -> Any:
    """Three nodes with 10Gi each; claim "a" is bound to a volume of node-2."""
    world.storage_class()
    for name in ("node-1", "node-2", "node-3"):
        world.node(name)
        world.capacity(name, "10Gi")
    world.volume("pv-a", node="node-2", claim="a", phase="Bound")
    world.bound_claim("a", "pv-a")
    return world


def test_a_copy_and_its_siblings_go_to_the_source(stage: Any) -> None:
    for n in range(4):
        stage.claim(f"copy-{n}", **copy_of("a"))
        stage.claim(f"other-{n}")
        assert stage.place(stage.pod(f"p-{n}", claims=[f"copy-{n}", f"other-{n}"])) == "node-2"


@pytest.mark.parametrize(
    "source",
    [
        copy_of("unbound"),
        copy_of("missing"),
        copy_of("a", namespace="elsewhere"),
        {"dataSourceRef": {"apiGroup": "images.example.com", "kind": "Image", "name": "a"}},
    ],
)
def test_what_is_nowhere_in_particular_goes_anywhere(stage: Any, source: dict[str, Any]) -> None:
    stage.claim("unbound")
    for name in ("node-1", "node-2"):
        stage.capacity(name, "0")
    stage.claim("c", **source)
    assert stage.place(stage.pod("p", claims=["c"])) == "node-3"


def test_no_room_at_the_source_says_so_and_room_there_helps(stage: Any) -> None:
    stage.capacity("node-2", "0")
    stage.claim("c", **copy_of("a"))
    pod = stage.pod("p", claims=["c"])
    rejection = stage.decide(pod)
    assert isinstance(rejection, Diagnosis)
    assert rejection.message == (f"0/3 nodes are available: 1 node(s) did not have enough free storage, {NO_SOURCE}.")
    assert rejection.causes == RejectionCause.STORAGE | RejectionCause.BINDING
    stage.capacity("node-2", "1Gi")
    decision = stage.decide(pod)
    assert isinstance(decision, SchedulingDecision)
    assert decision.node == "node-2"


def test_it_is_explained(stage: Any) -> None:
    stage.capacity("node-2", "0")
    stage.claim("c", **copy_of("a"))
    found = explain(stage.cycle, stage.pod("p", claims=["c"]), written={}, scheduler="default-scheduler")
    told = {answer.node: answer.lacks for answer in found.nodes}
    text = "node(s) did not have the data source of a claim: claim c of claim a (volume pv-a)"
    assert told["node-1"] == told["node-3"] == [text]
    assert "free 0" in told["node-2"][0]


FOREIGN = {"dataSourceRef": {"apiGroup": "images.example.com", "kind": "Image", "name": "a"}}


def left(world: World, node: str) -> int:
    (offer,) = world.cluster.published.on(node)["late"]
    return int(offer.left) >> 30


@pytest.mark.parametrize("counted", [None, 0])
def test_a_volume_that_a_populator_fills_counts_once(stage: Any, counted: int | None) -> None:
    """By the claim that the pod uses, until the populator's own claim is on that node for the same size."""
    stage.capacity("node-1", "10Gi", counted=counted)
    for name in ("node-2", "node-3"):
        stage.capacity(name, "5Gi")
    stage.claim("c", "6Gi", **FOREIGN)
    assert stage.place(stage.pod("p", claims=["c"])) == "node-1", "compared as any claim"
    stage.send("c", "node-1")
    assert left(stage, "node-1") == 4

    stage.claim("prime-uid-c", "6Gi")
    version = stage.send("prime-uid-c", "node-1")
    if counted is not None:  # the agent's next number includes both: of the first it makes nothing
        stage.capacity("node-1", "10Gi", counted=version - 1)
    assert left(stage, "node-1") == 4
    stage.bound_claim("prime-uid-c", "pv-a", "6Gi")
    stage.capacity("node-1", "4Gi", counted=None if counted is None else version)
    stage.claim("c", "6Gi", annotations={names.SELECTED_NODE: "node-1"}, **FOREIGN)
    assert left(stage, "node-1") == 4, "nor is it counted anew"


def test_a_name_alone_takes_no_reservation_away(stage: Any) -> None:
    stage.claim("c", "6Gi", **FOREIGN)
    stage.place(stage.pod("p", claims=["c"]))
    node = stage.cluster.published.node_of("uid-c")
    stage.send("c", node)
    stage.claim("prime-uid-c", "1Gi")
    stage.send("prime-uid-c", node)
    assert left(stage, node) == 3


def restored(name: str) -> dict[str, Any]:
    return {"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name}}


def snapshot(world: World, name: str, *, node: str = "", volume: str = "pv-a") -> None:
    """A ready snapshot, with its content."""
    content, ref = f"snapcontent-uid-{name}", {"namespace": "default", "name": name, "uid": f"uid-{name}"}
    status = {"readyToUse": True, "boundVolumeSnapshotContentName": content}
    world.objects.snapshots.put(world.read(kinds.SNAPSHOTS, name, {"status": status}, "default"))
    spec = {"driver": names.DRIVER, "source": {"volumeHandle": volume}, "volumeSnapshotRef": ref}
    body = {"spec": spec, "status": {"readyToUse": True, "snapshotHandle": f"p/{name}"}}
    labels = {MANAGED_BY: node} if node else {}
    world.objects.contents.put(world.read(kinds.SNAPSHOT_CONTENTS, content, body, labels=labels))


@pytest.mark.parametrize("node", ["node-2", ""])
def test_a_restored_claim_and_its_siblings_go_to_the_snapshot(stage: Any, node: str) -> None:
    """The label of the content tells the node, else the volume that was snapshotted."""
    snapshot(stage, "monday", node=node)
    for n in range(4):
        stage.claim(f"copy-{n}", **restored("monday"))
        stage.claim(f"other-{n}")
        assert stage.place(stage.pod(f"p-{n}", claims=[f"copy-{n}", f"other-{n}"])) == "node-2"


def test_a_full_node_of_a_snapshot_is_explained(stage: Any) -> None:
    snapshot(stage, "monday", node="node-2", volume="p/gone")
    stage.capacity("node-2", "0")
    stage.claim("c", **restored("monday"))
    pod = stage.pod("p", claims=["c"])
    rejection = stage.decide(pod)
    assert isinstance(rejection, Diagnosis)
    assert rejection.message == (f"0/3 nodes are available: 1 node(s) did not have enough free storage, {NO_SOURCE}.")
    found = explain(stage.cycle, pod, written={}, scheduler="default-scheduler")
    told = {answer.node: answer.lacks for answer in found.nodes}
    text = "node(s) did not have the data source of a claim: claim c of snapshot monday (node node-2)"
    assert told["node-1"] == told["node-3"] == [text]
    assert "free 0" in told["node-2"][0]
