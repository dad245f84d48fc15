"""Defaults of the kinds that are stored."""

from __future__ import annotations

from typing import Any

from tests.unit.box.apiserver.kinds.makers import defaulted

Obj = dict[str, Any]


def test_an_autoscaler_looks_at_cpu() -> None:
    spec = defaulted("autoscaling/horizontalpodautoscalers", spec={"maxReplicas": 3})["spec"]
    assert spec["minReplicas"] == 1
    assert spec["metrics"][0]["resource"]["target"] == {"type": "Utilization", "averageUtilization": 80}
