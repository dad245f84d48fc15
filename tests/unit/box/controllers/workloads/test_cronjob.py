"""CronJobs: a Job for each time, none twice, and not too many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.unit.fixture_types import Settle, Told

from tonnage.base.aio.clock import rfc3339
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CRON_JOBS, JOBS
from tonnage.kubernetes.api.workloads import CronJob, Job
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.podcontrol.context import ControllerContext
from tonnage_box.controllers.workloads.cronjob import CronJobController, beyond_history, plan
from tonnage_box.testing.clock import ManualClock

NOW = 1_800_000_000.0 + 30  # 2027-01-15T08:00:30Z
Make = Callable[..., Awaitable[Any]]


def cron(last: float | None = None, made: float = NOW - 86400, **spec: Any) -> CronJob:
    status = {} if last is None else {"lastScheduleTime": rfc3339(last)}
    whole = {"schedule": "0 * * * *", **spec}
    meta = {"name": "c", "creationTimestamp": rfc3339(made)}
    return msgspec.convert({"metadata": meta, "spec": whole, "status": status}, CronJob)


def job(name: str, outcome: str = "", start: float = NOW) -> Job:
    conditions = [{"type": outcome, "status": "True"}] if outcome else []
    status = {"conditions": conditions, "startTime": rfc3339(start)}
    return msgspec.convert({"metadata": {"name": name}, "status": status}, Job)


@pytest.mark.parametrize(
    ("one", "due"),
    [
        pytest.param(cron(last=NOW - 3600), True, id="time has come"),
        pytest.param(cron(last=NOW - 30), False, id="done already"),
        pytest.param(cron(last=NOW - 36000), True, id="of many that were missed the last"),
        pytest.param(cron(made=NOW - 10), False, id="not before it was made"),
        pytest.param(cron(last=NOW - 3600, startingDeadlineSeconds=10), False, id="too late"),
        pytest.param(cron(last=NOW - 3600, suspend=True), False, id="suspended"),
    ],
)
def test_when_a_job_is_due(one: CronJob, due: bool) -> None:
    todo = plan(one, [], NOW)
    assert (todo.due is not None) == due
    if todo.due is not None:
        assert todo.due.timestamp() == NOW - 30
    assert todo.wait == (None if one.spec.suspend else 600.0)


def test_while_the_last_one_runs() -> None:
    running = [job("old"), job("done", "Complete")]
    last = NOW - 3600
    assert plan(cron(last, concurrencyPolicy="Allow"), running, NOW).due
    todo = plan(cron(last, concurrencyPolicy="Forbid"), running, NOW)
    assert (todo.due, todo.skipped) == (None, True)
    todo = plan(cron(last, concurrencyPolicy="Replace"), running, NOW)
    assert [j.metadata.name for j in todo.replace] == ["old"]
    assert todo.due


def test_history() -> None:
    jobs = [job(f"g{n}", "Complete", NOW + n) for n in range(4)] + [job(f"b{n}", "Failed", NOW + n) for n in range(3)]
    one = cron(successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
    assert [j.metadata.name for j in beyond_history(one, [*jobs, job("runs")])] == ["g0", "b0", "b1"]


async def test_a_job_for_each_time_and_none_twice(
    kube: Client, informers: Informers, events: EventRecorder, manual_clock: ManualClock, settle: Settle, told: Told
) -> None:
    controller = CronJobController(ControllerContext(kube, informers, events, manual_clock))
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i"}]}
    template = {"metadata": {"labels": {"of": "c"}}, "spec": {"template": {"spec": pod}}}
    spec = {"schedule": "* * * * *", "jobTemplate": template}
    made = await kube.create(CRON_JOBS, {"metadata": {"name": "c"}, "spec": spec}, "default")
    manual_clock.now = 4_000_000_000.0  # long after it was made: one Job is made up for, not millions
    await settle()
    for _ in range(3):
        await controller.reconcile("default/c")
    minute = 4_000_000_000 // 60
    found = (await kube.list(JOBS)).items
    assert [j.metadata.name for j in found] == [f"c-{minute}"]
    assert found[0].metadata.labels == {"of": "c"}
    assert found[0].metadata.annotations == {names.SCHEDULED_AT: rfc3339(minute * 60)}
    assert found[0].metadata.controller_uid() == made.metadata.uid
    manual_clock.now += 60
    await settle()
    assert await controller.reconcile("default/c") == 60 - manual_clock.now % 60
    await settle()
    assert sorted(j.metadata.name for j in (await kube.list(JOBS)).items) == [f"c-{minute}", f"c-{minute + 1}"]
    status = (await kube.get(CRON_JOBS, "c", "default")).status
    assert [ref.name for ref in status.active] == [f"c-{minute}", f"c-{minute + 1}"]
    assert status.last_schedule_time == rfc3339((minute + 1) * 60)
    assert ("c", "Normal", "SuccessfulCreate", f"Created job c-{minute}") in await told()
