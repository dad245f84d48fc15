"""Pods with a RuntimeClass."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.admission.test_priority import PODS, pod
from tests.unit.box.apiserver.api import Api

CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
FULL = {
    "metadata": {"name": "vm"},
    "handler": "vm",
    "overhead": {"podFixed": {"memory": "10Mi"}},
    "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm", "operator": "Exists"}]},
}


async def test_overhead_and_nodes_become_the_pods(api: Api) -> None:
    await api.create(CLASSES, FULL)
    spec = (await api.create(PODS, pod(runtimeClassName="vm", nodeSelector={"a": "b"})))["spec"]
    assert spec["overhead"] == {"memory": "10Mi"}
    assert spec["nodeSelector"] == {"a": "b", "vm": "yes"}
    assert {"key": "vm", "operator": "Exists"} in spec["tolerations"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param({"runtimeClassName": "none"}, 'pod rejected: RuntimeClass "none" not found', id="unknown"),
        pytest.param(
            {"runtimeClassName": "vm", "overhead": {"memory": "1Mi"}}, "doesn't match RuntimeClass's", id="overhead"
        ),
        pytest.param({"overhead": {"memory": "1Mi"}}, "without corresponding RuntimeClass", id="overhead alone"),
        pytest.param(
            {"runtimeClassName": "vm", "nodeSelector": {"vm": "no"}},
            "conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no",
            id="node",
        ),
    ],
)
async def test_what_contradicts_the_class_is_rejected(api: Api, spec: dict[str, Any], said: str) -> None:
    await api.create(CLASSES, FULL)
    assert said in (await api.create(PODS, pod(**spec), want=403))["message"]
