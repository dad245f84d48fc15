"""Choosing a node by storage: for any nodes and claims, the chosen one is the best by what the strategy says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.unit.scheduler.world import World

from tonnage.scheduler.framework.plugin import Diagnosis
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy, share, storage_score

GI = 1024**3
NODES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 8)), min_size=1, max_size=6)
"""Of each node: room in Gi and cores."""


def scored(world: World, strategy: ScoringStrategy) -> Any:
    world.cycle.volumes.strategy = strategy
    return world


def build(world: World, strategy: ScoringStrategy, nodes: list[tuple[int, int]]) -> Any:
    world.storage_class()
    for index, (room, cores) in enumerate(nodes):
        world.node(f"node-{index}", cpu=str(cores), memory=f"{cores}Gi")
        world.capacity(f"node-{index}", f"{room}Gi")
    return scored(world, strategy)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(nodes=NODES, size=st.integers(1, 60), strategy=st.sampled_from(list(ScoringStrategy)))
def test_the_best_node_of_those_that_fit(
    make_world: Callable[[], Any], nodes: list[tuple[int, int]], size: int, strategy: ScoringStrategy
) -> None:
    world = build(make_world(), strategy, nodes)
    world.claim("c", f"{size}Gi")
    outcome = world.decide(world.pod("p", claims=["c"]))

    fitting = [room for room, _ in nodes if room >= size]
    if isinstance(outcome, Diagnosis):
        assert not fitting
        return
    room, _ = nodes[int(outcome.node.removeprefix("node-"))]
    assert room >= size
    if strategy is ScoringStrategy.MOST_FREE:
        assert room == max(fitting)
    if strategy is ScoringStrategy.TIGHTEST_FIT:
        assert room == min(fitting)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    nodes=NODES, sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12), strategy=st.sampled_from(ScoringStrategy)
)
def test_no_strategy_promises_more_than_there_is_or_rejects_what_fits(
    make_world: Callable[[], Any], nodes: list[tuple[int, int]], sizes: list[int], strategy: ScoringStrategy
) -> None:
    world = build(make_world(), strategy, nodes)
    left = {f"node-{index}": room for index, (room, _) in enumerate(nodes)}
    for number, size in enumerate(sizes):
        world.claim(f"c{number}", f"{size}Gi")
        node = world.place(world.pod(f"p{number}", claims=[f"c{number}"]))
        if node in left:
            left[node] -= size
            assert left[node] >= 0
        else:
            assert max(left.values()) < size


TAKES = st.tuples(st.integers(0, 100 * GI), st.integers(0, 100 * GI))


@given(
    strategy=st.sampled_from(ScoringStrategy),
    rooms=st.lists(TAKES, max_size=3),
    found=st.lists(TAKES, max_size=3),
    compute=st.lists(st.floats(0, 1), max_size=2),
)
def test_scores_are_between_0_and_100(
    strategy: ScoringStrategy, rooms: list[tuple[int, int]], found: list[tuple[int, int]], compute: list[float]
) -> None:
    score = storage_score(strategy, rooms, found, compute)
    if strategy is ScoringStrategy.LEAST_ALLOCATED or not (rooms or found):
        assert score is None
    else:
        assert score is not None
        assert -1e-9 <= score <= 100 + 1e-9


@given(asked=st.integers(1, 10), room=st.integers(10, 1000), more=st.integers(1, 1000))
def test_more_room_is_better_for_one_and_worse_for_the_other(asked: int, room: int, more: int) -> None:
    def of(strategy: ScoringStrategy, there: int) -> float:
        score = storage_score(strategy, [(asked * GI, there * GI)], [], (0.5,))
        assert score is not None
        return score

    assert of(ScoringStrategy.MOST_FREE, room + more) > of(ScoringStrategy.MOST_FREE, room)
    assert of(ScoringStrategy.TIGHTEST_FIT, room + more) < of(ScoringStrategy.TIGHTEST_FIT, room)


def test_balanced_leaves_neither_cpu_nor_room_without_the_other(world: World) -> None:
    world.storage_class()
    world.node("much-cpu", cpu="16", memory="32Gi")
    world.node("alike", cpu="4", memory="8Gi")
    world.node("much-room", cpu="2", memory="4Gi")
    for node, room in (("much-cpu", "4Gi"), ("alike", "8Gi"), ("much-room", "100Gi")):
        world.capacity(node, room)
    scored(world, ScoringStrategy.BALANCED)
    world.claim("c", "2Gi")

    pod = world.pod("p", requests={"cpu": "1", "memory": "2Gi"}, claims=["c"])
    assert world.place(pod) == "alike"


@pytest.mark.parametrize(
    ("strategy", "node"),
    [
        (ScoringStrategy.LEAST_ALLOCATED, "idle"),
        (ScoringStrategy.MOST_FREE, "roomy"),
        (ScoringStrategy.TIGHTEST_FIT, "tight"),
    ],
)
def test_storage_decides_before_cpu_and_memory_only_where_it_was_asked_to(
    world: World, strategy: ScoringStrategy, node: str
) -> None:
    world.storage_class()
    for name, cpu, room in (("idle", "64", "20Gi"), ("roomy", "2", "50Gi"), ("tight", "2", "3Gi")):
        world.node(name, cpu=cpu)
        world.capacity(name, room)
    scored(world, strategy)
    world.claim("c", "2Gi")

    assert world.place(world.pod("p", requests={"cpu": "1"}, claims=["c"])) == node
    assert world.place(world.pod("without-volume", requests={"cpu": "1"})) == "idle"


def test_a_wish_outweighs_storage(world: World) -> None:
    world.storage_class()
    world.node("roomy")
    world.node("wished", labels={"disk": "new"})
    world.capacity("roomy", "100Gi")
    world.capacity("wished", "2Gi")
    scored(world, ScoringStrategy.MOST_FREE)
    world.claim("c", "2Gi")
    term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["new"]}]}
    wish = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]}

    assert world.place(world.pod("p", claims=["c"], affinity={"nodeAffinity": wish})) == "wished"


def test_classes_of_one_pool_count_together(world: World) -> None:
    """Each claim alone would fill half of its offer; together they fill the shared pool."""
    for name in ("late", "other"):
        world.storage_class(name)
        world.capacity("shared", "8Gi", storage_class=name, pool="p")
        world.capacity("apart", "10Gi", storage_class=name)
    world.node("shared")
    world.node("apart")
    world.claim("a", "4Gi")
    world.claim("b", "4Gi", storageClassName="other")
    pod = world.pod("p", claims=["a", "b"])

    for strategy, node in ((ScoringStrategy.TIGHTEST_FIT, "shared"), (ScoringStrategy.MOST_FREE, "apart")):
        outcome = scored(world, strategy).decide(pod)
        assert outcome.node == node
        assert world.cycle.volumes.takes(outcome.plan, "shared") == ([(8 * GI, 8 * GI)], [])
        assert world.cycle.volumes.takes(outcome.plan, "apart") == ([(4 * GI, 10 * GI)] * 2, [])


@pytest.mark.parametrize("strategy", list(ScoringStrategy))
def test_no_small_claim_takes_a_large_volume(world: World, strategy: ScoringStrategy) -> None:
    world.storage_class(provisioner="kubernetes.io/no-provisioner")
    for node, size in (("large", "100Gi"), ("small", "2Gi")):
        world.node(node)
        world.volume(f"disk-{node}", size, node=node)
    scored(world, strategy)
    world.claim("c", "1Gi")

    assert world.place(world.pod("p", claims=["c"])) == "small"


def test_nothing_to_take_from_is_all_taken() -> None:
    assert share((1, 0)) == 1.0
    assert share((5, 4)) == 1.0
    assert share((1, 4)) == 0.25
