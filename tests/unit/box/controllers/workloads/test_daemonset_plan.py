"""DaemonSets: which nodes get a pod, and how a new template reaches them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.meta import Condition, ObjectMeta
from tonnage.kubernetes.api.pods import Pod, PodSpec, PodStatus
from tonnage.kubernetes.api.workloads import DaemonSet
from tonnage.provisioning.claims.node_fit import Suitability
from tonnage_box.controllers.podcontrol.history import revision_of
from tonnage_box.controllers.workloads.daemonset import (
    DaemonNodeView,
    DaemonSetPlan,
    node_of,
    pod_body,
    pod_spec_of,
    tolerations,
)

READY = [Condition(type="Ready", status="True", last_transition_time="2026-01-01T00:00:00Z")]
NOW = 1_800_000_000.0


def daemon(*, pod: dict[str, Any] | None = None, **rolling: Any) -> DaemonSet:
    strategy = {"type": "OnDelete"} if rolling.get("type") == "OnDelete" else {"rollingUpdate": rolling}
    spec = {
        "template": {"spec": {"containers": []} | (pod or {})},
        "updateStrategy": {"type": "RollingUpdate"} | strategy,
    }
    return msgspec.convert({"metadata": {"name": "d", "uid": "u"}, "spec": spec}, DaemonSet)


def node(name: str, *, taints: list[dict[str, str]] | None = None, cordoned: bool = False, **labels: str) -> Node:
    spec = {"taints": taints or [], "unschedulable": cordoned}
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "spec": spec}, Node)


def pod(
    on: str, revision: str = "old", *, ready: bool = True, going: bool = False, phase: str = "Running", number: int = 0
) -> Pod:
    meta = ObjectMeta(
        name=f"{on}-{revision}-{number}",
        uid=f"{on}-{revision}-{number}",
        labels={names.CONTROLLER_REVISION_HASH: revision},
        deletion_timestamp="2026-01-01T00:00:00Z" if going else None,
    )
    return Pod(
        metadata=meta, spec=PodSpec(node_name=on), status=PodStatus(phase=phase, conditions=READY if ready else [])
    )


def planned(one: DaemonSet, pods: list[Pod], nodes: list[Node]) -> DaemonSetPlan:
    return DaemonNodeView(one, pods, nodes, "new", NOW).plan()


DEDICATED = {"key": "for", "value": "others", "effect": "NoSchedule"}
EVICTING = {"key": "for", "value": "others", "effect": "NoExecute"}
AFFINITY = {
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]
            }
        }
    }
}


@pytest.mark.parametrize(
    ("spec", "on", "suits"),
    [
        pytest.param({}, node("a"), (True, True), id="any"),
        pytest.param({}, node("a", cordoned=True), (True, True), id="a cordon keeps no daemon away"),
        pytest.param({}, node("a", taints=[{"key": names.UNREACHABLE_TAINT, "effect": "NoExecute"}]), (True, True), id="gone"),
        pytest.param({}, node("a", taints=[DEDICATED]), (False, True), id="a taint keeps new ones away"),
        pytest.param({}, node("a", taints=[EVICTING]), (False, False), id="or all"),
        pytest.param(
            {"tolerations": [{"key": "for", "operator": "Exists"}]}, node("a", taints=[EVICTING]), (True, True), id="borne"
        ),
        pytest.param({"nodeSelector": {"disk": "ssd"}}, node("a"), (False, False), id="selector"),
        pytest.param({"nodeSelector": {"disk": "ssd"}}, node("a", disk="ssd"), (True, True), id="selected"),
        pytest.param(AFFINITY, node("a", disk="hdd"), (False, False), id="affinity"),
        pytest.param(AFFINITY, node("a", disk="ssd"), (True, True), id="affine"),
        pytest.param({"nodeName": "b"}, node("a"), (False, False), id="named"),
    ],
)  # fmt: skip
def test_which_nodes_suit(spec: dict[str, Any], on: Node, suits: tuple[bool, bool]) -> None:
    assert Suitability(pod_spec_of(daemon(pod=spec))).of(on) == suits


def test_a_pod_is_bound_to_its_node_and_bears_what_nodes_suffer() -> None:
    body = pod_body(daemon(pod=AFFINITY), "a", "hash")
    made = msgspec.convert({"metadata": {}, "spec": body["spec"]}, Pod)
    assert node_of(made) == "a"
    assert body["metadata"]["labels"] == {names.CONTROLLER_REVISION_HASH: "hash"}
    assert len(made.spec.tolerations) == 6
    assert len(tolerations({"hostNetwork": True})) == 7
    assert tolerations({"tolerations": tolerations({})}) == tolerations({})


@pytest.mark.parametrize(
    ("pods", "create", "delete"),
    [
        pytest.param([], ["a", "b"], [], id="one each"),
        pytest.param([pod("a", "new")], ["b"], [], id="the other"),
        pytest.param([pod("a", "new"), pod("a", "new", number=1), pod("b", "new")], [], ["a-new-1"], id="not two"),
        pytest.param([pod("a", "new"), pod("b", "new"), pod("lost", "new")], [], ["lost-new-0"], id="node is gone"),
        pytest.param([pod("a", "new"), pod("b", "new", going=True)], [], [], id="when the old one is gone"),
        pytest.param([pod("a"), pod("b")], [], ["a-old-0"], id="an update one by one"),
        pytest.param([pod("a", "new", ready=False), pod("b")], [], [], id="waits"),
        pytest.param([pod("a"), pod("b", ready=False)], [], ["b-old-0"], id="the sick one first"),
    ],
)
def test_the_next_step(pods: list[Pod], create: list[str], delete: list[str]) -> None:
    todo = planned(daemon(maxUnavailable=1), pods, [node("a"), node("b")])
    assert list(todo.create) == create
    assert [p.metadata.name for p in todo.delete] == delete


def test_failed_ones_are_told_apart() -> None:
    todo = planned(daemon(maxUnavailable=1), [pod("a", "new", phase="Failed", ready=False)], [node("a")])
    assert ([p.metadata.name for p in todo.failed], list(todo.create), list(todo.delete)) == (["a-new-0"], [], [])


def test_surge_makes_the_new_one_before_the_old_one_goes() -> None:
    one, nodes = daemon(maxUnavailable=0, maxSurge=1), [node("a"), node("b")]
    assert list(planned(one, [pod("a"), pod("b")], nodes).create) == ["a"]
    both = [pod("a"), pod("a", "new", ready=False), pod("b")]
    assert planned(one, both, nodes) == DaemonSetPlan([], [], [])
    todo = planned(one, [pod("a"), pod("a", "new"), pod("b")], nodes)
    assert [p.metadata.name for p in todo.delete] == ["a-old-0"]


def test_by_hand_only() -> None:
    assert planned(daemon(type="OnDelete"), [pod("a"), pod("b")], [node("a"), node("b")]) == DaemonSetPlan([], [], [])


@given(data=st.data(), count=st.integers(1, 5), bound=st.integers(1, 3), surge=st.booleans())
def test_it_always_ends_well_within_its_bounds(data: st.DataObject, count: int, bound: int, surge: bool) -> None:
    one = daemon(maxUnavailable=0, maxSurge=bound) if surge else daemon(maxUnavailable=bound, maxSurge=0)
    nodes = [node(f"n{n}") for n in range(count)]
    pods = {f"n{n}-old-0": pod(f"n{n}") for n in range(count)}
    made = 0

    def well() -> int:
        return len({node_of(p) for p in pods.values() if p.status.conditions and not p.metadata.deleting})

    def step() -> bool:
        nonlocal made
        before = well()
        todo = planned(one, list(pods.values()), nodes)
        for on in todo.create:
            made += 1
            new = pod(on, "new", ready=False, number=made)
            pods[new.metadata.uid] = new
        for old in (*todo.delete, *todo.failed):
            meta = msgspec.structs.replace(old.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
            pods[old.metadata.uid] = msgspec.structs.replace(old, metadata=meta)
        assert well() >= min(before, count if surge else count - bound)
        twice = len([p for p in pods.values() if not p.metadata.deleting]) - count
        assert twice <= (bound if surge else 0)
        return bool(todo.create or todo.delete or todo.failed)

    def progress(uid: str) -> None:
        if pods[uid].metadata.deleting:
            del pods[uid]
        else:
            pods[uid] = msgspec.structs.replace(pods[uid], status=PodStatus(phase="Running", conditions=READY))

    for _ in range(20):
        step()
        uid = data.draw(st.sampled_from([*sorted(pods), None]), "moves on")
        if uid is not None:
            progress(uid)
    for _ in range(100):
        if not step():
            for uid in list(pods):
                progress(uid)
    assert sorted(node_of(p) for p in pods.values()) == sorted(n.metadata.name for n in nodes)
    assert {revision_of(p) for p in pods.values()} == {"new"}
    status = DaemonNodeView(one, list(pods.values()), nodes, "new", NOW).status(None)
    assert status["updatedNumberScheduled"] == status["numberAvailable"] == status["desiredNumberScheduled"] == count
