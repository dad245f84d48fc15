"""What a pod is told beyond Kubernetes' sentence: that a class can never be served, and why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.world import World

from tonnage.kubernetes.api import names
from tonnage.scheduler.framework.plugin import Diagnosis
from tonnage.scheduler.framework.pod_info import compile_ask
from tonnage.scheduler.framework.queue import QueuedPod
from tonnage.scheduler.plugins.messages import MOST

NO_POOL = "there is no pool 'nope' (there is scratch)"


def lacking(nodes: int) -> str:
    return f"0/{nodes} nodes are available: {nodes} node(s) did not have enough free storage."


def faulty(nodes: int) -> str:
    return f"0/{nodes} nodes are available: {nodes} node(s) could not make volumes of the StorageClass."


@pytest.fixture
def stage(world: World) -> Any:
    """Three nodes, the driver on each, a late class and a claim of it."""
    for number in (1, 2, 3):
        world.node(f"node-{number}")
        world.csi_node(f"node-{number}", names.DRIVER)
    world.storage_class()
    world.claim("c")
    return world


def told(world: World, *claims: str) -> str:
    outcome = world.decide(world.pod("p", claims=list(claims) or ["c"]))
    assert isinstance(outcome, Diagnosis)
    return outcome.message


def test_equal_reasons_are_told_once(stage: Any) -> None:
    for number in (1, 2, 3):
        stage.capacity(f"node-{number}", "0", reason=NO_POOL)

    assert told(stage) == f'{faulty(3)} StorageClass "late": {NO_POOL}.'


def test_a_shortened_reason_stays_as_it_is(stage: Any) -> None:
    stage.capacity("node-1", "0", reason="allowed are ro, r...")

    for node in ("node-2", "node-3"):
        stage.capacity(node, "0", reason="allowed are ro, r...")

    assert told(stage) == f'{faulty(3)} StorageClass "late": allowed are ro, r...'


def test_nodes_differ_and_a_few_reasons_are_enough(stage: Any) -> None:
    for number in (1, 2, 3, 4, 5):
        stage.node(f"node-{number}")
        stage.capacity(f"node-{number}", "0", reason=f"no pool on the {number}.")

    message = told(stage)
    assert message.startswith(f'{faulty(5)} StorageClass "late": no pool on the 1 (on 1 of these nodes); ')
    assert message.count("no pool on the") == MOST
    assert message.endswith("; and 2 more.")


def test_the_reason_of_a_node_that_was_rejected_for_something_else_is_not_told(stage: Any) -> None:
    stage.node("node-1", unschedulable=True)
    stage.capacity("node-1", "0", reason=NO_POOL)
    stage.capacity("node-2", "0")
    stage.capacity("node-3", "0")

    message = "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) did not have enough free storage."
    assert told(stage) == message


def test_a_node_without_the_fault_takes_the_pod(stage: Any) -> None:
    stage.capacity("node-1", "0", reason=NO_POOL)
    stage.capacity("node-2", "5Gi")

    assert stage.place(stage.pod("p", claims=["c"])) == "node-2"


def test_a_reason_that_comes_or_goes_wakes_the_pods_that_it_concerns(stage: Any) -> None:
    def reject(pod: str, claim: str) -> QueuedPod:
        made = stage.pod(pod, claims=[claim])
        stage.queue.add(made.metadata.uid, compile_ask(made), stage.now)
        entry = stage.queue.pop()
        assert entry is not None
        outcome = stage.cycle.decide(entry.ask)
        assert isinstance(outcome, Diagnosis)
        stage.queue.reject(entry, outcome.causes, stage.now, needs=outcome.needs)
        return entry  # type: ignore[no-any-return]

    stage.storage_class("other")
    stage.claim("d", storageClassName="other")
    for number in (1, 2, 3):
        stage.capacity(f"node-{number}", "0")
        stage.capacity(f"node-{number}", "0", storage_class="other")
    ours, _ = reject("p", "c"), reject("q", "d")
    assert told(stage) == lacking(3)

    stage.capacity("node-1", "0", reason=NO_POOL)

    stage.now += 20
    stage.queue.advance(stage.now)
    assert stage.queue.pop() is ours
    assert stage.queue.pop() is None
    assert told(stage) == (
        "0/3 nodes are available: 1 node(s) could not make volumes of the StorageClass, 2 node(s) did not have enough"
        f' free storage. StorageClass "late": {NO_POOL} (on 1 of these nodes).'
    )
    stage.capacity("node-1", "0")
    assert told(stage) == lacking(3)


def test_a_driver_that_no_node_has_is_named(stage: Any) -> None:
    stage.storage_class("theirs", driver="csi.example.com")
    stage.claim("d", storageClassName="theirs")

    assert told(stage, "d") == (
        f'{faulty(3)} StorageClass "theirs": no node has a CSI driver "csi.example.com"; start it,'
        " or correct the provisioner of the class."
    )
    stage.csi_node("node-2", names.DRIVER, "csi.example.com")
    stage.cluster.reservation_released()
    assert told(stage, "d") == lacking(3), "it is there, and has published nothing yet"


def test_a_class_that_is_not_there_is_named(stage: Any) -> None:
    stage.claim("d", storageClassName="nosuch")

    assert told(stage, "d") == (
        "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
        ' StorageClass "nosuch": there is no such class.'
    )


def test_the_fault_of_an_immediate_class_is_told(stage: Any) -> None:
    stage.storage_class("now", volumeBindingMode=names.IMMEDIATE)
    stage.claim("d", storageClassName="now")
    unbound = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    assert told(stage, "d") == unbound

    stage.capacity("node-1", "0", storage_class="now", reason=NO_POOL)

    assert told(stage, "d") == f'{unbound} StorageClass "now": {NO_POOL}.'


def test_a_class_for_which_nothing_is_published_yet(stage: Any) -> None:
    """Its agents may say in a moment what is wrong with it: until then nothing is said of storage."""
    stage.storage_class("new")
    stage.claim("d", storageClassName="new")
    stage.capacity("node-1", "0")

    def rejection(claim: str) -> Diagnosis:
        outcome = stage.decide(stage.pod("p", claims=[claim]))
        assert isinstance(outcome, Diagnosis)
        return outcome

    assert [rejection(claim).unpublished for claim in ("d", "c")] == [True, False]
    stage.capacity("node-1", "0", storage_class="new", reason=NO_POOL)
    assert not rejection("d").unpublished


def test_the_first_nodes_that_publish_a_fault_speak_for_those_that_have_published_nothing(stage: Any) -> None:
    """The other agents publish the same a moment later: the pod's first Event is its last."""
    for number in (1, 2, 3):
        stage.capacity(f"node-{number}", "0", reason=NO_POOL)
        assert told(stage) == f'{faulty(3)} StorageClass "late": {NO_POOL}.'


@pytest.mark.parametrize("other", ["", names.AHEAD])
def test_a_fault_speaks_for_no_other_node_where_one_has_none(stage: Any, other: str) -> None:
    stage.capacity("node-1", "0", reason=NO_POOL)
    stage.capacity("node-2", "0", reason=other)
    counts = "1 node(s) could not make volumes of the StorageClass, 2 node(s) did not have enough free storage."
    assert told(stage).startswith(f"0/3 nodes are available: {counts}")
    stage.capacities.remove(f"{names.SYSTEM_NAMESPACE}/late-node-2")
    stage.cluster.reservation_released()
    assert told(stage).startswith(faulty(3)), "it is gone"


def test_one_class_that_a_node_serves_in_several_ways(stage: Any) -> None:
    """Only where all that it publishes has a fault is it the class's."""
    for name, reason in (("one", NO_POOL), ("other", "")):
        stage.capacity("node-1", "0", name=name, reason=reason)
    for node in ("node-2", "node-3"):
        stage.capacity(node, "0")
    assert told(stage).startswith(lacking(3))


def test_volumes_that_are_made_before_a_claim_are_no_fault_of_the_class(stage: Any) -> None:
    for number in (1, 2, 3):
        stage.capacity(f"node-{number}", "0", reason=names.AHEAD)

    assert told(stage) == f'{lacking(3)} StorageClass "late": {names.AHEAD}.'


REASONS = ("", NO_POOL, "no medium", names.AHEAD)
CHANGES = st.lists(st.tuples(st.integers(1, 3), st.sampled_from((*REASONS, None))), max_size=12)


@given(CHANGES)
def test_what_is_published_is_counted_as_it_comes_changes_and_goes(changes: list[tuple[int, str | None]]) -> None:
    world, there = World(), dict[int, str]()
    published = world.cluster.published
    for number, reason in changes:
        if reason is not None:
            there[number] = reason
            world.capacity(f"node-{number}", "0", reason=reason)
        elif there.pop(number, None) is not None:
            world.capacities.remove(f"{names.SYSTEM_NAMESPACE}/late-node-{number}")
        assert published.has_reasons("late") == any(there.values())
        assert published.is_faulty("late") == (bool(there) and all(map(names.is_fault, there.values())))
