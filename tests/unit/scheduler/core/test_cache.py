"""Which change wakes which rejected pod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.scheduler.world import World

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import ATTACHMENTS, CSI_NODES
from tonnage.scheduler.framework.plugin import Diagnosis
from tonnage.scheduler.framework.pod_info import compile_ask

HARD = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
PORT = [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]
Change = Callable[[Any], object]


@pytest.fixture
def stage(world: World) -> Any:
    """One node with 4 cpus, a late class and 10Gi; long ago, so that no back-off is left."""
    world.node("node-1")
    world.storage_class()
    world.capacity("node-1", "10Gi", counted=0)
    return world


def reject(world: World, pod: Any) -> None:
    """Queue a pod and let it be rejected; time passes."""
    uid = pod.metadata.uid
    world.queue.add(uid, compile_ask(pod), world.now)
    entry = world.queue.pop()
    outcome = world.decide(pod)
    assert isinstance(outcome, Diagnosis), outcome
    assert entry is not None
    world.queue.reject(entry, outcome.causes, world.now, needs=outcome.needs)
    world.now += 60


def woken(world: World, change: Change) -> bool:
    change(world)
    return world.queue.pop() is not None


def csi_node(count: int) -> Change:
    driver = {"name": names.DRIVER, "nodeID": "n", "allocatable": {"count": count}}
    return lambda w: w.csi_nodes.put(w.read(CSI_NODES, "node-1", {"spec": {"drivers": [driver]}}))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda w: w.capacity("node-1", "40Gi", counted=0), True, id="enough room"),
        pytest.param(lambda w: w.capacity("node-1", "19Gi", counted=0), False, id="more room, still too little"),
        pytest.param(lambda w: w.capacity("node-1", "5Gi", counted=0), False, id="less room"),
        pytest.param(lambda w: w.capacities.remove(f"{names.SYSTEM_NAMESPACE}/late-node-1"), False, id="object gone"),
        pytest.param(lambda w: w.capacity("node-2", "40Gi"), True, id="new object"),
        pytest.param(lambda w: w.capacity("node-1", "40Gi", storage_class="other"), False, id="another class"),
        pytest.param(lambda w: w.driver(measured=False), True, id="driver no longer measured"),
        pytest.param(lambda w: w.node("node-2"), True, id="new node"),
        pytest.param(lambda w: w.node("node-1", labels={"a": "b"}), True, id="label"),
        pytest.param(lambda w: w.node("node-1"), False, id="heartbeat"),
        pytest.param(lambda w: w.node("node-1", cpu="64"), False, id="more cpu"),
        pytest.param(lambda w: w.claim("c", "1Gi"), True, id="its claim changed"),
        pytest.param(lambda w: w.claim("d", "1Gi"), False, id="another claim"),
        pytest.param(lambda w: w.volume("free", "30Gi"), True, id="a free volume of its class"),
        pytest.param(lambda w: w.volume("free", "30Gi", storageClassName="x"), False, id="a free volume of another"),
        pytest.param(lambda w: w.volume("pv", "1Gi", claim="d", phase="Bound"), False, id="another claim's volume"),
        pytest.param(lambda w: w.volume("pv", "30Gi", claim="c"), True, id="a volume that points to its claim"),
        pytest.param(lambda w: w.storage_class("more"), True, id="new class"),
        pytest.param(lambda w: w.storage_class(reclaimPolicy="Retain"), False, id="class changed elsewhere"),
        pytest.param(
            lambda w: w.storage_class(allowedTopologies=[{"matchLabelExpressions": [{"key": "a", "values": ["b"]}]}]),
            True,
            id="allowed topologies",
        ),
    ],
)
def test_rejected_for_storage(stage: Any, change: Change, expected: bool) -> None:
    stage.claim("c", "20Gi")
    reject(stage, stage.pod("p", claims=["c"]))

    assert woken(stage, change) is expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda w: w.cluster.pod_lifted("uid-large"), True, id="room is made"),
        pytest.param(lambda w: w.cluster.pod_lifted("uid-small"), False, id="too little room is made"),
        pytest.param(lambda w: w.node("node-1", cpu="5"), False, id="grows too little"),
        pytest.param(lambda w: w.node("node-1", cpu="8"), True, id="grows"),
        pytest.param(lambda w: w.node("node-2"), True, id="new node"),
        pytest.param(lambda w: w.capacity("node-1", "40Gi"), False, id="more storage"),
        pytest.param(lambda w: w.claim("c"), False, id="a claim"),
    ],
)
def test_rejected_for_resources(stage: Any, change: Change, expected: bool) -> None:
    assert stage.place(stage.pod("large", requests={"cpu": "3"})) == "node-1"
    assert stage.place(stage.pod("small", requests={"cpu": "1"})) == "node-1"
    reject(stage, stage.pod("p", requests={"cpu": "3"}))

    assert woken(stage, change) is expected


@pytest.mark.parametrize(
    ("node", "better", "expected"),
    [
        pytest.param({"taints": [HARD]}, {}, True, id="untainted"),
        pytest.param({"taints": [HARD]}, {"taints": [HARD, {**HARD, "key": "x"}]}, False, id="one more taint"),
        pytest.param({"unschedulable": True}, {}, True, id="uncordoned"),
        pytest.param({"unschedulable": True}, {"unschedulable": True, "cpu": "9"}, False, id="more cpu"),
    ],
)
def test_rejected_by_the_node(world: World, node: dict[str, Any], better: dict[str, Any], expected: bool) -> None:
    world.node("node-1", **node)
    reject(world, world.pod("p"))

    assert woken(world, lambda w: w.node("node-1", **better)) is expected


def test_rejected_for_ports(stage: Any) -> None:
    stage.place(stage.pod("a", containers=PORT))
    stage.place(stage.pod("other"))
    reject(stage, stage.pod("p", containers=PORT))

    assert not woken(stage, lambda w: w.cluster.pod_lifted("uid-other"))
    assert woken(stage, lambda w: w.cluster.pod_lifted("uid-a"))


def test_rejected_for_limits(stage: Any) -> None:
    csi_node(1)(stage)
    for name in ("a", "b"):
        stage.claim(name)
    stage.place(stage.pod("with-volume", claims=["a"]))
    reject(stage, stage.pod("p", claims=["b"]))

    assert not woken(stage, csi_node(1))
    assert woken(stage, csi_node(2))


def test_attachment_counts_until_it_is_gone(stage: Any) -> None:
    csi_node(1)(stage)
    stage.volume("pv-1", node="node-1", phase="Bound", claim="elsewhere")
    spec = {"nodeName": "node-1", "source": {"persistentVolumeName": "pv-1"}}
    stage.attachments.put(stage.read(ATTACHMENTS, "va", {"spec": spec}))
    stage.claim("b")
    reject(stage, stage.pod("p", claims=["b"]))

    assert woken(stage, lambda w: w.attachments.remove("va"))
    assert stage.place(stage.pod("p", claims=["b"])) == "node-1"


def test_exclusive_claim_is_given_up(stage: Any) -> None:
    stage.claim("c", accessModes=["ReadWriteOncePod"])
    stage.place(stage.pod("a", claims=["c"]))
    reject(stage, stage.pod("p", claims=["c"]))

    assert woken(stage, lambda w: w.cluster.pod_lifted("uid-a"))


def test_dropped_reservation_wakes_who_waits_for_room(stage: Any) -> None:
    stage.claim("a", "8Gi")
    stage.claim("b", "8Gi")
    assert stage.place(stage.pod("first", claims=["a"])) == "node-1"
    reject(stage, stage.pod("p", claims=["b"]))

    assert woken(stage, lambda w: w.objects.claims.remove("default/a"))


def test_node_that_cannot_be_read_takes_no_pods(stage: Any) -> None:
    stage.node("node-1", cpu="many")

    assert isinstance(stage.decide(stage.pod("p")), Diagnosis)
    stage.node("node-1", cpu="2")
    assert stage.place(stage.pod("p")) == "node-1"


def test_decision_taken_back_leaves_nothing(stage: Any) -> None:
    stage.claim("a", "8Gi")
    pod = stage.pod("p", claims=["a"], requests={"cpu": "4"})
    ask = compile_ask(pod)
    decision = stage.cycle.decide(ask)
    stage.cycle.reserve(ask, decision)
    stage.cycle.roll_back(ask, decision)

    columns = stage.cluster.columns
    assert stage.cluster.published.on("node-1")["late"][0].outstanding == 0
    assert columns.free["cpu"] == columns.allocatable["cpu"]
    assert (columns.placed, columns.claim_users, columns.attached) == ({}, {}, [{names.DRIVER: {}}])


def test_claims_already_sent_stay_promised_when_a_decision_is_taken_back(stage: Any) -> None:
    stage.claim("a", "4Gi")
    stage.claim("b", "4Gi")
    ask = compile_ask(stage.pod("p", claims=["a", "b"]))
    decision = stage.cycle.decide(ask)
    stage.cycle.reserve(ask, decision)
    stage.send("a", "node-1")

    stage.cycle.roll_back(ask, decision)

    assert stage.cluster.published.on("node-1")["late"][0].outstanding == 4 << 30
