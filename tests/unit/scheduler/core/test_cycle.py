"""How many nodes a search looks at: about the same on any cluster, and all of them before a pod is rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.scheduler.world import World

from tonnage.scheduler.framework.plugin import CycleState
from tonnage.scheduler.plugins.node_fit import NodeFit


@pytest.fixture
def looked(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The slots that were looked at, in their order."""
    seen: list[int] = []
    original = NodeFit.filter

    def filters(plugin: NodeFit, state: CycleState) -> Any:
        first, *rest = original(plugin, state)

        def noting(slots: Sequence[int]) -> Sequence[int]:
            seen.extend(slots)
            kept: Sequence[int] = first.sieve(slots)
            return kept

        return [replace(first, sieve=noting), *rest]

    monkeypatch.setattr(NodeFit, "filter", filters)
    return seen


def test_a_hundred_that_fit_are_enough(world: World, looked: list[int]) -> None:
    for number in range(600):
        world.node(f"n{number}")
    world.place(world.pod("p"))
    assert len(looked) == 100


def test_where_few_fit_some_are_enough(world: World, looked: list[int]) -> None:
    for number in range(600):
        world.node(f"n{number}", labels={"disk": "fast" if number % 10 == 0 else "slow"})
    assert world.place(world.pod("p", nodeSelector={"disk": "fast"})).startswith("n")
    assert len(looked) <= 300


def test_the_only_node_that_fits_is_found(world: World, looked: list[int]) -> None:
    for number in range(600):
        world.node(f"n{number}", cpu="8" if number == 417 else "1")
    assert world.place(world.pod("p", requests={"cpu": "4"})) == "n417"
    assert len(looked) == 600
    assert "600 Insufficient cpu" in world.place(world.pod("q", requests={"cpu": "5"}))


def test_all_nodes_come_to_be_looked_at(world: World, looked: list[int]) -> None:
    for number in range(400):
        world.node(f"n{number}")
    for number in range(16 * 4):
        world.place(world.pod(f"p{number}"))
    assert len(set(looked)) == 400


def test_those_that_are_compared_are_of_all_zones(world: World, looked: list[int]) -> None:
    for number in range(1000):
        world.node(f"n{number}", labels={"zone": str(number // 250)})
    world.place(world.pod("p"))
    labels = world.cluster.columns.labels
    assert {labels[slot]["zone"] for slot in looked} == {"0", "1", "2", "3"}
