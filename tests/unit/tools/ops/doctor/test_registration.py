"""Registration of the driver: healthy, and one thing broken at a time."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.tools.ops.doctor.broken import Broken, assert_found
from tests.unit.tools.ops.doctor.ward import Ward

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import NodeStatus
from tonnage.kubernetes.api.meta import Condition
from tonnage.tools.ops.doctor.finding import Level

FAIL, WARN = Level.FAIL, Level.WARN


def _unavailable(ward: Ward, *, is_served: bool) -> None:
    ward.node("n1")
    if not is_served:
        ward.view.agents = [pod for pod in ward.view.agents if pod.spec.node_name != "n1"]
        ward.view.csi_nodes = [one for one in ward.view.csi_nodes if one.metadata.name != "n1"]
    dead = Condition(type=names.POOL_UNAVAILABLE, status="True", message="pool scratch cannot write: it hangs")
    ward.view.nodes = [
        msgspec.structs.replace(node, status=NodeStatus(conditions=[dead])) if node.metadata.name == "n1" else node
        for node in ward.view.nodes
    ]


def _full(ward: Ward) -> None:
    ward.node("n1", most=1)
    ward.volume("v", "n1")


BROKEN: tuple[Broken, ...] = (
    ("registration", lambda w: w.node("n1", listed=False), FAIL, "the kubelet does not list", "delete pod agent-n1"),
    ("registration", lambda w: w.node("n1", node_id="x"), FAIL, "reports node ID 'x'", "NODE_NAME"),
    ("registration", lambda w: w.node("n1", keys=("a/b",)), FAIL, "topology keys are a/b, without", "delete pod"),
    ("registration", lambda w: w.node("n1", labels={}), FAIL, "is missing, must be n1", "kubectl label node n1"),
    ("registration", lambda w: w.node("n1", taints=(names.STARTUP_TAINT,)), FAIL, "remains", "kubectl taint"),
    ("pools", lambda w: _unavailable(w, is_served=True), FAIL, "scratch cannot write: it hangs", "replace-disk.md"),
    ("pools", lambda w: _unavailable(w, is_served=False), WARN, "has no agent", "uninstall.md"),
    ("registration", _full, WARN, "its limit is 1", "maxVolumes"),
)  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken[3])
def test_one_thing_is_broken(ward: Ward, broken: Broken) -> None:
    assert_found(ward, broken)
