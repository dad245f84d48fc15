"""Jobs and CronJobs: what may be wrong with them, and what of them may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.apps.test_validation import JOB, changed, cron, job, workload

Obj = dict[str, Any]
Faults = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(
            JOB, workload(), 'spec.template.spec.restartPolicy: Unsupported value: "Always"', id="a job that never ends"
        ),
        pytest.param(
            JOB,
            job(podFailurePolicy={"rules": []}),
            "spec.podFailurePolicy: Forbidden: is not offered by this server",
            id="rejected by name",
        ),
        pytest.param("batch/cronjobs", cron(schedule="often"), "spec.schedule: Invalid value", id="schedule"),
        pytest.param(
            "batch/cronjobs",
            cron(schedule=",".join(["0"] * 1_400_000) + " * * * *"),
            "spec.schedule: Too long: may not be more than 1024 bytes",
            id="schedule of megabytes",
        ),
        pytest.param("batch/cronjobs", cron(timeZone="X/Y"), "spec.timeZone: Invalid value", id="time zone"),
        pytest.param(
            "batch/cronjobs", cron(concurrencyPolicy="Never"), "spec.concurrencyPolicy: Unsupported value", id="policy"
        ),
        pytest.param(
            "batch/cronjobs",
            cron(job={"template": workload()["spec"]["template"]}),
            "spec.jobTemplate.spec.template.spec.restartPolicy: Unsupported value",
            id="its job's faults",
        ),
        pytest.param(
            JOB,
            job(completionMode="Indexed", parallelism=2),
            "spec.completions: Required value: when completion mode is Indexed",
            id="how many indexes",
        ),
    ],
)
def test_wrong_ones_are_named(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    assert any(fault.startswith(said) for fault in faults(key, wrong)), faults(key, wrong)


def test_of_a_job_the_template_is_fixed_once_it_runs(faults: Faults) -> None:
    old, other = job(completions=1), workload(pod={"restartPolicy": "OnFailure"}, completions=1)
    assert "spec.template: Invalid value" in faults(JOB, other, old)[0]
    assert faults(JOB, changed(old, parallelism=3), old) == []
    assert "spec.completions" in faults(JOB, changed(old, completions=3), old)[0]
    assert faults(JOB, other | {"metadata": old["metadata"]}, changed(old, suspend=True)) == []
