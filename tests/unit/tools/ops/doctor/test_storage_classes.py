"""StorageClasses: healthy, and one thing broken at a time."""

from __future__ import annotations

import pytest
from tests.unit.tools.ops.doctor.broken import Broken, assert_found, findings, setting
from tests.unit.tools.ops.doctor.ward import Ward

from tonnage.kubernetes.api import names
from tonnage.tools.ops.doctor import storage_classes
from tonnage.tools.ops.doctor.finding import Level

FAIL, WARN = Level.FAIL, Level.WARN


BROKEN: tuple[Broken, ...] = (
    ("classes", lambda w: w.storage_class("x", parameters={"pool": "no"}), FAIL, "'no', and no node has one", "delete"),
    ("classes", lambda w: w.storage_class("x", parameters={"tonnage.dev/y": "1"}), FAIL, "unknown parameter", "delete"),
    ("classes", lambda w: w.capacity("fast", "n1", reason="no"), WARN, "1 of 2 nodes cannot serve it: no (n1)", "no action"),
    ("classes", setting("files", {"tonnage-node": "bad"}), FAIL, "not a node's file: bad", "edit configmap tonnage-node"),
    ("classes", setting("classes", []), WARN, "no class has provisioner", "apply"),
)  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken[3])
def test_one_thing_is_broken(ward: Ward, broken: Broken) -> None:
    assert_found(ward, broken)


def test_classes_of_static_pools_have_no_room_and_no_fault(ward: Ward) -> None:
    for node in ("n1", "n2"):
        ward.capacity("fast", node, reason=names.AHEAD)

    assert {f.level for f in findings(ward)} == {Level.OK}


def test_a_class_that_no_node_can_serve(ward: Ward) -> None:
    for node in ("n1", "n2"):
        ward.capacity("fast", node, reason="mkfsOptions: no")

    (found,) = [f for f in findings(ward) if f.level is not Level.OK]
    assert found.text == "no node can serve it: mkfsOptions: no (n1, n2)"


def test_a_class_that_binds_at_once_needs_a_leader(ward: Ward) -> None:
    ward.storage_class("now", volumeBindingMode="Immediate")
    assert {f.level for f in storage_classes.check(ward.view)} == {Level.OK}

    ward.view.lease = None
    assert [f.about for f in storage_classes.check(ward.view) if f.level is FAIL] == ["now"]
