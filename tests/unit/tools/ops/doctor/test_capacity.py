"""Capacity objects: healthy, and one thing broken at a time."""

from __future__ import annotations

import pytest
from tests.unit.tools.ops.doctor.broken import Broken, assert_found, setting
from tests.unit.tools.ops.doctor.ward import Ward

from tonnage.kubernetes.api import names
from tonnage.tools.ops.doctor import capacity
from tonnage.tools.ops.doctor.finding import Level

FAIL, WARN = Level.FAIL, Level.WARN


BROKEN: tuple[Broken, ...] = (
    ("capacity", setting("capacities", []), FAIL, "no capacity is published for fast", "access"),
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
)  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken[3])
def test_one_thing_is_broken(ward: Ward, broken: Broken) -> None:
    assert_found(ward, broken)


def test_a_class_for_some_places(ward: Ward) -> None:
    term = {"matchLabelExpressions": [{"key": names.TOPOLOGY_NODE, "values": ["n1"]}]}
    ward.storage_class("here", allowedTopologies=[term])
    wrong = [f for f in capacity.check(ward.view) if f.level is FAIL]
    assert ["no agent of namespace" in f.text for f in wrong] == [True]  # n2 would not publish it

    ward.view.capacities = [c for c in ward.view.capacities if c.key != wrong[0].about]
    assert {f.level for f in capacity.check(ward.view)} == {Level.OK}
