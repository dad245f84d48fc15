"""Disruption budgets and priority classes as they come from an API server."""

from __future__ import annotations

from tonnage.kubernetes.api.kinds import DISRUPTION_BUDGETS, PRIORITY_CLASSES


def test_a_budget_in_numbers_and_in_percent() -> None:
    found = DISRUPTION_BUDGETS.decode(
        b'{"spec": {"minAvailable": "50%", "maxUnavailable": 1}, "status": {"disruptionsAllowed": 2,'
        b' "disruptedPods": {"p": "2026-01-01T00:00:00Z"}}}'
    )
    assert (found.spec.min_available, found.spec.max_unavailable, found.spec.selector) == ("50%", 1, None)
    assert (found.status.disruptions_allowed, list(found.status.disrupted_pods)) == (2, ["p"])


def test_a_priority_class() -> None:
    found = PRIORITY_CLASSES.decode(b'{"value": -10}')
    assert (found.value, found.preemption_policy) == (-10, "PreemptLowerPriority")
