"""What kubectl get prints of workloads."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.apps.test_columns import SPEC, cells

Obj = dict[str, Any]


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
