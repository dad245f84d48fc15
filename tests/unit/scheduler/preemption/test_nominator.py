"""Held room: whom it stands against, that lifting it changes nothing, and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace
from tests.unit.scheduler.world import World

from tonnage.scheduler.framework.plugin import Diagnosis
from tonnage.scheduler.framework.pod_info import Ask, compile_ask
from tonnage.scheduler.preemption.nominator import GRACE, LONGEST, Nominations


def ask_of(world: World, name: str, *, cpu: str = "1", size: str = "", priority: int = 0) -> Ask:
    """A pod, with an ephemeral claim when it has a size."""
    if size:
        world.claim(f"{name}-data", size, owner=name)
    pod = world.pod(name, requests={"cpu": cpu}, ephemeral=["data"] if size else [], priority=priority)
    return compile_ask(pod)


def placed(world: World, name: str, node: str, size: str) -> Any:
    """A pod on a node, with an ephemeral volume."""
    pod = world.pod(name, ephemeral=["data"])
    world.bound_claim(f"{name}-data", f"pv-{name}", size, owner=name)
    world.volume(f"pv-{name}", size, node=node, claim=f"{name}-data", persistentVolumeReclaimPolicy="Delete")
    pod = replace(pod, spec=replace(pod.spec, node_name=node))
    world.cluster.pod_placed(pod)
    return pod


def stand(world: World) -> None:
    """Two nodes with 10Gi each."""
    world.storage_class(reclaimPolicy="Delete")
    for node in ("node-1", "node-2"):
        world.node(node, cpu="4")
        world.capacity(node, "10Gi", counted=0, pool="scratch")


def counted(world: World) -> Any:
    """All that holds may change."""
    columns, published = world.cluster.columns, world.cluster.published
    left = [offer.left for node in columns.slots for some in published.on(node).values() for offer in some]
    users = {key: set(uids) for key, uids in columns.claim_users.items()}
    return {name: list(column) for name, column in columns.free.items()}, left, users, sorted(columns.placed)


steps = st.lists(
    st.tuples(
        st.sampled_from(["hold", "drop", "placed", "decide"]),
        st.integers(0, 4),  # which pod
        st.sampled_from(["node-1", "node-2"]),
    ),
    max_size=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 2)), min_size=5, max_size=5))
def test_what_is_held_and_given_up_leaves_no_trace(
    make_world: Callable[[], Any], given: list[tuple[str, int, str]], pods: list[tuple[int, int, int]]
) -> None:
    world = make_world()
    stand(world)
    asks = [
        ask_of(world, f"p{n}", cpu=str(cpu), size=f"{size}Gi" if size else "", priority=priority)
        for n, (cpu, size, priority) in enumerate(pods)
    ]
    nominations, before = Nominations(world.cycle, world.queue.nominees), counted(world)
    for what, number, node in given:
        ask = asks[number]
        if what == "hold":
            nominations.hold(ask, node, world.now)
        elif what == "drop":
            nominations.drop(ask.pod.metadata.uid)
        elif what == "placed":
            nominations.placed(ask.pod.metadata.uid, node)
        else:
            now = counted(world)
            nominations.decide(ask)
            assert counted(world) == now
    for ask in asks:
        nominations.drop(ask.pod.metadata.uid)
    assert counted(world) == before
    assert not world.queue.nominees


@pytest.mark.parametrize(("priority", "rejected"), [(0, True), (5, True), (6, False)])
def test_whom_it_stands_against(world: World, priority: int, rejected: bool) -> None:
    stand(world)
    nominations = Nominations(world.cycle, world.queue.nominees)
    for number in (1, 2):
        nominations.hold(ask_of(world, f"h{number}", size="6Gi", priority=5), f"node-{number}", world.now)
    other = ask_of(world, "other", size="6Gi", priority=priority)
    assert isinstance(nominations.decide(other), Diagnosis) is rejected
    assert not isinstance(nominations.decide(ask_of(world, "small", size="4Gi")), Diagnosis)


def test_it_ends_a_while_after_victims_and_volumes_have_gone(world: World) -> None:
    stand(world)
    victim = placed(world, "low", "node-1", "6Gi")
    nominations = Nominations(world.cycle, world.queue.nominees)
    nominations.hold(ask_of(world, "high", priority=5), "node-1", 0.0, victims=[victim])

    assert nominations.over(100.0) == []
    world.cluster.pod_lifted("uid-low")
    assert nominations.over(110.0) == []
    world.objects.claims.remove("default/low-data")
    assert nominations.over(120.0) == []
    world.objects.volumes.remove("pv-low")
    assert nominations.over(130.0) == []
    assert nominations.next_due() == 130.0 + GRACE
    assert [one.uid for one in nominations.over(130.0 + GRACE)] == ["uid-high"]


def test_victims_that_never_go_hold_nothing_for_ever(world: World) -> None:
    stand(world)
    victim = placed(world, "low", "node-1", "6Gi")
    nominations = Nominations(world.cycle, world.queue.nominees)
    nominations.hold(ask_of(world, "high", priority=5), "node-1", 0.0, victims=[victim])
    assert nominations.over(LONGEST - 1) == []
    assert [one.uid for one in nominations.over(LONGEST)] == ["uid-high"]


def test_who_has_room_held_is_woken_by_whatever_gets_better(world: World) -> None:
    stand(world)
    nominations = Nominations(world.cycle, world.queue.nominees)
    ask = ask_of(world, "high", cpu="5", priority=5)
    world.queue.add("uid-high", ask, world.now)
    entry = world.queue.pop()
    rejection = nominations.decide(ask)
    assert isinstance(rejection, Diagnosis)
    assert entry is not None
    nominations.hold(ask, "node-1", world.now)
    world.queue.reject(entry, rejection.causes, world.now, counts=False)
    assert len(world.queue) == 0
    world.capacity("node-2", "11Gi", counted=0, pool="scratch")
    assert world.queue.pop() is entry
