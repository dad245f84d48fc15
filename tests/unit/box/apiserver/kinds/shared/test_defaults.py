"""Defaults that several groups use."""

from __future__ import annotations

from typing import Any

from tonnage_box.apiserver.kinds.shared.defaults import counts, times


def test_times_that_are_not_known_are_there() -> None:
    status: dict[str, Any] = {"conditions": [{"type": "Ready", "lastProbeTime": "now"}]}
    times(status, "lastProbeTime", "lastTransitionTime")
    assert status["conditions"] == [{"type": "Ready", "lastProbeTime": "now", "lastTransitionTime": None}]


def test_numbers_are_there_from_the_beginning() -> None:
    obj: dict[str, Any] = {"status": {"replicas": 2}}
    counts(obj, "replicas", "readyReplicas")
    assert obj == {"status": {"replicas": 2, "readyReplicas": 0}}
