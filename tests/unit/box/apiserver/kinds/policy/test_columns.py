"""What kubectl get prints of budgets and priorities."""

from __future__ import annotations

from tests.unit.box.apiserver.kinds.printed import cells


def test_a_budget_shows_its_bounds() -> None:
    found = cells("policy/poddisruptionbudgets", {"spec": {"minAvailable": "50%"}, "status": {"disruptionsAllowed": 2}})
    assert [found[c] for c in ("Min Available", "Max Unavailable", "Allowed Disruptions")] == ["50%", "N/A", 2]


def test_a_priority_class_shows_its_value() -> None:
    found = cells("scheduling.k8s.io/priorityclasses", {"value": 7, "preemptionPolicy": "Never"})
    assert [found[c] for c in ("Value", "Global-Default", "PreemptionPolicy")] == [7, False, "Never"]
