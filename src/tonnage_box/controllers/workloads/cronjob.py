"""CronJob controller: creates Jobs on schedule (pkg/controller/cronjob).

Watched: CronJobs and their Jobs. Between two times of a schedule only one timer runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import parse_rfc3339, rfc3339
from tonnage.base.errors import ApiAlreadyExistsError, ApiError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CRON_JOBS, JOBS
from tonnage.kubernetes.api.meta import to_builtins
from tonnage.kubernetes.api.workloads import CronJob, Job
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.object_write import delete_object, write_status
from tonnage_box.api import cron
from tonnage_box.controllers.podcontrol.context import ControllerContext, own_key
from tonnage_box.controllers.podcontrol.expectations import Dependents
from tonnage_box.controllers.podcontrol.pod_control import in_dying_namespace
from tonnage_box.controllers.podcontrol.pod_template import owner_reference
from tonnage_box.controllers.podcontrol.ref_manager import owner_keys
from tonnage_box.controllers.workloads.job import COMPLETE, FAILED, finished

NAME = "cronjob"
_LONGEST_WAIT = 600.0
"""Seconds after which the clock is looked at again: it may have been set, or the machine have slept."""


@dataclass(frozen=True)
class CronJobPlan:
    """due: the time for which to create a Job; replace: Jobs to end before; wait: seconds to the next time."""

    due: datetime | None = None
    replace: Sequence[Job] = ()
    wait: float | None = None
    skipped: bool = False


def plan(cron_job: CronJob, jobs: Sequence[Job], now: float) -> CronJobPlan:
    """Plan for the present time. Of several missed times only the last counts. Raises: InvalidError."""
    spec, moment = cron_job.spec, datetime.fromtimestamp(now, UTC)
    if spec.suspend:
        return CronJobPlan()
    schedule = cron.parse(spec.schedule, spec.time_zone or "")
    since = cron_job.status.last_schedule_time or cron_job.metadata.creation_timestamp
    earliest = datetime.fromtimestamp(parse_rfc3339(since), UTC) if since else moment
    if spec.starting_deadline_seconds is not None:
        earliest = max(earliest, moment - timedelta(seconds=spec.starting_deadline_seconds))
    due = schedule.latest(earliest, moment)
    following = schedule.next(moment)
    wait = None if following is None else min((following - moment).total_seconds(), _LONGEST_WAIT)
    running = [job for job in jobs if finished(job) is None and not job.metadata.deleting]
    if due is None or not running or spec.concurrency_policy == "Allow":
        return CronJobPlan(due, (), wait)
    if spec.concurrency_policy == "Forbid":
        return CronJobPlan(None, (), wait, skipped=True)
    return CronJobPlan(due, running, wait)


def beyond_history(cron_job: CronJob, jobs: Sequence[Job]) -> list[Job]:
    """Finished Jobs beyond the history limits, the oldest first."""
    spec = cron_job.spec
    limits = {COMPLETE: spec.successful_jobs_history_limit, FAILED: spec.failed_jobs_history_limit}
    found: list[Job] = []
    for outcome, limit in limits.items():
        ended = [j for j in jobs if (done := finished(j)) and done.type == outcome and not j.metadata.deleting]
        ended.sort(key=lambda j: (j.status.start_time or "", j.metadata.name))
        found += ended[: max(0, len(ended) - limit)] if limit is not None else []
    return found


def job_of(cron_job: CronJob, due: datetime) -> dict[str, Any]:
    """The Job for a time, to be created; its name says which time, so that none is made twice."""
    template = cron_job.spec.job_template
    meta: dict[str, Any] = {
        "name": f"{cron_job.metadata.name}-{int(due.timestamp()) // 60}",
        "annotations": {**template.metadata.annotations, names.SCHEDULED_AT: rfc3339(due.timestamp())},
        "ownerReferences": [owner_reference(CRON_JOBS, cron_job)],
    }
    if template.metadata.labels:
        meta["labels"] = dict(template.metadata.labels)
    return {"metadata": meta, "spec": template.spec}


def status(cron_job: CronJob, jobs: Sequence[Job], due: datetime | None) -> dict[str, Any]:
    """The status to write."""
    running = [job for job in jobs if finished(job) is None]
    ended = [job.status.completion_time for job in jobs if job.status.completion_time]
    last = max([*ended, cron_job.status.last_successful_time or ""])
    at = rfc3339(due.timestamp()) if due is not None else cron_job.status.last_schedule_time
    active = [to_builtins(refer(JOBS, job)) for job in running]
    return {"active": active, "lastScheduleTime": at, "lastSuccessfulTime": last or None}


class CronJobController(Reconciler[str]):
    """Creates the Jobs of CronJobs. Keys are `namespace/name`."""

    def __init__(self, context: ControllerContext) -> None:
        self._client, self._events, self._clock = context.client, context.events, context.clock
        crons, jobs = context.informers.of(CRON_JOBS), context.informers.of(JOBS)
        self._crons, self._jobs = Dependents(crons), Dependents(jobs)
        super().__init__(NAME, backoff=Backoff(initial=0.1, maximum=120.0))
        self.watch(context.informers.of(CRON_JOBS), own_key)
        self.watch(jobs, owner_keys(CRON_JOBS, crons.cache, None))

    async def reconcile(self, key: str) -> float | None:
        """Create the due Job, delete old ones, write the status. Idempotent. Raises: TonnageError."""
        cron_job = self._crons.get(key)
        if cron_job is None or cron_job.metadata.deleting:
            return None
        jobs = self._jobs.owned(cron_job.metadata.uid)
        todo = plan(cron_job, jobs, self._clock.time())
        about = refer(CRON_JOBS, cron_job)
        if todo.skipped:
            words = "Not starting job because prior execution is running and concurrency policy is Forbid"
            self._events.normal(about, "JobAlreadyActive", words)
        for job in (*todo.replace, *beyond_history(cron_job, jobs)):
            await self._delete(job)
            self._events.normal(about, "SuccessfulDelete", f"Deleted job {job.metadata.name}")
        if todo.due is not None:
            await self._create(cron_job, todo.due)
        wanted = status(cron_job, self._jobs.owned(cron_job.metadata.uid), todo.due)
        if (written := await write_status(self._client, CRON_JOBS, cron_job, wanted)) is not None:
            self._crons.wrote(written)
        return todo.wait

    async def _create(self, cron_job: CronJob, due: datetime) -> None:
        body, about = job_of(cron_job, due), refer(CRON_JOBS, cron_job)
        try:
            self._jobs.wrote(await self._client.create(JOBS, body, cron_job.metadata.namespace))
        except ApiAlreadyExistsError:  # made before we could note it
            return
        except ApiError as failure:
            if not in_dying_namespace(failure):
                self._events.warning(about, "FailedCreate", f"Error creating job: {failure}")
            raise
        self._events.normal(about, "SuccessfulCreate", f"Created job {body['metadata']['name']}")

    async def _delete(self, job: Job) -> None:
        await delete_object(self._client, JOBS, job, propagation="Background")
        self._jobs.deleted(job)
