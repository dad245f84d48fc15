"""Defaults of the kinds that are stored."""

from __future__ import annotations

from typing import Any

from tonnage_box.apiserver.kinds.groups import RESOURCES

Obj = dict[str, Any]


def defaulted(key: str, **fields: Any) -> Obj:
    obj: Obj = {"metadata": {"name": "x"}} | fields
    RESOURCES[key].default(obj)
    return obj


def test_an_autoscaler_looks_at_cpu() -> None:
    spec = defaulted("autoscaling/horizontalpodautoscalers", spec={"maxReplicas": 3})["spec"]
    assert spec["minReplicas"] == 1
    assert spec["metrics"][0]["resource"]["target"] == {"type": "Utilization", "averageUtilization": 80}
