"""What kubectl get prints of services, routes and autoscalers."""

from __future__ import annotations

from typing import Any

from tests.unit.box.apiserver.kinds.apps.test_columns import cells

Obj = dict[str, Any]
SCALERS = "autoscaling/horizontalpodautoscalers"


def test_autoscaler() -> None:
    def metric(kind: str, word: str, **source: Any) -> Obj:
        return {"type": kind, word: source}

    metrics = [
        metric("Resource", "resource", name="cpu", target={"averageUtilization": 80}),
        metric("Pods", "pods", target={"averageValue": "10"}),
        metric("External", "external", target={"averageValue": "3"}),
    ]
    current = [{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 7}}}]
    spec = {"metrics": metrics, "minReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "d"}}
    found = cells(SCALERS, spec=spec, status={"currentMetrics": current})
    assert found["Targets"] == "cpu: 7%/80%, <unknown>/10 + 1 more..."
    assert (found["Reference"], found["MinPods"]) == ("Deployment/d", "2")
    assert cells(SCALERS)["Targets"] == "<none>"
    old = cells("autoscaling/v1/horizontalpodautoscalers", spec={"targetCPUUtilizationPercentage": 50})
    assert old["Targets"] == "cpu: <unknown>/50%"
