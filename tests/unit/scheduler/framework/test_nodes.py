"""The node table: what is free, what improved, who is where."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.scheduler.world import World

from tonnage.base.errors import InvalidError
from tonnage.scheduler.framework.nodes import Columns, Residents
from tonnage.scheduler.framework.plugin import RejectionCause
from tonnage.scheduler.framework.pod_info import CPU, Demand, InlineUse

DEMAND = Demand(((CPU, 500), ("gpu", 1)), (("TCP", "", 80),), (600, 10), (InlineUse("d", "ssd", 5),))


@pytest.fixture
def columns(world: World) -> Columns:
    """One node with 4 cpus and 2 gpus."""
    columns = Columns()
    columns.set_node(world.node("n1", allocatable={"gpu": "2"}))
    return columns


def test_a_pod_counts_until_it_is_lifted(columns: Columns) -> None:
    for _ in range(2):
        columns.place("p", "n1", DEMAND, [("d", "x/c")], ["x/c"])
    assert (columns.free[CPU][0], columns.free_of("gpu", 0), columns.scored_cpu[0]) == (3500, 1, 600)
    assert (columns.ports[0], columns.inline[0]) == ({("TCP", "", 80): 1}, {("d", "ssd"): 5})
    assert (columns.attached[0], columns.claim_users) == ({"d": {"x/c": 1}}, {"x/c": {"p"}})
    columns.place("p", "n2", DEMAND)
    assert (columns.free[CPU], columns.claim_users) == ([4000, -500], {})
    better = columns.lift("p")
    assert better == RejectionCause.RESOURCES | RejectionCause.PORTS | RejectionCause.STORAGE
    assert (columns.free[CPU], columns.ports[1], columns.inline[1]) == ([4000, 0], {}, {})
    assert columns.lift("p") is RejectionCause.NO


def test_a_lifted_pod_may_free_volumes_and_claims(columns: Columns) -> None:
    columns.place("p", "n1", Demand(), [("d", "x/c")], ["x/c"])
    assert columns.lift("p") == RejectionCause.RESOURCES | RejectionCause.LIMITS | RejectionCause.EXCLUSIVE


@pytest.mark.parametrize(
    ("change", "better"),
    [
        ({}, RejectionCause.NO),
        ({"cpu": "5"}, RejectionCause.RESOURCES),
        ({"cpu": "3"}, RejectionCause.NO),
        ({"labels": {"disk": "fast"}}, RejectionCause.NODE),
        ({"taints": [{"key": "k", "effect": "NoSchedule"}]}, RejectionCause.NO),
        ({"unschedulable": True}, RejectionCause.NO),
    ],
)
def test_what_improves(world: World, change: dict[str, Any], better: RejectionCause) -> None:
    columns = Columns()
    assert RejectionCause.NODE in columns.set_node(world.node("n1"))
    assert columns.set_node(world.node("n1", **change)) is better
    if "taints" in change or "unschedulable" in change:
        assert columns.guarded[0]
        assert columns.set_node(world.node("n1")) is RejectionCause.NODE


def test_a_removed_node_has_nothing_and_its_pods_stay_counted(columns: Columns, world: World) -> None:
    columns.place("p", "n1", DEMAND)
    columns.remove_node("n1")
    columns.remove_node("n1")
    assert (columns.live, columns.labels[0], columns.free[CPU][0]) == ([], {}, -500)
    columns.set_node(world.node("n1"))
    assert (columns.live, columns.free[CPU][0]) == ([0], 3500)
    with pytest.raises(InvalidError):
        columns.set_node(world.node("n2", cpu="many"))


def test_who_is_where(world: World) -> None:
    residents = Residents()
    low, high = world.pod("low", priority=1), world.pod("high", priority=9)
    residents.put(low, "n1")
    residents.put(high, "n1")
    assert ({p.metadata.name for p in residents.on("n1")}, residents.generation) == ({"low", "high"}, 2)
    assert [residents.below(priority) for priority in (1, 2)] == [False, True]
    residents.put(world.pod("low", priority=1), "n2")
    assert (residents.generation, len(residents.on("n1")), "uid-low" in residents) == (2, 1, True)
    residents.drop("uid-low")
    assert not residents.below(9)
    assert not residents.is_going("uid-high")
