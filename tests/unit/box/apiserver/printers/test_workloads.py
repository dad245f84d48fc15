"""What kubectl get prints of workloads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tonnage_box.apiserver.printers import table
from tonnage_box.apiserver.registry.resources import RESOURCES

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


@pytest.mark.parametrize(
    ("spec", "status", "shown"),
    [
        pytest.param({"completions": 2}, {"succeeded": 1}, ("Running", "1/2", ""), id="not begun"),
        pytest.param(
            {"parallelism": 3}, {"startTime": "2026-01-01T00:58:00Z"}, ("Running", "0/1 of 3", "2m"), id="runs"
        ),
        pytest.param(
            {"completions": 1},
            {
                "succeeded": 1,
                "startTime": "2026-01-01T00:58:00Z",
                "completionTime": "2026-01-01T00:58:07Z",
                "conditions": [{"type": "Complete", "status": "True"}],
            },
            ("Complete", "1/1", "7s"),
            id="done",
        ),
        pytest.param(
            {}, {"conditions": [{"type": "Suspended", "status": "True"}]}, ("Suspended", "0/1", ""), id="held"
        ),
        pytest.param({}, {"conditions": [{"type": "Failed", "status": "True"}]}, ("Failed", "0/1", ""), id="failed"),
    ],
)
def test_job(spec: Obj, status: Obj, shown: tuple[str, ...]) -> None:
    found = cells("batch/jobs", spec=spec, status=status)
    assert (found["Status"], found["Completions"], found["Duration"]) == shown


def test_cron_job() -> None:
    spec = {"schedule": "@daily", "jobTemplate": {"spec": SPEC}}
    status = {"active": [{}], "lastScheduleTime": "2026-01-01T00:30:00Z"}
    found = cells("batch/cronjobs", spec=spec, status=status)
    assert [found[c] for c in ("Schedule", "Timezone", "Suspend", "Active", "Last Schedule")] == [
        "@daily", "<none>", "False", 1, "30m",
    ]  # fmt: skip
    assert (found["Containers"], found["Images"]) == ("one,two", "i:1,j:2")
    assert cells("batch/cronjobs")["Last Schedule"] == "<none>"
