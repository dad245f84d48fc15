"""What kubectl get prints of workloads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.printers import table

Obj = dict[str, Any]
NOW = datetime(2026, 1, 1, 1, 0, tzinfo=UTC)
META = {"name": "x", "namespace": "ns", "creationTimestamp": "2026-01-01T00:55:00Z"}
SPEC: Obj = {
    "replicas": 3,
    "selector": {"matchLabels": {"b": "c"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["2", "1"]}]},
    "template": {"spec": {"containers": [{"name": "one", "image": "i:1"}, {"name": "two", "image": "j:2"}]}},
}


def cells(key: str, *, spec: Obj | None = None, status: Obj | None = None, **more: Any) -> Obj:
    obj = {"metadata": META, "spec": SPEC | (spec or {}), "status": status or {}} | more
    made = table.table(RESOURCES[key].columns, [obj], NOW, "Metadata", {})
    return dict(zip([c["name"] for c in made["columnDefinitions"]], made["rows"][0]["cells"], strict=True))


def test_deployment() -> None:
    status = {"readyReplicas": 2, "updatedReplicas": 1, "availableReplicas": 2}
    assert cells("apps/deployments", status=status) == {
        "Name": "x",
        "Ready": "2/3",
        "Up-to-date": 1,
        "Available": 2,
        "Age": "5m",
        "Containers": "one,two",
        "Images": "i:1,j:2",
        "Selector": "a in (1,2),b=c",
    }


def test_others() -> None:
    found = cells("apps/replicasets", status={"replicas": 2, "readyReplicas": 1})
    assert [found[c] for c in ("Desired", "Current", "Ready")] == [3, 2, 1]
    assert cells("apps/statefulsets", status={"readyReplicas": 1})["Ready"] == "1/3"
    status = {"desiredNumberScheduled": 3, "currentNumberScheduled": 2, "numberReady": 1}
    found = cells("apps/daemonsets", status=status)
    assert [found[c] for c in ("Desired", "Current", "Ready", "Up-to-date", "Available")] == [3, 2, 1, 0, 0]
    assert found["Node Selector"] == "<none>"
    owner = {"controller": True, "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"}
    found = cells("apps/controllerrevisions", metadata=META | {"ownerReferences": [owner]}, revision=4)
    assert (found["Controller"], found["Revision"]) == ("statefulset.apps/db", 4)
