"""Volumes of a pod: PreFilter and Filter of kube-scheduler's VolumeBinding, with their texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.scheduler.world import CLASS, World

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import STORAGE_CLASSES
from tonnage.scheduler.framework.plugin import Diagnosis, RejectionCause, SchedulingDecision

NO_STORAGE = "0/1 nodes are available: 1 node(s) did not have enough free storage."
NO_VOLUME = "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind."
CONFLICT = "0/1 nodes are available: 1 node(s) had volume node affinity conflict."
IMMEDIATE = "pod has unbound immediate PersistentVolumeClaims"


@pytest.fixture
def stage(world: World) -> Any:
    """One node with a late class and 10Gi."""
    world.node("node-1")
    world.storage_class()
    world.capacity("node-1", "10Gi")
    return world


def immediate_class(world: World) -> None:
    body = {"provisioner": names.DRIVER, "volumeBindingMode": names.IMMEDIATE}
    world.objects.classes.put(world.read(STORAGE_CLASSES, "now", body))


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        pytest.param(None, 'persistentvolumeclaim "c" not found', id="missing"),
        pytest.param(
            {"phase": "Lost", "volumeName": "pv-9"},
            'persistentvolumeclaim "c" bound to non-existent persistentvolume "pv-9"', id="lost",
        ),
        pytest.param(
            {"deletionTimestamp": "2026-01-01T00:00:00Z"}, 'persistentvolumeclaim "c" is being deleted', id="deleting"
        ),
        pytest.param({"storageClassName": "now"}, IMMEDIATE, id="immediate class"),
        pytest.param({"storageClassName": ""}, IMMEDIATE, id="no class"),
        pytest.param({"volumeName": "pv-1"}, IMMEDIATE, id="volume named, not completed"),
    ],
)  # fmt: skip
def test_what_stops_a_pod_everywhere(stage: Any, claim: dict[str, Any] | None, message: str) -> None:
    immediate_class(stage)
    if claim is not None:
        stage.claim("c", **claim)

    outcome = stage.decide(stage.pod("p", claims=["c"]))

    assert outcome == Diagnosis(f"0/1 nodes are available: {message}.", RejectionCause.CLAIM)


def test_ephemeral_claim_is_awaited(stage: Any) -> None:
    outcome = stage.decide(stage.pod("p", ephemeral=["v"]))

    assert outcome.awaited
    text = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "p-v"'
    assert outcome.message == f"0/1 nodes are available: {text}."


def test_ephemeral_claim_must_be_the_pods(stage: Any) -> None:
    stage.claim("p-v", owner="somebody-else")

    outcome = stage.decide(stage.pod("p", ephemeral=["v"]))

    assert not outcome.awaited
    expected = "0/1 nodes are available: PVC default/p-v was not created for pod default/p (pod is not owner)."
    assert outcome.message == expected


def test_exclusive_claim_is_for_one_pod(stage: Any) -> None:
    stage.claim("c", accessModes=["ReadWriteOncePod"])
    assert stage.place(stage.pod("a", claims=["c"])) == "node-1"

    outcome = stage.decide(stage.pod("b", claims=["c"]))

    assert outcome.causes is RejectionCause.EXCLUSIVE
    assert "with the same name and ReadWriteOncePod access mode" in outcome.message


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [
        (["10Gi"], True),
        (["10241Mi"], False),
        (["5Gi", "5Gi"], True),
        (["6Gi", "5Gi"], False),
        (["1Gi"] * 10, True),
        (["1Gi"] * 11, False),
    ],
    ids=str,
)
def test_all_claims_of_a_pod_are_counted_together(stage: Any, sizes: list[str], fits: bool) -> None:
    claims = [f"c{n}" for n in range(len(sizes))]
    for name, size in zip(claims, sizes, strict=True):
        stage.claim(name, size)

    assert stage.place(stage.pod("p", claims=claims)) == ("node-1" if fits else NO_STORAGE)


@pytest.mark.parametrize(
    ("free", "largest", "size", "fits"),
    [
        pytest.param("10Gi", "4Gi", "4Gi", True, id="largest decides, inclusive"),
        pytest.param("10Gi", "4Gi", "5Gi", False, id="larger than the largest"),
        pytest.param(None, "4Gi", "4Gi", True, id="only largest given"),
        pytest.param(None, None, "1", False, id="nothing given"),
        pytest.param("0", None, "1", False, id="none left"),
    ],
)
def test_capacity_and_largest(world: World, free: str | None, largest: str | None, size: str, fits: bool) -> None:
    world.node("node-1")
    world.storage_class()
    world.capacity("node-1", free, largest=largest)
    world.claim("c", size)

    assert world.place(world.pod("p", claims=["c"])) == ("node-1" if fits else NO_STORAGE)


def test_no_capacity_object_means_no_room(world: World) -> None:
    world.node("node-1")
    world.storage_class()
    world.claim("c")
    world.csi_node("node-1", names.DRIVER)

    assert world.place(world.pod("p", claims=["c"])) == NO_STORAGE


def test_drivers_that_publish_nothing_are_not_measured(world: World) -> None:
    world.node("node-1")
    world.driver(measured=False)
    world.storage_class()
    world.claim("c", "900Gi")

    assert world.place(world.pod("p", claims=["c"])) == "node-1"


@pytest.mark.parametrize(
    ("published", "decision"),
    [pytest.param("10Gi", NO_STORAGE, id="counted"), pytest.param("", "node-1", id="of another program")],
)
def test_a_provisioner_of_flexvolumes_counts_what_is_published(world: World, published: str, decision: str) -> None:
    """Its name has a slash, so there is no CSIDriver of that name."""
    world.node("node-1")
    body = {"provisioner": "tonnage.dev/flex-provisioner", "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER}
    world.objects.classes.put(world.read(STORAGE_CLASSES, CLASS, body))
    if published:
        world.capacity("node-1", published)
    world.claim("c", "20Gi")

    assert world.place(world.pod("p", claims=["c"])) == decision
    world.claim("fits", "4Gi")
    assert world.place(world.pod("q", claims=["fits"])) == "node-1"


def test_several_objects_of_a_class_one_is_enough(stage: Any) -> None:
    stage.capacity("node-1", "40Gi", name="another")
    stage.claim("c", "20Gi")

    assert stage.place(stage.pod("p", claims=["c"])) == "node-1"


def test_an_object_may_be_for_every_node(world: World) -> None:
    for number in range(3):
        world.node(f"node-{number}")
    world.storage_class()
    world.capacity("", "2Gi")
    for number in range(3):
        world.claim(f"c{number}")

    placed = [world.place(world.pod(f"p{n}", claims=[f"c{n}"])) for n in range(3)]

    assert {*placed[:2]} <= {"node-0", "node-1", "node-2"}
    assert placed[2] == "0/3 nodes are available: 3 node(s) did not have enough free storage."


def test_claims_of_one_pool_share_its_room(world: World) -> None:
    world.node("node-1")
    for name in ("late", "other"):
        world.storage_class(name)
        world.capacity("node-1", "10Gi", storage_class=name, pool="default")
    world.claim("a", "6Gi")
    world.claim("b", "6Gi", storageClassName="other")

    assert world.place(world.pod("both", claims=["a", "b"])) == NO_STORAGE
    assert world.place(world.pod("first", claims=["a"])) == "node-1"
    assert world.place(world.pod("second", claims=["b"])) == NO_STORAGE


def test_classes_without_pools_have_rooms_of_their_own(world: World) -> None:
    world.node("node-1")
    for name in ("late", "other"):
        world.storage_class(name)
        world.capacity("node-1", "10Gi", storage_class=name)
    world.claim("a", "6Gi")
    world.claim("b", "6Gi", storageClassName="other")

    assert world.place(world.pod("both", claims=["a", "b"])) == "node-1"


def test_allowed_topologies(stage: Any) -> None:
    term = {"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}
    stage.storage_class("zoned", allowedTopologies=[term])
    stage.capacity("node-1", "10Gi", storage_class="zoned")
    stage.claim("c", storageClassName="zoned")
    assert stage.place(stage.pod("p", claims=["c"])) == NO_VOLUME

    stage.node("node-1", labels={"zone": "b"})

    assert stage.place(stage.pod("p", claims=["c"])) == "node-1"


def test_claim_that_was_sent_to_a_node_stays_there_and_is_not_measured_again(stage: Any) -> None:
    stage.node("node-2")
    stage.capacity("node-2", "100Gi")
    stage.claim("c", "8Gi", annotations={names.SELECTED_NODE: "node-1"})
    stage.capacity("node-1", "0")

    outcome = stage.decide(stage.pod("p", claims=["c"]))

    assert isinstance(outcome, SchedulingDecision)
    assert outcome.node == "node-1"
    assert outcome.plan.made[0].selected == "node-1"


def test_sibling_of_a_bound_claim_is_pinned_to_its_node(stage: Any) -> None:
    stage.node("node-2")
    stage.capacity("node-2", "100Gi")
    stage.volume("pv-1", node="node-1", phase="Bound", claim="made")
    stage.bound_claim("made", "pv-1")
    stage.claim("next", "8Gi")
    stage.claim("large", "20Gi")

    assert stage.place(stage.pod("p", claims=["made", "next"])) == "node-1"
    assert stage.place(stage.pod("q", claims=["made", "large"])) == (
        "0/2 nodes are available: 1 node(s) did not have enough free storage, "
        "1 node(s) had volume node affinity conflict."
    )


def test_bound_to_a_volume_elsewhere(stage: Any) -> None:
    stage.volume("pv-1", node="node-7", phase="Bound", claim="c")
    stage.bound_claim("c", "pv-1")

    assert stage.place(stage.pod("p", claims=["c"])) == CONFLICT


def test_bound_to_a_volume_that_is_not_there(stage: Any) -> None:
    stage.bound_claim("c", "pv-1")

    text = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
    assert stage.place(stage.pod("p", claims=["c"])) == f"0/1 nodes are available: 1 {text}."


# Volumes that are there


@pytest.fixture
def disks(world: World) -> Any:
    """A node and a class whose volumes cannot be made."""
    world.node("node-1")
    world.node("node-2", unschedulable=True)
    world.storage_class(driver=names.NO_PROVISIONER)
    return world


def found(outcome: SchedulingDecision | Diagnosis) -> list[str]:
    assert isinstance(outcome, SchedulingDecision), outcome
    return [volume.metadata.name for _, volume in outcome.plan.found]


def test_smallest_volume_that_fits(disks: Any) -> None:
    for name, size in (("huge", "50Gi"), ("fits", "5Gi"), ("too-small", "1Gi"), ("larger", "8Gi")):
        disks.volume(name, size, node="node-1")
    disks.volume("elsewhere", "4Gi", node="node-2")
    disks.claim("c", "3Gi")

    assert found(disks.decide(disks.pod("p", claims=["c"]))) == ["fits"]


def test_of_equal_nodes_the_one_where_the_least_is_wasted(disks: Any) -> None:
    for node, size in (("node-3", "4Ti"), ("node-4", "5Gi"), ("node-5", "100Gi")):
        disks.node(node)
        disks.volume(f"of-{node}", size, node=node)
    disks.claim("c", "3Gi")

    assert found(disks.decide(disks.pod("p", claims=["c"]))) == ["of-node-4"]


@pytest.mark.parametrize(
    "volume",
    [
        pytest.param({"phase": "Released"}, id="phase"),
        pytest.param({"storageClassName": "other"}, id="class"),
        pytest.param({"size": "1Gi"}, id="too small"),
        pytest.param({"volumeMode": "Block"}, id="volume mode"),
        pytest.param({"accessModes": ["ReadOnlyMany"]}, id="access modes"),
        pytest.param({"volumeAttributesClassName": "gold"}, id="attributes class"),
        pytest.param({"node": "node-2"}, id="node"),
        pytest.param({"claim": "another"}, id="claimed"),
        pytest.param({"labels": {"tier": "slow"}}, id="selector"),
        pytest.param({"deletionTimestamp": "2026-01-01T00:00:00Z"}, id="deleting"),
    ],
)
def test_volumes_that_do_not_match(disks: Any, volume: dict[str, Any]) -> None:
    options = {"size": "5Gi", "node": "node-1", "labels": {"tier": "fast"}, **volume}
    disks.volume("pv", options.pop("size"), **options)
    disks.claim("c", "3Gi", selector={"matchLabels": {"tier": "fast"}})

    message = disks.place(disks.pod("p", claims=["c"]))

    expected = "1 node(s) didn't find available persistent volumes to bind, 1 node(s) were unschedulable"
    assert message == f"0/2 nodes are available: {expected}."
    disks.volume("right", "5Gi", node="node-1", labels={"tier": "fast"})
    assert found(disks.decide(disks.pod("p", claims=["c"]))) == ["right"]


def test_a_volume_that_points_to_the_claim_wins(disks: Any) -> None:
    disks.volume("small", "3Gi", node="node-1")
    disks.volume("mine", "50Gi", node="node-1", claim="c")
    disks.claim("c", "3Gi")

    assert found(disks.decide(disks.pod("p", claims=["c"]))) == ["mine"]


def test_siblings_get_different_volumes(disks: Any) -> None:
    disks.volume("a", "3Gi", node="node-1")
    disks.volume("b", "4Gi", node="node-1")
    disks.claim("x", "2Gi")
    disks.claim("y", "1Gi")

    assert sorted(found(disks.decide(disks.pod("p", claims=["x", "y"])))) == ["a", "b"]
    disks.claim("z", "1Gi")
    assert "didn't find available" in disks.place(disks.pod("q", claims=["x", "y", "z"]))


def test_chosen_volume_is_not_offered_to_the_next_pod(disks: Any) -> None:
    disks.volume("only", "3Gi", node="node-1")
    disks.claim("x", "2Gi")
    disks.claim("y", "2Gi")
    first = disks.pod("first", claims=["x"])
    assert disks.place(first) == "node-1"
    assert "didn't find available" in disks.place(disks.pod("second", claims=["y"]))
    # another pod with the same claim goes to the same volume
    assert found(disks.decide(disks.pod("third", claims=["x"]))) == ["only"]


def test_volume_without_node_affinity_is_for_every_node(disks: Any) -> None:
    disks.volume("shared", "3Gi")
    disks.claim("x", "2Gi")

    assert found(disks.decide(disks.pod("p", claims=["x"]))) == ["shared"]


def test_without_a_free_volume_one_is_made(stage: Any) -> None:
    stage.volume("free", "2Gi", node="node-1")
    stage.claim("x", "1Gi")
    stage.claim("y", "5Gi")

    outcome = stage.decide(stage.pod("p", claims=["x", "y"]))

    assert found(outcome) == ["free"]
    assert [made.claim.metadata.name for made in outcome.plan.made] == ["y"]


def test_thousand_equal_pods_that_wait_cost_one_look(make_world: Callable[[], Any]) -> None:
    world = make_world()
    world.node("node-1")
    world.storage_class()
    world.capacity("node-1", "1Gi")
    looks: list[int] = []
    on = world.cluster.published.on

    def counting(node: str) -> Any:
        looks.append(1)
        return on(node)

    world.cluster.published.on = counting
    for number in range(1000):
        world.claim(f"c{number}", "2Gi")
        assert world.place(world.pod(f"p{number}", claims=[f"c{number}"])) == NO_STORAGE
    assert len(looks) == 2  # one for room, one for the reason why not
    world.cluster.published.on = on

    world.capacity("node-1", "3Gi")

    assert world.place(world.pod("p0", claims=["c0"])) == "node-1"
    assert world.place(world.pod("p1", claims=["c1"])) == NO_STORAGE
