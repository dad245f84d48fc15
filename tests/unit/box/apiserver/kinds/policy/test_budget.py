"""PodDisruptionBudgets that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage_box.apiserver.kinds.policy import validation as workloads


def faults(**spec: Any) -> list[str]:
    body = {"metadata": {"name": "b"}, "spec": spec}
    return [f"{cause.field}: {cause.message}" for cause in workloads.budget(body, None, subresource="")]


@pytest.mark.parametrize(
    "spec",
    [
        {"minAvailable": 1},
        {"maxUnavailable": "50%", "selector": {"matchLabels": {"app": "web"}}},
        {"minAvailable": 0, "selector": {}, "unhealthyPodEvictionPolicy": "AlwaysAllow"},
        {},
    ],
)
def test_good_ones(spec: dict[str, Any]) -> None:
    assert faults(**spec) == []


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"minAvailable": 1, "maxUnavailable": 1}, "minAvailable and maxUnavailable cannot be both set"),
        ({"minAvailable": -1}, "spec.minAvailable: Invalid value: -1: must be greater than or equal to 0"),
        ({"maxUnavailable": "101%"}, "must not be greater than 100%"),
        ({"maxUnavailable": "few"}, "a valid percent string"),
        ({"unhealthyPodEvictionPolicy": "Perhaps"}, 'supported values: "AlwaysAllow", "IfHealthyBudget"'),
        ({"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}, "not a valid selector operator"),
        (
            {"selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}] * 9000}},
            "spec.selector: Too many: 9000: must have at most 100 requirements",
        ),
    ],
)
def test_bad_ones(spec: dict[str, Any], told: str) -> None:
    (fault,) = faults(**spec)
    assert told in fault
