"""Autoscalers, ReplicationControllers, templates of pods, runtime and attributes classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.makers import named

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
SCALERS, V1 = "autoscaling/horizontalpodautoscalers", "autoscaling/v1/horizontalpodautoscalers"


def scaler(**spec: Any) -> Obj:
    return named(spec={"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d"}} | spec)


def metric(**fields: Any) -> Obj:
    return scaler(metrics=[fields])


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param(SCALERS, scaler(), id="autoscaler"),
        pytest.param(V1, scaler(targetCPUUtilizationPercentage=50), id="v1"),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(
            SCALERS, scaler(maxReplicas=0), "spec.maxReplicas: Invalid value: 0: must be greater than 0", id="0"
        ),
        pytest.param(SCALERS, scaler(minReplicas=4), "must be greater than or equal to `minReplicas`", id="bounds"),
        pytest.param(SCALERS, scaler(scaleTargetRef={}), "spec.scaleTargetRef.name: Required value", id="target"),
        pytest.param(SCALERS, metric(type=""), "spec.metrics[0].type: Required value", id="metric"),
        pytest.param(SCALERS, metric(type="X"), "spec.metrics[0].type: Unsupported value", id="metric's type"),
        pytest.param(SCALERS, metric(type="Pods"), "must populate information", id="no source"),
        pytest.param(
            SCALERS,
            metric(type="Resource", resource={"name": "cpu", "target": {"type": "Utilization"}}),
            "must set a value",
            id="no goal",
        ),
        pytest.param(
            SCALERS,
            metric(type="Pods", resource={"name": "cpu", "target": {"type": "Value", "value": "1"}}),
            "resource: Forbidden: must be unset when type is Pods",
            id="two sources",
        ),
        pytest.param(V1, scaler(targetCPUUtilizationPercentage=0), "must be greater than 0", id="percent"),
    ],
)
def test_faults_are_named(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    found = faults(key, wrong)
    assert any(said in line for line in found), found
