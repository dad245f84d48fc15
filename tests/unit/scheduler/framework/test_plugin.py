"""What plugins share: filters of many nodes at once, and the state of a cycle."""

from __future__ import annotations

import pytest
from tests.unit.scheduler.world import World

from tonnage.scheduler.framework.plugin import (
    FREED,
    HELPED,
    CycleState,
    NodeFilter,
    PodVolumes,
    RejectionCause,
    VolumePlan,
)
from tonnage.scheduler.framework.pod_info import compile_ask


def test_a_filter_asks_only_the_nodes_that_it_concerns() -> None:
    asked: list[int] = []

    def check(slot: int) -> tuple[str, ...]:
        asked.append(slot)
        return ("no",) if slot % 2 else ()

    few = NodeFilter.of_few(RejectionCause.PORTS, check, ["", "x", "x", ""])
    assert few.sieve([0, 1, 2, 3]) == [0, 2, 3]
    assert asked == [1, 2]
    assert NodeFilter.one_by_one(RejectionCause.PORTS, check).sieve([3, 2, 1, 0]) == [2, 0]


def test_the_plan_of_a_node_is_the_common_one_unless_it_differs(world: World) -> None:
    common, own = VolumePlan(), VolumePlan()
    state = CycleState(compile_ask(world.pod("p")), PodVolumes(plan=common))
    state.plans[3] = own
    assert state.plan(3) is own
    assert state.plan(4) is common


def test_bytes_of_volumes_that_are_larger_than_asked(world: World) -> None:
    pairs = [(world.claim("c", "1Gi"), world.volume("v", "3Gi")), (world.claim("d", "2Gi"), world.volume("w", "2Gi"))]
    assert VolumePlan(tuple(pairs)).waste == 2 << 30
    assert VolumePlan().waste == 0


@pytest.mark.parametrize("cause", RejectionCause)
def test_deleting_pods_helps_where_resources_lack_or_neighbours_disturb(cause: RejectionCause) -> None:
    hopeless = RejectionCause.NODE | RejectionCause.BINDING | RejectionCause.CLAIM | RejectionCause.UNSUPPORTED
    assert (cause in HELPED) is (cause not in hopeless)
    assert (cause in FREED) is (cause in HELPED and cause is not RejectionCause.NEIGHBOURS)
