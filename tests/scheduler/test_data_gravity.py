"""Copies of claims go where their source is, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.scheduler.cycle import Decision, Refusal
from tonnage.scheduler.explain import explain
from tonnage.scheduler.filters import Cause

NO_SOURCE = "2 node(s) did not have the volume that a claim is to be a copy of"


def copy_of(name: str, **more: Any) -> dict[str, Any]:
    return {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": name, **more}}


@pytest.fixture
def stage(world: Any) -> Any:
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
    refusal = stage.decide(pod)
    assert isinstance(refusal, Refusal)
    assert refusal.message == (f"0/3 nodes are available: 1 node(s) did not have enough free storage, {NO_SOURCE}.")
    assert refusal.causes == Cause.STORAGE | Cause.BINDING
    stage.capacity("node-2", "1Gi")
    decision = stage.decide(pod)
    assert isinstance(decision, Decision)
    assert decision.node == "node-2"


def test_it_is_explained(stage: Any) -> None:
    stage.capacity("node-2", "0")
    stage.claim("c", **copy_of("a"))
    found = explain(stage.cluster, stage.pod("p", claims=["c"]), written={}, scheduler="default-scheduler")
    told = {answer.node: answer.lacks for answer in found.nodes}
    text = "node(s) did not have the volume that a claim is to be a copy of: claim c of claim a (volume pv-a)"
    assert told["node-1"] == told["node-3"] == [text]
    assert "free 0" in told["node-2"][0]
