"""Conditions of a claim: built once, and with the time since which they hold."""

from __future__ import annotations

from tonnage.provisioning.claims.conditions import true, without

THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def test_other_types_are_left() -> None:
    conditions = [{"type": "A"}, {"type": "B"}, {"type": "C"}]
    assert without(conditions, ["A", "C"]) == [{"type": "B"}]


def test_a_new_condition_holds_from_now_on() -> None:
    assert true("A", "", NOW) == {"type": "A", "status": "True", "lastTransitionTime": NOW}
    assert true("A", "why", NOW, reason="R") == {
        "type": "A", "status": "True", "reason": "R", "message": "why", "lastTransitionTime": NOW,
    }  # fmt: skip


def test_one_that_says_the_same_retains_its_time() -> None:
    before = true("A", "why", THEN)
    assert true("A", "why", NOW, known=[{"type": "B"}, before]) == before
    assert true("A", "another", NOW, known=[before])["lastTransitionTime"] == NOW
    assert true("A", "", NOW, known=[before])["lastTransitionTime"] == NOW
    assert true("A", "why", NOW, known=[{**before, "status": "False"}])["lastTransitionTime"] == NOW
    served = {**before, "lastProbeTime": None}  # as an API server returns it
    assert true("A", "why", NOW, known=[served]) == served
