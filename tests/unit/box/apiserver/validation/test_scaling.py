"""Autoscalers, ReplicationControllers, templates of pods, runtime and attributes classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
SCALERS, V1 = "autoscaling/horizontalpodautoscalers", "autoscaling/v1/horizontalpodautoscalers"
CONTROLLERS, TEMPLATES = "replicationcontrollers", "podtemplates"
RUNTIMES, ATTRIBUTES = "node.k8s.io/runtimeclasses", "storage.k8s.io/volumeattributesclasses"
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def named(**fields: Any) -> Obj:
    return {"metadata": {"name": "x"}} | fields


def scaler(**spec: Any) -> Obj:
    return named(spec={"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d"}} | spec)


def metric(**fields: Any) -> Obj:
    return scaler(metrics=[fields])


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param(SCALERS, scaler(), id="autoscaler"),
        pytest.param(V1, scaler(targetCPUUtilizationPercentage=50), id="v1"),
        pytest.param(CONTROLLERS, named(spec={"template": TEMPLATE}), id="controller"),
        pytest.param(TEMPLATES, named(template=TEMPLATE), id="template"),
        pytest.param(RUNTIMES, named(handler="runc", overhead={"podFixed": {"cpu": "1"}}), id="runtime"),
        pytest.param(ATTRIBUTES, named(driverName="a.b", parameters={"k": "v"}), id="attributes"),
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
        pytest.param(CONTROLLERS, named(spec={}), "spec.selector: Required value", id="no selector"),
        pytest.param(
            CONTROLLERS,
            named(spec={"selector": {"x": "y"}, "template": TEMPLATE}),
            "`selector` does not match template `labels`",
            id="selector",
        ),
        pytest.param(
            TEMPLATES, named(template={"spec": {}}), "template.spec.containers: Required value", id="template"
        ),
        pytest.param(RUNTIMES, named(handler="A_b"), "handler: Invalid value", id="handler"),
        pytest.param(RUNTIMES, named(), "handler: Required value", id="no handler"),
        pytest.param(
            RUNTIMES,
            named(handler="a", scheduling={"tolerations": [{"operator": "X"}]}),
            "scheduling.tolerations[0]",
            id="toleration",
        ),
        pytest.param(ATTRIBUTES, named(driverName="a"), "parameters: Required value", id="no parameters"),
        pytest.param(
            ATTRIBUTES, named(driverName="_", parameters={"a": "b"}), "driverName: Invalid value", id="driver"
        ),
    ],
)
def test_faults_are_named(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    found = faults(key, wrong)
    assert any(said in line for line in found), found


def test_what_may_not_change(faults: Faults) -> None:
    assert faults(RUNTIMES, named(handler="b"), named(handler="a")) == [
        'handler: Invalid value: "b": field is immutable'
    ]
    before = named(driverName="a.b", parameters={"k": "v"})
    assert faults(ATTRIBUTES, before | {"parameters": {"k": "w"}}, before)
