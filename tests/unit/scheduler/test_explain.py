"""Why a pod is on no node: every node is told with all that it lacks, and the last line with what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from tests.unit.scheduler.world import World

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.meta import Condition
from tonnage.scheduler.explain import Explanation, explain
from tonnage.scheduler.framework.plugin import SchedulingDecision
from tonnage.scheduler.framework.pod_info import compile_ask
from tonnage.scheduler.shortfalls import ShortfallSearch

GI = 1024**3
BOX = "default-scheduler"


def told(world: World, pod: Any, *, scheduler: str = BOX, written: dict[str, str] | None = None) -> Explanation:
    return explain(world.cycle, pod, written=written or {}, scheduler=scheduler)


def lacks(explanation: Explanation, node: str = "n") -> list[str]:
    return next(answer.lacks for answer in explanation.nodes if answer.node == node)


@pytest.mark.parametrize(
    ("node", "pod", "text", "todo"),
    [
        pytest.param(
            {"cpu": "2"}, {"requests": {"cpu": "2500m"}}, "Insufficient cpu: asks 2500m, free 2 of 2",
            "request at most 2 cpu", id="cpu",
        ),
        pytest.param(
            {"memory": "1Gi"}, {"requests": {"memory": "3Gi"}}, "Insufficient memory: asks 3Gi, free 1Gi of 1Gi",
            "request at most 1Gi memory", id="memory",
        ),
        pytest.param(
            {}, {"requests": {"example.org/gpu": "1"}}, "Insufficient example.org/gpu: asks 1, free 0 of 0",
            "add a node", id="extended",
        ),
        pytest.param({"pods": "0"}, {}, "Too many pods: it takes 0", "delete pods on n", id="pods"),
        pytest.param({"unschedulable": True}, {}, "node(s) were unschedulable", "`kubectl uncordon n`", id="cordon"),
        pytest.param(
            {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}, {},
            "node(s) had untolerated taint {gpu: yes} (NoSchedule)", "`kubectl taint node n gpu-`", id="taint",
        ),
        pytest.param(
            {"labels": {"zone": "b"}}, {"nodeSelector": {"zone": "a"}},
            "node(s) didn't match Pod's node affinity/selector: wants zone=a, has zone=b",
            "`kubectl label node n --overwrite zone=a`", id="selector",
        ),
    ],
)  # fmt: skip
def test_what_a_node_lacks(world: World, node: dict[str, Any], pod: dict[str, Any], text: str, todo: str) -> None:
    world.node("n", **node)
    found = told(world, world.pod("p", **pod))

    assert lacks(found) == [text]
    assert found.todo.startswith("nearest is n: ")
    assert todo in found.todo
    assert found.message.startswith("0/1 nodes are available: ")


def test_affinity_and_ports(world: World) -> None:
    ports = [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]
    world.node("n")
    world.place(world.pod("first", containers=ports))
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    found = told(world, world.pod("p", containers=ports, affinity={"nodeAffinity": required}))

    affinity, port = lacks(found)
    assert affinity.endswith("no term of spec.affinity.nodeAffinity holds")
    assert port == "node(s) didn't have free ports for the requested pod ports: 80/TCP"


def test_all_that_is_lacking_is_told_not_only_the_first(world: World) -> None:
    taints = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}]
    world.node("n", cpu="1", taints=taints, unschedulable=True)
    found = told(world, world.pod("p", requests={"cpu": "2", "memory": "9Gi"}))

    assert [lack.split(":")[0] for lack in lacks(found)] == [
        "node(s) were unschedulable", "node(s) had untolerated taint {a", "node(s) had untolerated taint {b",
        "Insufficient cpu", "Insufficient memory",
    ]  # fmt: skip


def test_storage_with_its_numbers(world: World) -> None:
    world.storage_class()
    for node, free, largest in (("far", "1Gi", "1Gi"), ("near", "8Gi", "6Gi")):
        world.node(node)
        world.capacity(node, free, largest=largest)
    world.claim("c", "7Gi")
    key = f"{names.SYSTEM_NAMESPACE}/late-near"
    found = told(world, world.pod("p", claims=["c"]), written={key: "2026-01-01T00:00:00Z"})

    head = "node(s) did not have enough free storage: claim c, class late"
    assert lacks(found, "near") == [f"{head}: asks 7Gi, free 8Gi, largest 6Gi"]
    room = next(answer for answer in found.nodes if answer.node == "near").claims[0]
    assert (room.asked, room.free, room.largest) == (7 * GI, 8 * GI, 6 * GI)
    assert room.published == "2026-01-01T00:00:00Z"
    assert found.todo == (
        "nearest is near: ask for at most 6Gi in c, or free 1Gi on near by deleting pods or claims there, or add a node"
    )


def test_what_is_promised_is_not_free(world: World) -> None:
    world.storage_class()
    world.node("n")
    world.capacity("n", "10Gi", counted=0)
    world.claim("first", "8Gi")
    assert world.place(world.pod("p1", claims=["first"])) == "n"
    world.claim("c", "3Gi")

    (answer,) = told(world, world.pod("p", claims=["c"])).nodes
    assert answer.claims[0].free == 2 * GI
    assert not answer.fits


def test_claims_that_fit_alone_and_not_together(world: World) -> None:
    world.storage_class()
    world.node("n")
    world.capacity("n", "10Gi")
    world.claim("a", "6Gi")
    world.claim("b", "6Gi")
    found = told(world, world.pod("p", claims=["a", "b"]))

    text = "node(s) did not have enough free storage: claims a, b ask 12Gi together, 10Gi are free"
    assert lacks(found) == [text]
    assert "free 2Gi on n" in found.todo


def test_what_to_do_counts_the_siblings_too(world: World) -> None:
    world.storage_class()
    world.node("n")
    world.capacity("n", "2Gi")
    world.claim("large", "3Gi")
    world.claim("small", "1Gi")
    found = told(world, world.pod("p", claims=["large", "small"]))

    assert found.todo.startswith("nearest is n: ask for at most 1Gi in large, or free 2Gi on n ")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(room=st.integers(0, 9), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), shared=st.booleans())
def test_as_much_more_room_as_it_says_is_enough(
    make_world: Callable[[], Any], room: int, sizes: list[int], shared: bool
) -> None:
    world = make_world()
    world.node("n")
    classes = ("late", "other")
    pool = "p" if shared else ""
    for name in classes:
        world.storage_class(name)
        world.capacity("n", f"{room}Gi", storage_class=name, pool=pool)
    for index, size in enumerate(sizes):
        world.claim(f"c{index}", f"{size}Gi", storageClassName=classes[index % 2])
    ask = compile_ask(world.pod("p", claims=[f"c{index}" for index in range(len(sizes))]))
    look = ShortfallSearch(world.cycle, world.cycle.pre_filter(ask), {})
    found = list(look.lacks(0))
    missing = max((lack.missing for lack in found), default=0)

    for name in classes:
        world.capacity("n", str(room * GI + missing), storage_class=name, pool=pool)
    assert list(look.lacks(0)) == []
    assert missing > 0 or not found


def test_nothing_published_and_a_class_that_can_have_none(world: World) -> None:
    world.storage_class()
    world.node("silent")
    world.node("faulty")
    world.capacity("faulty", "0", reason="there is no pool 'nope'")
    world.claim("c")
    found = told(world, world.pod("p", claims=["c"]))

    assert lacks(found, "silent")[0].endswith("claim c, class late: nothing is published")
    assert lacks(found, "faulty")[0].endswith("claim c, class late: there is no pool 'nope'")


def test_volumes_that_are_elsewhere(world: World) -> None:
    world.storage_class()
    world.node("n")
    world.node("other", unschedulable=True)
    world.volume("pv", node="other", claim="kept", phase="Bound")
    world.bound_claim("kept", "pv")
    found = told(world, world.pod("p", claims=["kept"]))

    assert lacks(found) == ["node(s) had volume node affinity conflict: pv (kept)"]
    assert lacks(found, "other") == ["node(s) were unschedulable"]


def test_a_claim_that_was_sent_elsewhere(world: World) -> None:
    world.storage_class()
    world.node("n")
    world.node("other", cpu="0")
    world.claim("c", annotations={names.SELECTED_NODE: "other"})
    found = told(world, world.pod("p", requests={"cpu": "1"}, claims=["c"]))

    assert lacks(found)[0].endswith("claim c was sent to node other")


def test_what_stands_against_it_everywhere(world: World) -> None:
    world.node("n")
    pod = world.pod("p", claims=["nope"], schedulingGates=[{"name": "example.org/wait"}], schedulerName="mine")
    found = told(world, pod)

    assert found.everywhere == [
        "spec.schedulingGates: example.org/wait", "there is no scheduler mine", 'persistentvolumeclaim "nope" not found',
    ]  # fmt: skip
    assert "make the claim" in found.todo


def test_a_claim_whose_class_is_not_there(world: World) -> None:
    world.node("n")
    world.claim("c", storageClassName="typo")
    found = told(world, world.pod("p", claims=["c"]))

    assert found.todo == "make the StorageClass typo, or name one of `kubectl get storageclasses` in the claim"


def test_what_the_box_does_not_support_is_rejected_and_elsewhere_not_looked_at(world: World) -> None:
    world.node("n")
    pod = world.pod("p", resourceClaims=[{"name": "gpu"}])

    here = told(world, pod)
    assert here.everywhere == ["spec.resourceClaims not supported by this scheduler"]
    assert here.unchecked == []
    there = told(world, pod, scheduler="")
    assert there.everywhere == []
    assert there.unchecked == ["spec.resourceClaims"]
    assert there.todo.startswith("see spec.resourceClaims")


def test_pods_that_stand_in_the_way(world: World) -> None:
    world.node("n")
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
    far = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    world.cluster.pod_placed(world.pod("first", nodeName="n"))

    found = told(world, world.pod("p", affinity=far))
    assert found.nodes[0].lacks == ["node(s) didn't match pod anti-affinity rules"]
    assert "add a node" in found.todo


def test_pods_that_are_well(world: World) -> None:
    world.node("n")
    assert told(world, world.pod("p")).todo.startswith("wait a moment: n fits")
    assert told(world, world.pod("p", nodeName="n")).todo.startswith("nothing: it is on node n")


def test_what_another_scheduler_told_the_pod(world: World) -> None:
    world.node("n")
    pod = world.pod("p")
    condition = Condition(type="PodScheduled", status="False", message="0/1 nodes: didn't match pod affinity rules")
    pod = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=[condition]))

    assert told(world, pod, scheduler="").condition == condition.message
    assert told(world, world.pod("p")).condition == ""


def test_no_nodes(world: World) -> None:
    assert told(world, world.pod("p")).todo == "add a node: no nodes available to schedule pods"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    nodes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.booleans()), min_size=1, max_size=5),
    cpu=st.integers(0, 3),
    sizes=st.lists(st.integers(1, 5), max_size=3),
)
def test_it_says_what_the_scheduler_does(
    make_world: Callable[[], Any], nodes: list[tuple[int, int, bool]], cpu: int, sizes: list[int]
) -> None:
    world = make_world()
    world.storage_class()
    for index, (cores, room, cordoned) in enumerate(nodes):
        world.node(f"n{index}", cpu=str(cores), unschedulable=cordoned)
        world.capacity(f"n{index}", f"{room}Gi")
    for index, size in enumerate(sizes):
        world.claim(f"c{index}", f"{size}Gi")
    pod = world.pod("p", requests={"cpu": str(cpu)} if cpu else {}, claims=[f"c{n}" for n in range(len(sizes))])
    found = told(world, pod)

    fitting = {f"n{n}" for n, (cores, room, no) in enumerate(nodes) if cores >= cpu and room >= sum(sizes) and not no}
    assert {answer.node for answer in found.nodes if answer.fits} == fitting
    assert all(bool(answer.lacks) != answer.fits for answer in found.nodes)
    outcome = world.decide(pod)
    assert (outcome.node in fitting) if isinstance(outcome, SchedulingDecision) else not fitting
    assert found.message == ("" if isinstance(outcome, SchedulingDecision) else outcome.message)
    assert found.todo
