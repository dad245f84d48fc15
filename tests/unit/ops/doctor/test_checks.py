"""Each check over what a cluster tells: a healthy one, and one thing broken at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.unit.ops.doctor.conftest import Ward

from tonnage.aio.clock import rfc3339
from tonnage.api import names
from tonnage.api.storage import CSIDriver
from tonnage.ops.doctor import capacity, claims, installation, registration, storage_classes, volumes
from tonnage.ops.doctor.finding import Finding, Level

NOW = 1_800_000_000.0
CHECKS = (installation, registration, storage_classes, capacity, claims, volumes)
FAIL, WARN = Level.FAIL, Level.WARN
Break = Callable[[Ward], object]


def _all(ward: Ward) -> list[Finding]:
    return [finding for check in CHECKS for finding in check.check(ward.view)]


def test_a_healthy_installation(ward: Ward) -> None:
    ward.volume("v", "n1")
    found = _all(ward)

    assert {f.level for f in found} == {Level.OK}
    assert {f.check for f in found} == {
        *("api", "csidriver", "agents", "controller", "registration", "classes", "capacity", "claims", "volumes"),
    }


def _set(name: str, value: Any) -> Break:
    return lambda ward: setattr(ward.view, name, value)


def _driver(**fields: Any) -> Break:
    def change(ward: Ward) -> None:
        spec = {**msgspec.to_builtins(ward.view.driver)["spec"], **fields}
        ward.view.driver = msgspec.convert({"spec": spec}, CSIDriver)

    return change


def _full(ward: Ward) -> None:
    ward.node("n1", most=1)
    ward.volume("v", "n1")


_CRASH = {"containerStatuses": [{"name": "node", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}

BROKEN: tuple[tuple[str, Break, Level, str, str], ...] = (
    ("rights", lambda w: w.view.refused.update(daemonsets="no"), WARN, "permission denied: daemonsets", "administrator"),
    ("api", _set("served", frozenset()), FAIL, "does not serve", "1.24"),
    ("csidriver", _set("driver", None), FAIL, "CSIDriver not found", "kubectl apply"),
    ("csidriver", _driver(storageCapacity=False), FAIL, "storageCapacity is false, must be true", "delete"),
    ("csidriver", _driver(seLinuxMount=False), WARN, "seLinuxMount is false", "delete"),
    ("csidriver", _driver(volumeLifecycleModes=["Ephemeral"]), FAIL, "lacks Persistent", "delete"),
    ("agents", lambda w: w.agent("n1", **_CRASH), FAIL, "agent of n1 is not ready: CrashLoopBackOff", "logs"),
    ("agents", lambda w: w.agent("n1", phase="Pending"), FAIL, "agent of n1 is not ready: Pending", "describe"),
    ("agents", _set("daemon_sets", []), WARN, "no DaemonSet of agents", "--namespace"),
    ("controller", lambda w: w.lead(NOW - 600), FAIL, "none is leader", "logs"),
    ("controller", _set("lease", None), FAIL, "none is leader", "logs"),
    ("controller", _set("deployments", []), WARN, "no controller runs", "apply"),
    ("scheduler", lambda w: w.schedule(NOW - 600), FAIL, "none is leader", "component=scheduler"),
    ("scheduler", lambda w: w.schedule(NOW, ready=1), WARN, "1 of 2 replicas", "component=scheduler"),
    ("scheduler", lambda w: w.schedule(NOW, ready=0), FAIL, "0 of 2 replicas", "component=scheduler"),
    ("registration", lambda w: w.node("n1", listed=False), FAIL, "the kubelet does not list", "delete pod agent-n1"),
    ("registration", lambda w: w.node("n1", node_id="x"), FAIL, "reports node ID 'x'", "NODE_NAME"),
    ("registration", lambda w: w.node("n1", keys=("a/b",)), FAIL, "topology keys are a/b, without", "delete pod"),
    ("registration", lambda w: w.node("n1", labels={}), FAIL, "is missing, must be n1", "kubectl label node n1"),
    ("registration", lambda w: w.node("n1", taints=(names.STARTUP_TAINT,)), FAIL, "remains", "kubectl taint"),
    ("registration", _full, WARN, "its limit is 1", "maxVolumes"),
    ("classes", lambda w: w.storage_class("x", parameters={"pool": "no"}), FAIL, "'no', and no node has one", "delete"),
    ("classes", lambda w: w.storage_class("x", parameters={"tonnage.dev/y": "1"}), FAIL, "unknown parameter", "delete"),
    ("classes", lambda w: w.capacity("fast", "n1", reason="no"), WARN, "1 of 2 nodes cannot serve it: no (n1)", "no action"),
    ("classes", _set("files", {"tonnage-node": "bad"}), FAIL, "not a node's file: bad", "edit configmap tonnage-node"),
    ("classes", _set("classes", []), WARN, "no class has provisioner", "apply"),
    ("capacity", _set("capacities", []), FAIL, "no capacity is published for fast", "access"),
    ("capacity", lambda w: w.capacity("fast", "n1", writer="kubectl-edit"), FAIL, "written by kubectl-edit", "delete"),
    ("capacity", lambda w: w.capacity("fast", "n1", capacity="x"), FAIL, "x", "delete"),
    ("capacity", lambda w: w.capacity("fast", "n1", nodeTopology={"matchLabels": {"a": "b"}}), FAIL, "counts for", "del"),
    ("capacity", lambda w: w.capacity("fast", "n1", metadata={"ownerReferences": []}), FAIL, "its Node", "delete"),
    ("capacity", lambda w: w.capacity("fast", "n1", metadata={"labels": {}}), FAIL, "is missing", "delete"),
    ("capacity", lambda w: w.capacity("fast", "n1", reason="no", capacity="1Gi"), FAIL, "reason why the class", "delete"),
    ("capacity", lambda w: w.capacity("fast", "n1", capacity="0"), WARN, "no capacity left on n1", "remove volumes"),
    ("capacity", lambda w: w.node("n1", labels={names.TOPOLOGY_NODE: "n1", names.TEMPLATE_NODE: "true"}), FAIL,
     "is for template nodes", "kubectl label node n1"),
    ("capacity", lambda w: w.capacity("fast", "gone"), FAIL, "no agent of namespace", "delete csistoragecapacity"),
    ("volumes", lambda w: w.volume("v", "gone"), WARN, "its node gone is gone", "replace-node"),
    ("volumes", lambda w: w.volume("v", ""), WARN, "no node affinity", "adopt"),
    ("volumes", lambda w: w.volume("v", "n1", phase="Failed"), FAIL, "its deletion failed", "describe pv v"),
    ("volumes", lambda w: w.volume("v", "n1", phase="Released"), WARN, "waits for deletion by node n1", "describe"),
    ("volumes", lambda w: w.volume("v", "n1", phase="Released", policy="Retain"), WARN, "stays because", "orphan"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("check", "break_it", "level", "text", "todo"), BROKEN, ids=lambda v: v if isinstance(v, str) else ""
)
def test_one_thing_is_broken(ward: Ward, check: str, break_it: Break, level: Level, text: str, todo: str) -> None:
    break_it(ward)
    bad = [f for f in _all(ward) if f.level is not Level.OK and f.check == check]

    assert [f.level for f in bad][:1] == [level], bad
    assert text in bad[0].text
    assert todo in bad[0].todo
    assert not [f for f in _all(ward) if f.level is Level.OK and f.check == check and f.about == bad[0].about]


def test_an_agent_without_a_pod(ward: Ward) -> None:
    ward.view.agents = ward.view.agents[:1]

    assert "1 of 2 agents have a pod" in [f.text for f in installation.check(ward.view)]


def test_agents_of_another_version(ward: Ward) -> None:
    ward.view.agents[0].metadata.labels["app.kubernetes.io/version"] = "0.0.1"

    (found,) = [f for f in installation.check(ward.view) if f.level is not Level.OK]
    assert (found.check, found.level) == ("agents", WARN)
    assert "agents of version 0.0.1 run" in found.text


def test_nothing_is_installed(ward: Ward) -> None:
    ward.view.daemon_sets, ward.view.agents, ward.view.csi_nodes = [], [], []

    assert {f.check for f in _all(ward) if f.level is FAIL} == {"agents", "registration", "capacity"}


def test_classes_of_static_pools_have_no_room_and_no_fault(ward: Ward) -> None:
    for node in ("n1", "n2"):
        ward.capacity("fast", node, reason=names.AHEAD)

    assert {f.level for f in _all(ward)} == {Level.OK}


def test_a_class_that_no_node_can_serve(ward: Ward) -> None:
    for node in ("n1", "n2"):
        ward.capacity("fast", node, reason="mkfsOptions: no")

    (found,) = [f for f in _all(ward) if f.level is not Level.OK]
    assert found.text == "no node can serve it: mkfsOptions: no (n1, n2)"


def test_a_class_that_binds_at_once_needs_a_leader(ward: Ward) -> None:
    ward.storage_class("now", volumeBindingMode="Immediate")
    assert {f.level for f in storage_classes.check(ward.view)} == {Level.OK}

    ward.view.lease = None
    assert [f.about for f in storage_classes.check(ward.view) if f.level is FAIL] == ["now"]


def test_a_class_for_some_places(ward: Ward) -> None:
    term = {"matchLabelExpressions": [{"key": names.TOPOLOGY_NODE, "values": ["n1"]}]}
    ward.storage_class("here", allowedTopologies=[term])
    wrong = [f for f in capacity.check(ward.view) if f.level is FAIL]
    assert ["no agent of namespace" in f.text for f in wrong] == [True]  # n2 would not publish it

    ward.view.capacities = [c for c in ward.view.capacities if c.key != wrong[0].about]
    assert {f.level for f in capacity.check(ward.view)} == {Level.OK}


def test_a_released_volume_whose_agent_is_down(ward: Ward) -> None:
    ward.volume("v", "n1", phase="Released", deletionTimestamp=rfc3339(NOW - 100))
    ward.agent("n1", phase="Pending")

    (found,) = volumes.check(ward.view)
    assert found.level is FAIL
    assert found.text == "it waits for deletion by node n1, whose agent is not ready"


def test_one_that_is_removed_just_now(ward: Ward) -> None:
    ward.volume("v", "n1", phase="Released", deletionTimestamp=rfc3339(NOW - 2))

    assert {f.level for f in volumes.check(ward.view)} == {Level.OK}
