"""Registration of the driver: healthy, and one thing broken at a time."""

from __future__ import annotations

import pytest
from tests.unit.ops.doctor.broken import Broken, assert_found
from tests.unit.ops.doctor.conftest import Ward

from tonnage.api import names
from tonnage.ops.doctor.finding import Level

FAIL, WARN = Level.FAIL, Level.WARN


def _full(ward: Ward) -> None:
    ward.node("n1", most=1)
    ward.volume("v", "n1")


BROKEN: tuple[Broken, ...] = (
    ("registration", lambda w: w.node("n1", listed=False), FAIL, "the kubelet does not list", "delete pod agent-n1"),
    ("registration", lambda w: w.node("n1", node_id="x"), FAIL, "reports node ID 'x'", "NODE_NAME"),
    ("registration", lambda w: w.node("n1", keys=("a/b",)), FAIL, "topology keys are a/b, without", "delete pod"),
    ("registration", lambda w: w.node("n1", labels={}), FAIL, "is missing, must be n1", "kubectl label node n1"),
    ("registration", lambda w: w.node("n1", taints=(names.STARTUP_TAINT,)), FAIL, "remains", "kubectl taint"),
    ("registration", _full, WARN, "its limit is 1", "maxVolumes"),
)  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken[3])
def test_one_thing_is_broken(ward: Ward, broken: Broken) -> None:
    assert_found(ward, broken)
