"""What is told of priorities: whether preemption would help, and for whom room is held."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.unit.scheduler.world import World

from tonnage.kubernetes.api.policy import NEVER
from tonnage.scheduler.explain import explain


def placed(world: World, name: str, node: str, cpu: str, **spec: Any) -> None:
    pod = world.pod(name, requests={"cpu": cpu}, **spec)
    world.cluster.pod_placed(replace(pod, spec=replace(pod.spec, node_name=node)))


def told(world: World, pod: Any, *pods: Any) -> list[str]:
    return explain(world.cycle, pod, written={}, pods=pods).priorities


def nominated(world: World, name: str, node: str, cpu: str, **spec: Any) -> Any:
    pod = world.pod(name, requests={"cpu": cpu}, **spec)
    return replace(pod, status=replace(pod.status, nominated_node_name=node))


def test_who_would_have_to_go(world: World) -> None:
    world.node("n", cpu="4")
    placed(world, "low", "n", "3")
    assert told(world, world.pod("p", requests={"cpu": "2"}, priority=5)) == [
        "preemption helps: default/low would have to leave n"
    ]


def test_why_it_would_not_help(world: World) -> None:
    world.node("n", cpu="4")
    placed(world, "low", "n", "1")
    placed(world, "high", "n", "2", priority=10)
    big = {"requests": {"cpu": "3"}}
    assert told(world, world.pod("a", **big)) == [
        "preemption would not help: no pod on a node has a lower priority than this one (0)"
    ]
    assert told(world, world.pod("b", priority=5, **big)) == [
        "preemption would not help: not without all pods of a priority below 5 either"
    ]
    assert told(world, world.pod("c", priority=5, preemptionPolicy=NEVER, **big)) == [
        "preemption is not tried: the pod's preemptionPolicy is Never"
    ]


def test_room_that_is_held(world: World) -> None:
    world.node("n", cpu="4")
    high = nominated(world, "high", "n", "3", priority=10)
    assert told(world, world.pod("p", requests={"cpu": "2"}), high) == [
        "capacity on n is reserved for pod default/high",
        "preemption would not help: no pod on a node has a lower priority than this one (0)",
    ]


def test_room_held_for_lesser_ones_and_for_itself_is_no_matter(world: World) -> None:
    world.node("n", cpu="4")
    low = nominated(world, "low", "n", "3")
    own = nominated(world, "p", "n", "2", priority=10)
    assert told(world, own, low, own) == [
        "capacity on n is reserved for this pod: it runs there once all of it is free"
    ]


def test_nothing_of_pods_that_fit_or_that_no_room_would_help(world: World) -> None:
    world.node("n", cpu="4", unschedulable=True)
    placed(world, "low", "n", "3")
    assert told(world, world.pod("p", priority=5)) == []
