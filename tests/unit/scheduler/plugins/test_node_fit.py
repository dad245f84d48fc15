"""What keeps pods from nodes, with the texts of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.scheduler.world import World

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Taint
from tonnage.kubernetes.api.kinds import CSI_NODES
from tonnage.kubernetes.api.pods import Toleration
from tonnage.kubernetes.api.taints import tolerates
from tonnage.scheduler.core.cycle import NO_NODES
from tonnage.scheduler.framework.plugin import Diagnosis, RejectionCause

HARD = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
SOFT = {"key": "old", "effect": "PreferNoSchedule"}


def required(*expressions: dict[str, Any], fields: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions), "matchFields": fields or []}
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"nodeAffinity": {kind: {"nodeSelectorTerms": [term]}}}


def container(**requests: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {k.replace("_", "-"): v for k, v in requests.items()}}}


SIDECAR = {**container(cpu="1"), "restartPolicy": "Always"}
ZONE_A = {"key": "zone", "operator": "In", "values": ["a"]}
PORT = [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]


@pytest.mark.parametrize(
    ("node", "pod", "why"),
    [
        pytest.param({}, {"requests": {"cpu": "4", "memory": "8Gi"}}, "", id="exactly fits"),
        pytest.param({}, {"requests": {"cpu": "4001m"}}, "Insufficient cpu", id="cpu"),
        pytest.param({}, {"requests": {"memory": "9Gi"}}, "Insufficient memory", id="memory"),
        pytest.param({}, {"requests": {"example.org/gpu": "1"}}, "Insufficient example.org/gpu", id="extended"),
        pytest.param({"allocatable": {"example.org/gpu": "2"}}, {"requests": {"example.org/gpu": "2"}}, "", id="has"),
        pytest.param(
            {}, {"requests": {"ephemeral-storage": "1Gi"}}, "Insufficient ephemeral-storage", id="ephemeral storage"
        ),
        pytest.param({"pods": "0"}, {}, "Too many pods", id="pods"),
        pytest.param(
            {}, {"containers": [container(cpu="3")], "initContainers": [container(cpu="4")]}, "", id="init: the maximum"
        ),
        pytest.param(
            {}, {"containers": [container(cpu="1")], "initContainers": [container(cpu="5")]}, "Insufficient cpu",
            id="init too large",
        ),
        pytest.param(
            {}, {"containers": [container(cpu="3")], "initContainers": [SIDECAR]}, "", id="sidecar beside the others"
        ),
        pytest.param(
            {}, {"containers": [container(cpu="3500m")], "initContainers": [SIDECAR]}, "Insufficient cpu",
            id="sidecar counts for good",
        ),
        pytest.param(
            {}, {"containers": [container()], "initContainers": [SIDECAR, container(cpu="3500m")]}, "Insufficient cpu",
            id="sidecar beside a later init container",
        ),
        pytest.param(
            {}, {"containers": [container(cpu="4")], "overhead": {"cpu": "1m"}}, "Insufficient cpu", id="overhead"
        ),
        pytest.param(
            {}, {"containers": [container()], "resources": {"requests": {"cpu": "5"}}}, "Insufficient cpu",
            id="requests of the whole pod",
        ),
        pytest.param(
            {}, {"containers": [{"name": "c", "resources": {"limits": {"cpu": "5"}}}]}, "Insufficient cpu",
            id="limits stand in for requests",
        ),
        pytest.param({"unschedulable": True}, {}, "node(s) were unschedulable", id="cordoned"),
        pytest.param(
            {"unschedulable": True},
            {"tolerations": [{"key": names.UNSCHEDULABLE_TAINT, "operator": "Exists"}]}, "", id="cordoned, tolerated",
        ),
        pytest.param({"taints": [HARD]}, {}, "node(s) had untolerated taint {gpu: yes}", id="taint"),
        pytest.param(
            {"taints": [HARD]}, {"tolerations": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}, "",
            id="tolerated",
        ),
        pytest.param({"taints": [SOFT]}, {}, "", id="a soft taint keeps nobody away"),
        pytest.param({"labels": {"zone": "a"}}, {"nodeSelector": {"zone": "a"}}, "", id="selector"),
        pytest.param(
            {"labels": {"zone": "a"}}, {"nodeSelector": {"zone": "b"}},
            "node(s) didn't match Pod's node affinity/selector", id="selector does not match",
        ),
        pytest.param({"labels": {"zone": "a"}}, {"affinity": required(ZONE_A)}, "", id="affinity"),
        pytest.param(
            {"labels": {"zone": "b"}}, {"affinity": required(ZONE_A)},
            "node(s) didn't match Pod's node affinity/selector", id="affinity does not match",
        ),
        pytest.param(
            {},
            {"affinity": required(fields=[{"key": "metadata.name", "operator": "In", "values": ["node-2"]}])},
            "node(s) didn't match Pod's node affinity/selector", id="affinity to another node's name",
        ),
    ],
)  # fmt: skip
def test_one_node(world: World, node: dict[str, Any], pod: dict[str, Any], why: str) -> None:
    world.node("node-1", **node)

    outcome = world.place(world.pod("p", **pod))

    assert outcome == (f"0/1 nodes are available: 1 {why}." if why else "node-1")


def test_reasons_are_counted_and_sorted_as_text(world: World) -> None:
    for number in range(2):
        world.node(f"small-{number}", cpu="1", memory="1Gi")
    world.node("tainted", taints=[HARD])
    world.node("cordoned", unschedulable=True)

    message = world.place(world.pod("p", requests={"cpu": "2", "memory": "2Gi"}))

    assert message == (
        "0/4 nodes are available: 1 node(s) had untolerated taint {gpu: yes}, 1 node(s) were unschedulable, "
        "2 Insufficient cpu, 2 Insufficient memory."
    )


def test_no_nodes(world: World) -> None:
    assert world.decide(world.pod("p")) == Diagnosis(NO_NODES, RejectionCause.NODE)


def test_host_ports(world: World) -> None:
    world.node("node-1")
    assert world.place(world.pod("a", containers=PORT)) == "node-1"

    message = world.place(world.pod("b", containers=PORT))

    assert message == "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
    world.cluster.pod_lifted("uid-a")
    assert world.place(world.pod("b", containers=PORT)) == "node-1"


@pytest.mark.parametrize(
    ("first", "second", "conflict"),
    [
        pytest.param({}, {"protocol": "UDP"}, False, id="other protocol"),
        pytest.param({"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.2"}, False, id="other address"),
        pytest.param({"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.1"}, True, id="same address"),
        pytest.param({"hostIP": "10.0.0.1"}, {"hostIP": "0.0.0.0"}, True, id="every address"),
        pytest.param({"hostIP": "10.0.0.1"}, {}, True, id="no address is every address"),
        pytest.param({}, {"hostPort": 81}, False, id="other port"),
        pytest.param({}, {"hostPort": 0}, False, id="no host port"),
    ],
)
def test_which_ports_conflict(world: World, first: dict[str, Any], second: dict[str, Any], conflict: bool) -> None:
    world.node("node-1")
    port = {"containerPort": 80, "hostPort": 80}
    world.place(world.pod("a", containers=[{"name": "c", "ports": [{**port, **first}]}]))

    outcome = world.place(world.pod("b", containers=[{"name": "c", "ports": [{**port, **second}]}]))

    assert (outcome != "node-1") == conflict


_SOME_NAMESPACES = {"topologyKey": "zone", "namespaceSelector": {"matchLabels": {"team": "a"}}}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        pytest.param(
            {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_SOME_NAMESPACES]}}},
            "namespaceSelector of pod affinity terms (other than {})",
            id="namespaces by label",
        ),
        pytest.param({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims", id="resource claims"),
    ],
)
def test_what_is_not_supported_is_rejected_by_name(world: World, spec: dict[str, Any], named: str) -> None:
    world.node("node-1")

    message = world.place(world.pod("p", **spec))

    assert message == f"0/1 nodes are available: {named} not supported by this scheduler."


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}},
        {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]},
    ],
    ids=["preferred anti-affinity", "schedule anyway"],
)
def test_wishes_are_not_rejected(world: World, spec: dict[str, Any]) -> None:
    world.node("node-1")

    assert world.place(world.pod("p", **spec)) == "node-1"


def limited(world: World, node: str, limit: int) -> None:
    driver = {"name": names.DRIVER, "nodeID": node, "allocatable": {"count": limit}}
    world.csi_nodes.put(world.read(CSI_NODES, node, {"spec": {"drivers": [driver]}}))


def test_volume_limits_count_claims_bound_and_unbound_once(world: World) -> None:
    world.node("node-1")
    world.storage_class()
    world.capacity("node-1", "100Gi")
    limited(world, "node-1", 2)
    world.volume("pv-1", node="node-1", phase="Bound", claim="bound")
    world.bound_claim("bound", "pv-1")
    for name in ("fresh", "third"):
        world.claim(name)
    assert world.place(world.pod("a", claims=["bound"])) == "node-1"
    assert world.place(world.pod("b", claims=["bound", "fresh"])) == "node-1"

    assert (
        world.place(world.pod("c", claims=["third"])) == "0/1 nodes are available: 1 node(s) exceed max volume count."
    )
    # one that is there already is not counted twice
    assert world.place(world.pod("d", claims=["bound"])) == "node-1"

    limited(world, "node-1", 3)
    assert world.place(world.pod("c", claims=["third"])) == "node-1"


def test_pod_that_was_placed_before_its_claim_was_known_is_counted(world: World) -> None:
    world.node("node-1")
    world.storage_class()
    limited(world, "node-1", 1)
    world.capacity("node-1", "100Gi")
    world.cluster.pod_placed(world.pod("a", claims=["late-one"], nodeName="node-1"))
    world.claim("late-one")
    world.claim("other")

    message = world.place(world.pod("b", claims=["other"]))

    assert message == "0/1 nodes are available: 1 node(s) exceed max volume count."


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "value": "yes", "effect": "NoExecute"}, False),
        ({"operator": "Equal", "value": "yes"}, False),
    ],
)
def test_tolerations(toleration: dict[str, str], expected: bool) -> None:
    assert tolerates([Toleration(**toleration)], Taint(**HARD)) is expected


def test_resources_follow_pods_and_nodes(world: World) -> None:
    world.node("node-1", cpu="2")
    assert world.place(world.pod("a", requests={"cpu": "2"})) == "node-1"
    assert "Insufficient cpu" in world.place(world.pod("b", requests={"cpu": "1"}))

    world.node("node-1", cpu="3")
    assert world.place(world.pod("b", requests={"cpu": "1"})) == "node-1"

    world.nodes.remove("node-1")
    world.node("node-1", cpu="3")
    assert "Insufficient cpu" in world.place(world.pod("c", requests={"cpu": "1"}))  # its pods are still counted

    world.cluster.pod_lifted("uid-a")
    assert world.place(world.pod("c", requests={"cpu": "2"})) == "node-1"


def test_best_node_has_most_left_and_wishes_come_first(world: World, make_world: Callable[[], Any]) -> None:
    for name, cpu in (("small", "2"), ("large", "16")):
        world.node(name, cpu=cpu)
    world.node("wished", cpu="2", labels={"disk": "fast"})
    wish = {"weight": 10, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    preferred = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}

    assert world.place(world.pod("a", requests={"cpu": "1"})) == "large"
    assert world.place(world.pod("b", requests={"cpu": "1"}, affinity=preferred)) == "wished"

    tainted = make_world()
    tainted.node("large", cpu="16", taints=[SOFT])
    tainted.node("small", cpu="2")
    assert tainted.place(tainted.pod("c", requests={"cpu": "1"})) == "small"
