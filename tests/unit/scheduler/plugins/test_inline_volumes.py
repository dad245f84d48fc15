"""Pods with inline volumes go where there is room for them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.scheduler.world import World

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.decode import convert
from tonnage.kubernetes.api.pods import Pod
from tonnage.scheduler.explain import explain
from tonnage.scheduler.framework.plugin import Diagnosis
from tonnage.scheduler.framework.pod_info import DEFAULT, InlineUse, compile_ask, inline_uses
from tonnage.scheduler.plugins.inline_volumes import NO_INLINE

GIB = 1 << 30


def offer(
    world: World,
    node: str,
    free: str,
    *,
    inline: str = "",
    pool: str = "scratch",
    default: bool = False,
    tier: bool = False,
) -> None:
    """What an agent publishes of one pool."""
    body = {"storageClassName": f"of-{pool}", "nodeTopology": {"matchLabels": {names.HOSTNAME_LABEL: node}}}
    labels = {names.CAPACITY_DRIVER: names.DRIVER, names.POOL_LABEL: pool}
    labels |= {names.DEFAULT_POOL: "true"} if default else {}
    labels |= {names.TIER: "32"} if tier else {}
    notes = {names.OBSERVED_CLAIM_VERSION: "0"} | ({names.INLINE_CAPACITY: inline} if inline else {})
    meta = {"labels": labels, "annotations": notes}
    found = world.read(kinds.CAPACITIES, f"{pool}-{node}", {**body, "capacity": free}, names.SYSTEM_NAMESPACE, **meta)
    world.capacities.put(found)


def inline(world: World, name: str, *sizes: str, claims: tuple[str, ...] = (), phase: str = "", **more: str) -> Any:
    """A pod with inline volumes. more: attributes; driver; node, where it is."""
    driver, node = more.pop("driver", names.DRIVER), more.pop("node", "")
    volumes = [{"name": f"c-{c}", "persistentVolumeClaim": {"claimName": c}} for c in claims]
    for number, size in enumerate(sizes):
        attributes = {"size": size, **more} if size else more
        volumes.append({"name": f"v{number}", "csi": {"driver": driver, "volumeAttributes": attributes}})
    body = {
        "spec": {"containers": [{"name": "main"}], "volumes": volumes, "nodeName": node},
        "status": {"phase": phase},
    }
    return world.read(kinds.PODS, name, body, "default")


@pytest.fixture
def stage(world: World) -> Any:
    """Two nodes."""
    for node in ("node-1", "node-2"):
        world.node(node, labels={names.HOSTNAME_LABEL: node})
    return world


def test_they_go_where_there_is_room(stage: Any) -> None:
    offer(stage, "node-1", "3Gi")
    offer(stage, "node-2", "9Gi")
    assert {stage.place(inline(stage, f"p{n}", "4Gi")) for n in range(2)} == {"node-2"}
    assert stage.place(inline(stage, "p2", "4Gi")) == f"0/2 nodes are available: 2 {NO_INLINE}."
    assert stage.place(inline(stage, "p3", "2Gi", "1Gi")) == "node-1"


def test_what_is_kept_for_them_counts(stage: Any) -> None:
    offer(stage, "node-1", "0", inline="5Gi")
    offer(stage, "node-2", "4Gi")
    assert stage.place(inline(stage, "p", "5Gi")) == "node-1"


@pytest.mark.parametrize("size", ["", "much"])
def test_a_size_that_nobody_can_read_is_for_the_driver_to_reject(stage: Any, size: str) -> None:
    offer(stage, "node-1", "0")
    offer(stage, "node-2", "0")
    assert stage.place(inline(stage, "p", size)) in ("node-1", "node-2")


def test_nothing_is_known_of_other_drivers_and_of_tiers(stage: Any) -> None:
    offer(stage, "node-1", "1Gi")
    offer(stage, "node-2", "1Gi", tier=True)
    assert stage.place(inline(stage, "p", "4Gi")) == "node-2"
    assert stage.place(inline(stage, "q", "4Gi", driver="other.example.com")) in ("node-1", "node-2")


def test_pods_that_have_started_are_counted_by_what_is_published(stage: Any) -> None:
    offer(stage, "node-1", "8Gi")
    slot = stage.cluster.columns.slots["node-1"]
    for phase, free in (("Pending", 3), ("Running", 8)):
        stage.cluster.pod_placed(inline(stage, "p", "5Gi", phase=phase, node="node-1"))
        assert stage.cycle.fits_on(compile_ask(inline(stage, "q", f"{free}Gi")), slot)
        assert not stage.cycle.fits_on(compile_ask(inline(stage, "q", f"{free + 1}Gi")), slot)


def test_pools_are_told_apart(stage: Any) -> None:
    offer(stage, "node-1", "1Gi", pool="slow", default=True)
    offer(stage, "node-1", "9Gi", pool="fast")
    offer(stage, "node-2", "5Gi", pool="slow", default=True)
    offer(stage, "node-2", "2Gi", pool="fast")
    assert stage.place(inline(stage, "named", "4Gi", pool="fast")) == "node-1"
    assert stage.place(inline(stage, "default", "4Gi")) == "node-2"
    assert stage.place(inline(stage, "some", "5Gi", kind="image")) == "node-1"
    assert stage.place(inline(stage, "unknown", "50Gi", pool="nowhere")) in ("node-1", "node-2")


def test_claims_of_the_same_pod_are_counted_with_them(stage: Any) -> None:
    stage.storage_class("of-scratch")
    offer(stage, "node-1", "6Gi", inline="8Gi")
    offer(stage, "node-2", "4Gi", inline="9Gi")
    stage.claim("c", "4Gi", storageClassName="of-scratch")
    assert stage.place(inline(stage, "p", "5Gi", claims=("c",))) == "node-2"


def test_a_rejected_one_is_woken_by_room(stage: Any) -> None:
    offer(stage, "node-1", "1Gi")
    offer(stage, "node-2", "1Gi")
    pod = inline(stage, "p", "4Gi")
    stage.queue.add(pod.metadata.uid, compile_ask(pod), stage.now)
    entry = stage.queue.pop()
    outcome = stage.decide(pod)
    assert isinstance(outcome, Diagnosis)
    stage.queue.reject(entry, outcome.causes, stage.now, needs=outcome.needs)
    stage.now += 60
    offer(stage, "node-2", "1Gi", inline="4Gi")
    assert stage.queue.pop() is entry
    assert stage.place(pod) == "node-2"


def test_why_tells_what_is_lacking(stage: Any) -> None:
    offer(stage, "node-1", "1Gi", inline="3Gi")
    offer(stage, "node-2", "9Gi")
    found = explain(stage.cycle, inline(stage, "p", "4Gi"), written={}, scheduler="default-scheduler")
    first = next(answer for answer in found.nodes if answer.node == "node-1")
    assert first.lacks == [f"{NO_INLINE}: they ask 4Gi of pool scratch, 3Gi are free for them"]


def test_writable_volumes_of_images_are_in_the_pools_of_our_driver() -> None:
    source = {"driver": "image.csi.k8s.io", "volumeAttributes": {"image": "a", "size": "2Gi"}}
    pod = convert({"metadata": {"name": "p"}, "spec": {"volumes": [{"name": "v", "csi": source}]}}, Pod)
    assert inline_uses(pod) == (InlineUse(names.DRIVER, DEFAULT, 2 << 30),)
