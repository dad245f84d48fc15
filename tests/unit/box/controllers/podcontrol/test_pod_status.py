"""Which pods are deleted first."""

from __future__ import annotations

from tonnage.kubernetes.api.meta import Condition, ObjectMeta
from tonnage.kubernetes.api.pods import Pod, PodSpec, PodStatus
from tonnage_box.controllers.podcontrol.pod_status import deletion_order


def pod(name: str, *, phase: str = "Running", ready: bool = True, node: str = "n", deleting: bool = False) -> Pod:
    conditions = [
        Condition(type="Ready", status="True" if ready else "False", last_transition_time="2026-01-01T00:00:00Z")
    ]
    meta = ObjectMeta(name=name, uid=name, deletion_timestamp="2026-01-01T00:00:00Z" if deleting else None)
    return Pod(metadata=meta, spec=PodSpec(node_name=node), status=PodStatus(phase=phase, conditions=conditions))


def test_who_goes_first() -> None:
    pods = [
        pod("good"),
        pod("unready", ready=False),
        pod("unplaced", phase="Pending", node="", ready=False),
        pod("pending", phase="Pending", ready=False),
    ]
    cheap = pod("cheap")
    cheap.metadata.annotations["controller.kubernetes.io/pod-deletion-cost"] = "-5"
    order = [p.metadata.name for p in deletion_order([*pods, cheap])]
    assert order == ["unplaced", "pending", "unready", "cheap", "good"]


def test_of_crowded_nodes_first() -> None:
    pods = [pod("alone", node="b"), pod("one", node="a"), pod("two", node="a")]
    assert deletion_order(pods)[-1].metadata.name == "alone"
