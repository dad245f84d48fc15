"""Defaults of budgets and priorities."""

from __future__ import annotations

from typing import Any

from tonnage_box.apiserver.kinds.policy import defaults


def test_a_priority_pushes_others_out_unless_it_says_otherwise() -> None:
    left_out: dict[str, Any] = {}
    defaults.priority_class(left_out)
    assert left_out == {"preemptionPolicy": "PreemptLowerPriority"}


def test_a_budget_has_nothing_counted() -> None:
    obj: dict[str, Any] = {"status": {"expectedPods": 3}}
    defaults.budget(obj)
    assert obj["status"] == {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 3}
