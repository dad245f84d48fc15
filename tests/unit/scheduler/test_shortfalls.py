"""Shortfalls of a node: Kubernetes' text, the numbers, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.scheduler.world import World

from tonnage.scheduler.framework.plugin import CycleState
from tonnage.scheduler.framework.pod_info import compile_ask
from tonnage.scheduler.shortfalls import Lack, NodeShortfall, ShortfallSearch

GI = 1 << 30


@pytest.fixture
def search(world: World) -> Callable[..., ShortfallSearch]:
    """search(pod) on node-1 with 10Gi free, of which 6Gi are in one piece."""
    world.node("node-1")
    world.storage_class()
    world.capacity("node-1", "10Gi", largest="6Gi")

    def made(pod: Any) -> ShortfallSearch:
        state = world.cycle.pre_filter(compile_ask(pod))
        assert isinstance(state, CycleState)
        return ShortfallSearch(world.cycle, state, {"tonnage-system/late-node-1": "now"})

    return made


@pytest.mark.parametrize(
    ("spec", "text", "todo"),
    [
        ({"requests": {"cpu": "5500m"}}, "asks 5500m, free 4 of 4", "request at most 4 cpu"),
        ({"requests": {"memory": "9Gi"}}, "asks 9Gi, free 8Gi of 8Gi", "request at most 8Gi memory"),
        ({"nodeSelector": {"disk": "fast"}}, "wants disk=fast, has no disk", "kubectl label node node-1"),
    ],
)
def test_resources_and_labels(world: World, search: Any, spec: dict[str, Any], text: str, todo: str) -> None:
    (lack,) = search(world.pod("p", **spec)).lacks(0)
    assert text in lack.text
    assert todo in lack.todo


def test_all_filters_are_asked(world: World, search: Any) -> None:
    world.node("node-1", unschedulable=True, taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    world.claim("c", "20Gi")
    lacks = list(search(world.pod("p", requests={"cpu": "5"}, claims=["c"])).lacks(0))
    todos = " | ".join(lack.todo for lack in lacks)
    assert len(lacks) == 4
    for part in ("kubectl uncordon node-1", "add a toleration of gpu=yes", "request at most 4 cpu", "in c, or free"):
        assert part in todos


@pytest.mark.parametrize(("size", "missing"), [("5Gi", 0), ("7Gi", 1 * GI), ("11Gi", 5 * GI)])
def test_one_claim(world: World, search: Any, size: str, missing: int) -> None:
    world.claim("c", size)
    found = search(world.pod("p", claims=["c"]))
    assert sum(lack.missing for lack in found.lacks(0)) == missing
    asked = int(size.removesuffix("Gi")) * GI
    assert found.shortfalls(0) == [NodeShortfall("c", "late", asked, 10 * GI, 6 * GI, found.shortfalls(0)[0].published)]


def test_claims_that_fit_alone_but_not_together(world: World, search: Any) -> None:
    for name in ("a", "b"):
        world.claim(name, "6Gi")
    (lack,) = search(world.pod("p", claims=["a", "b"])).lacks(0)
    assert "claims a, b ask 12Gi together, 10Gi are free" in lack.text
    assert lack.missing == 2 * GI


def test_a_node_that_fits_lacks_nothing(world: World, search: Any) -> None:
    assert list(search(world.pod("p")).lacks(0)) == []
    assert Lack("text", "todo").missing == 0
