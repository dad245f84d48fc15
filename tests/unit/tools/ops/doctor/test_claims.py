"""Claims that wait: the reason in one sentence, and the next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tonnage.base.aio.clock import rfc3339
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Event, Lease, Node, PersistentVolumeClaim
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.storage import CSINode, StorageClass
from tonnage.kubernetes.api.workloads import DaemonSet
from tonnage.scheduler.framework.pod_info import compile_ask
from tonnage.tools.ops.cluster_snapshot import Published, View
from tonnage.tools.ops.doctor import claims, node_labels
from tonnage.tools.ops.doctor.finding import Finding, Level

NOW = 1_800_000_000.0
OLD, YOUNG = rfc3339(NOW - 100), rfc3339(NOW - 5)
Make = Callable[..., View]


def _claim(node: str = "", **more: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "data", "namespace": "team", "uid": "u1", "creationTimestamp": OLD}
    if node:
        metadata |= {"annotations": {names.SELECTED_NODE: node}, "labels": {names.NODE_LABEL: node}}
    spec = {"storageClassName": "fast", "resources": {"requests": {"storage": "40Gi"}}, **more.pop("spec", {})}
    status = {"phase": more.pop("phase", "Pending")}
    return {"metadata": {**metadata, **more}, "spec": spec, "status": status}


def _pod(**more: Any) -> dict[str, Any]:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    message = "0/2 nodes are available: 2 node(s) did not have enough free storage."
    condition = {"type": "PodScheduled", "status": "False", "message": more.pop("message", message)}
    status = {"conditions": [condition] if condition["message"] else []}
    spec = {"volumes": [volume], **more}
    return {"metadata": {"name": "web", "namespace": "team"}, "spec": spec, "status": status}


def _capacity(node: str, room: str, reason: str = "") -> dict[str, Any]:
    notes = {names.REASON: reason} if reason else {}
    metadata = {"name": f"c-{node}", "labels": {names.NODE_LABEL: node}, "annotations": notes}
    topology = {"matchLabels": {names.TOPOLOGY_NODE: node}}
    body = {"metadata": metadata, "storageClassName": "fast", "nodeTopology": topology}
    return {**body, "capacity": room, "maximumVolumeSize": room}


@pytest.fixture
def view() -> Make:
    """view(claim, pod=..., capacities=..., ready=True, mode=..., leads=False, event=""): two nodes have the driver."""

    def make(claim: dict[str, Any], **more: Any) -> View:
        made = View(names.SYSTEM_NAMESPACE, NOW, daemon_sets=[DaemonSet()])
        mode = more.get("mode", names.WAIT_FOR_FIRST_CONSUMER)
        storage_class = {"metadata": {"name": "fast"}, "provisioner": names.DRIVER, "volumeBindingMode": mode}
        made.classes = [msgspec.convert(storage_class, StorageClass)]
        made.nodes = [msgspec.convert({"metadata": {"name": n}}, Node) for n in ("n1", "n2", "bare")]
        entry = {"drivers": [{"name": names.DRIVER}]}
        made.csi_nodes = [msgspec.convert({"metadata": {"name": n}, "spec": entry}, CSINode) for n in ("n1", "n2")]
        ready = {"conditions": [{"type": "Ready", "status": str(more.get("ready", True))}]}
        made.agents = [
            msgspec.convert({"metadata": {"name": f"agent-{n}"}, "spec": {"nodeName": n}, "status": ready}, Pod)
            for n in ("n1", "n2", "bare")
        ]
        made.claims = [msgspec.convert(claim, PersistentVolumeClaim)]
        made.pods = [msgspec.convert(more["pod"], Pod)] if "pod" in more else []
        made.capacities = [msgspec.convert(c, Published) for c in more.get("capacities", ())]
        if more.get("leads"):
            spec = {"holderIdentity": "one", "renewTime": rfc3339(NOW - 3, micro=True)}
            made.lease = msgspec.convert({"spec": spec}, Lease)
        if text := more.get("event"):
            made.events = {"u1": [msgspec.convert({"type": "Warning", "message": text}, Event)]}
        return made

    return make


def _only(view: View) -> Finding:
    (found,) = claims.check(view)
    return found


@pytest.mark.parametrize(
    "claim",
    [
        _claim(),  # no pod wants it yet: its class waits for one
        _claim("n1", creationTimestamp=YOUNG),
        _claim("n1", phase="Bound", spec={"volumeName": "pv"}),
        _claim(spec={"storageClassName": "others"}),
        _claim(deletionTimestamp=YOUNG),
    ],
)
def test_nothing_is_wrong(view: Make, claim: dict[str, Any]) -> None:
    assert _only(view(claim)).level is Level.OK


def test_no_node_has_room(view: Make) -> None:
    found = _only(view(_claim(), pod=_pod(), capacities=[_capacity("n1", "10Gi"), _capacity("n2", "30Gi")]))

    assert found.level is Level.WARN
    assert found.about == "team/data"
    assert found.text == ("pod web fits on no node: it asks for 40Gi, and the largest published capacity is 30Gi (n2)")
    assert "ask for less" in found.todo


def test_room_for_one_but_not_for_the_pod(view: Make) -> None:
    found = _only(view(_claim(), pod=_pod(), capacities=[_capacity("n1", "50Gi")]))

    assert "its pod has more volumes" in found.text


def test_no_node_can_ever_serve_the_class(view: Make) -> None:
    both = [_capacity("n1", "0", "there is no pool 'nope'"), _capacity("n2", "0", "there is no pool 'nope'")]
    notice = {"metadata": {"labels": {names.TIER: names.TIER_NOTICE}}, "storageClassName": "fast"}
    found = _only(view(_claim(), pod=_pod(), capacities=[*both, notice]))

    assert found.level is Level.FAIL
    assert found.text == "pod web fits on no node: there is no pool 'nope'"


def test_nobody_publishes(view: Make) -> None:
    found = _only(view(_claim(), pod=_pod()))

    assert found.level is Level.FAIL
    assert "no node publishes capacity for class fast" in found.text


def test_the_pod_waits_for_something_else(view: Make) -> None:
    found = _only(view(_claim(), pod=_pod(message="0/2 nodes are available: 2 Insufficient cpu.")))

    assert found.level is Level.WARN
    assert "pod web is not scheduled: 0/2 nodes are available: 2 Insufficient cpu." in found.text
    assert "the cause is not its volumes" in found.todo


def test_a_pod_with_resource_claims_has_our_scheduler(view: Make) -> None:
    gpu = [{"name": "gpu", "resourceClaimName": "gpu"}]
    text = compile_ask(msgspec.convert(_pod(resourceClaims=gpu), Pod)).unsupported
    found = _only(view(_claim(), pod=_pod(resourceClaims=gpu, message=text)))

    assert "spec.resourceClaims not supported" in found.text
    assert "the cluster's own scheduler" in found.todo


def test_the_pod_was_placed_by_hand(view: Make) -> None:
    found = _only(view(_claim(), pod=_pod(message="", nodeName="n1")))

    assert found.level is Level.FAIL
    assert "assigned to node n1 without a scheduler" in found.text


@pytest.mark.parametrize(
    ("node", "more", "level", "text"),
    [
        ("gone", {}, Level.FAIL, "selected node gone does not exist"),
        ("n1", {"ready": False}, Level.FAIL, "its agent is not ready"),
        ("bare", {}, Level.FAIL, "it has no driver"),
        ("n1", {}, Level.FAIL, "its agent has emitted no Event for the claim"),
        ("n1", {"event": "access mode X is not possible"}, Level.WARN, "cannot create its volume: access mode X"),
    ],
)
def test_it_was_sent(view: Make, node: str, more: dict[str, Any], level: Level, text: str) -> None:
    found = _only(view(_claim(node), **more))

    assert found.level is level
    assert text in found.text
    assert found.todo


def test_it_was_sent_and_not_labelled(view: Make) -> None:
    found = _only(view(_claim("n1", labels={})))

    assert found.level is Level.FAIL
    assert "lacks its label" in found.text
    assert found.todo == f"see {node_labels._CHECK}"


@pytest.mark.parametrize("leads", [False, True])
def test_a_class_that_binds_at_once(view: Make, leads: bool) -> None:
    found = _only(view(_claim(), mode="Immediate", leads=leads, capacities=[_capacity("n1", "1Gi")]))

    assert found.level is (Level.WARN if leads else Level.FAIL)
    assert ("no node is selected yet" if leads else "no leading controller") in found.text


def test_its_volume_is_lost(view: Make) -> None:
    found = _only(view(_claim("n1", phase="Lost", spec={"volumeName": "pv-1"})))

    assert found.level is Level.FAIL
    assert "pv-1" in found.text
    assert "adopt" in found.todo


def test_deleted_while_a_pod_has_it(view: Make) -> None:
    claim = _claim("n1", deletionTimestamp=OLD, finalizers=["kubernetes.io/pvc-protection"])

    assert "waits for the end of pods web" in _only(view(claim, pod=_pod())).text
    assert "waits for finalizers kubernetes.io/pvc-protection" in _only(view(claim)).text


def _two(node: str, **notes: str) -> list[dict[str, Any]]:
    """The claims of a pod: one has waited on n1, the other has that node."""
    first, second = _claim("n1"), _claim(node, name="more", uid="u2")
    for claim in (first, second):
        claim["metadata"]["annotations"] = {**claim["metadata"].get("annotations", {}), **notes}
    return [first, second]


def _waits(view: Make, claims_: list[dict[str, Any]], **more: Any) -> Finding:
    pod = _pod(message="")
    pod["spec"]["volumes"].append({"name": "w", "persistentVolumeClaim": {"claimName": "more"}})
    made = view(claims_[0], pod=pod, **more)
    made.claims = [msgspec.convert(c, PersistentVolumeClaim) for c in claims_]
    return next(f for f in claims.check(made) if f.about == "team/data")


@pytest.mark.parametrize(("node", "where"), [("", "none"), ("n2", "n2")])
def test_it_waits_for_another_claim_of_its_pod(view: Make, node: str, where: str) -> None:
    found = _waits(view, _two(node))

    assert found.level is Level.WARN
    assert "it has waited on node n1 for longer than a minute" in found.text
    assert f"claims more (node {where}) of pod web are missing" in found.text


def test_it_waits_for_capacity(view: Make) -> None:
    found = _waits(view, _two("n1", **{names.RESCHEDULES: "5"}), capacities=[_capacity("n1", "50Gi")])

    assert found.level is Level.WARN
    assert "insufficient storage for all volumes of pod web (40Gi, 40Gi; 50Gi published)" in found.text
    assert "rescheduled 5 times" in found.text


def test_a_claim_that_asks_to_grow(view: Make) -> None:
    """status.capacity is what there is."""
    body = _claim("n1", annotations={names.BIND_COMPLETED: "yes"}, phase="Bound", spec={"volumeName": "pv"})
    body["status"]["capacity"] = {"storage": "10Gi"}
    (found,) = claims.check(view(body))
    assert (found.level, found.about) == (Level.WARN, "team/data")
    assert found.text == "it waits to grow from 10Gi to 40Gi"
    assert "see its Events" in found.todo
    body["status"]["conditions"] = [{"type": "ControllerResizeError", "status": "True", "message": "2Gi free"}]
    (found,) = claims.check(view(body))
    assert found.text == "it waits to grow from 10Gi to 40Gi: 2Gi free"
    body["status"]["capacity"] = {"storage": "40Gi"}
    (found,) = claims.check(view(body))
    assert found.level is Level.OK


@pytest.mark.parametrize("node", ["n1", ""])
def test_a_claim_of_a_volume_populator_waits_for_that(view: Make, node: str) -> None:
    source = {"apiGroup": "hello.example.com", "kind": "Hello", "name": "h"}
    mode = names.WAIT_FOR_FIRST_CONSUMER if node else "Immediate"
    (found,) = claims.check(view(_claim(node, spec={"dataSourceRef": source}), mode=mode, leads=True))
    assert found.level is Level.WARN
    assert found.text == "a volume populator provides its volume (data source Hello.hello.example.com h)"


def test_a_scheduler_that_names_a_fault_of_the_class(view: Make) -> None:
    message = "0/2 nodes are available: 2 node(s) could not make volumes of the StorageClass."
    both = [_capacity("n1", "0", "there is no pool 'nope'"), _capacity("n2", "0", "there is no pool 'nope'")]
    (found,) = claims.check(view(_claim(), pod=_pod(message=message), capacities=both))
    assert found.text == "pod web fits on no node: there is no pool 'nope'"
