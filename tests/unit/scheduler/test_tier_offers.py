"""Offers of a tier: each node that they select has so much, and its reservations are its own."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.scheduler.world import World

from tonnage.kubernetes.api import kinds, names
from tonnage.scheduler.framework.pod_info import compile_ask
from tonnage.scheduler.shortfalls import ShortfallSearch

NODES = ("node-1", "node-2")
GI = 1 << 30


def tier_object(world: World, value: str = "8Gi", storage_class: str = "late") -> None:
    key = names.tier_label(storage_class)
    body = {
        "storageClassName": storage_class,
        "nodeTopology": {"matchLabels": {key: value}},
        "capacity": value,
        "maximumVolumeSize": value,
    }
    labels = {names.TIER: value, names.POOL_LABEL: names.DRIVER}
    name = f"tier-{storage_class}-{value}"
    world.capacities.put(world.read(kinds.CAPACITIES, name, body, names.SYSTEM_NAMESPACE, labels=labels))


def labelled(world: World, node: str, value: str | None = "8Gi", *classes: str) -> None:
    world.node(node, labels={names.tier_label(name): value for name in classes or ("late",)} if value else {})


@pytest.fixture
def stage(world: World) -> Any:
    """Two nodes in a tier of 8Gi."""
    world.storage_class()
    for node in NODES:
        labelled(world, node)
    tier_object(world)
    return world


def left(world: World, node: str, storage_class: str = "late") -> int:
    offers = world.cluster.published.on(node).get(storage_class, ())
    return max((offer.left // GI for offer in offers), default=-1)


def place(world: World, claim: str, size: str, **more: Any) -> str:
    world.claim(claim, size, **more)
    return str(world.place(world.pod(f"pod-of-{claim}", claims=[claim])))


def test_every_node_has_all_of_it(stage: Any) -> None:
    placed = {place(stage, f"c{n}", "8Gi") for n in range(2)}

    assert placed == set(NODES)
    assert [left(stage, node) for node in NODES] == [0, 0]
    assert "did not have enough free storage" in place(stage, "c2", "1Gi")


def test_a_reservation_ends_with_the_binding(stage: Any) -> None:
    node = place(stage, "a", "6Gi")
    stage.send("a", node)
    assert left(stage, node) == 2

    stage.claim("a", "6Gi", annotations={names.SELECTED_NODE: node, names.BIND_COMPLETED: "yes"}, volumeName="pv-a")

    assert left(stage, node) == 8
    assert stage.cluster.published.outstanding() == 0


def test_an_object_of_its_own_holds(stage: Any) -> None:
    stage.capacity("node-1", "20Gi", counted=0, pool="scratch")

    assert left(stage, "node-1") == 20
    assert place(stage, "large", "12Gi") == "node-1"
    assert left(stage, "node-1") == 8
    stage.cluster.published.remove(f"{names.SYSTEM_NAMESPACE}/late-node-1")
    assert left(stage, "node-1") == -4, "what was promised stays promised in the tier"


def test_a_label_that_goes_takes_the_room_away_and_one_that_comes_wakes(stage: Any) -> None:
    labelled(stage, "node-1", None)
    assert left(stage, "node-1") == -1
    assert place(stage, "a", "8Gi") == "node-2"

    tier_object(stage, "16Gi")
    labelled(stage, "node-2", "16Gi")

    assert left(stage, "node-2") == 8, "counted in the new tier too"


def test_classes_of_a_driver_share_their_tiers(world: World) -> None:
    """Which pools they are in, tiers do not tell: better to wait a moment than to promise twice."""
    for name in ("late", "fast"):
        world.storage_class(name)
        tier_object(world, "8Gi", name)
    labelled(world, "node-1", "8Gi", "late", "fast")

    assert place(world, "a", "5Gi") == "node-1"

    assert left(world, "node-1", "fast") == 3


def test_why_tells_of_a_tier_without_alarm(stage: Any) -> None:
    stage.claim("a", "12Gi")
    pod = stage.pod("p", claims=["a"])
    ask = compile_ask(pod)
    look = ShortfallSearch(stage.cycle, stage.cycle.pre_filter(ask), {})
    (lack,) = look.lacks(stage.cluster.columns.slots["node-1"])

    assert "the node says by its tier that it has 8Gi at least" in lack.text
    assert lack.todo.startswith("wait: the controller asks")
