"""Job controller: pods that run to completion, and TTL after finish (pkg/controller/job, ttlafterfinished).

Watched: Jobs and their pods. Pods are counted and the next step is planned without I/O.

Each pod is counted exactly once, across crashes (KEP-2307): it has a finalizer until then. Ended pods are added to
status.uncountedTerminatedPods (one write), then lose their finalizer (a write each), then are added to the counters
(the next write). Indexed Jobs store the indexes of their completed pods instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import parse_rfc3339, rfc3339
from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import JOBS, PODS
from tonnage.kubernetes.api.meta import Condition, condition, to_builtins
from tonnage.kubernetes.api.number import whole
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.workloads import Job, Uncounted
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.object_write import delete_object, patch_object, write_status
from tonnage_box.controllers.podcontrol.context import ControllerContext, own_key
from tonnage_box.controllers.podcontrol.expectations import Dependents, controller_of
from tonnage_box.controllers.podcontrol.pod_control import BURST, PodControl, in_dying_namespace
from tonnage_box.controllers.podcontrol.pod_status import deletion_order, is_active, is_ready
from tonnage_box.controllers.podcontrol.pod_template import owner_reference, pod_of
from tonnage_box.controllers.podcontrol.ref_manager import owner_keys

NAME = "job"
_LONGEST_BASE = 58


_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 600.0
COMPLETE, FAILED = "Complete", "Failed"
_SOON = {COMPLETE: "SuccessCriteriaMet", FAILED: "FailureTarget"}
"""What is said of a Job whose end is certain while its pods are still ending."""


@dataclass(frozen=True)
class JobPlan:
    """Next step of a Job.

    create: completion indexes of pods to create (None without index). drop: pods to delete that do not count. end: pods
    to delete because the Job is over. outcome: condition, reason and message of the end. wait: seconds until the next
    reconcile, if no event comes before.
    """

    create: Sequence[int | None] = ()
    drop: Sequence[Pod] = ()
    end: Sequence[Pod] = ()
    outcome: tuple[str, str, str] | None = None
    wait: float | None = None
    active: Sequence[Pod] = field(default=(), repr=False)


def finished(job: Job) -> Condition | None:
    """Complete or Failed, once it is."""
    return _true(job, COMPLETE) or _true(job, FAILED)


def _true(job: Job, kind: str) -> Condition | None:
    return next((c for c in job.status.conditions if c.type == kind and c.status == "True"), None)


def plan(job: Job, pods: Sequence[Pod], count: JobCount, now: float) -> JobPlan:
    """The next step."""
    active = [pod for pod in pods if is_active(pod)]
    outcome = _decided(job) or _outcome(job, active, count, now)
    if outcome is not None:
        if outcome[0] == FAILED:
            return JobPlan(outcome=outcome, active=active, end=active)
        return JobPlan(outcome=outcome, active=active, drop=active)
    if job.spec.suspend:
        return JobPlan(drop=active, active=active)
    return _manage(job, pods, active, count, now)


def _decided(job: Job) -> tuple[str, str, str] | None:
    for outcome, soon in _SOON.items():
        found = _true(job, soon)
        if found is not None:
            return outcome, found.reason, found.message
    return None


def _outcome(job: Job, active: Sequence[Pod], count: JobCount, now: float) -> tuple[str, str, str] | None:
    spec = job.spec
    if count.all_failed > spec.backoff_limit or _restarted_too_often(job, active):
        return FAILED, "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    if not spec.suspend and (left := _time_left(job, now)) is not None and left <= 0:
        return FAILED, "DeadlineExceeded", "Job was active longer than specified deadline"
    if spec.completions is None:
        done = count.all_succeeded > 0 and not active
    else:
        done = count.all_succeeded >= spec.completions
    return (COMPLETE, "CompletionsReached", "Reached expected number of succeeded pods") if done else None


def _restarted_too_often(job: Job, active: Sequence[Pod]) -> bool:
    """restartPolicy OnFailure: containers fail again and again inside the same pod."""
    if job.spec.template["spec"].get("restartPolicy") != "OnFailure":
        return False
    statuses = (status for pod in active for status in pod.all_container_statuses)
    restarts = sum(status.restart_count for status in statuses)
    return restarts > 0 if not job.spec.backoff_limit else restarts >= job.spec.backoff_limit


def _time_left(job: Job, now: float) -> float | None:
    if job.spec.active_deadline_seconds is None or not job.status.start_time:
        return None
    return parse_rfc3339(job.status.start_time) + job.spec.active_deadline_seconds - now


def _manage(job: Job, pods: Sequence[Pod], active: Sequence[Pod], count: JobCount, now: float) -> JobPlan:
    spec, deadline = job.spec, _time_left(job, now)
    wanted = spec.parallelism
    if spec.completions is not None:
        wanted = min(wanted, spec.completions - count.all_succeeded)
    elif count.all_succeeded:  # one has done it: the others finish, no new ones begin
        wanted = min(wanted, len(active))
    surplus = len(active) - max(0, wanted)
    if surplus > 0:
        return JobPlan(drop=_surplus(job, active, surplus), active=active, wait=deadline)
    there = list(active)
    if spec.pod_replacement_policy == "Failed":
        there += [pod for pod in pods if pod.metadata.deleting and not pod.terminated]
    missing = min(wanted - len(there), BURST)
    if missing <= 0:
        return JobPlan(active=active, wait=deadline)
    pause = _pause(pods, now)
    if pause > 0:
        return JobPlan(active=active, wait=pause if deadline is None else min(pause, deadline))
    indexes: Sequence[int | None] = [None] * missing
    if spec.completion_mode == INDEXED:
        taken = {index_of(pod) for pod in there} | count.completed
        indexes = [n for n in range(spec.completions or 0) if n not in taken][:missing]
    return JobPlan(create=indexes, active=active, wait=deadline)


def _surplus(job: Job, active: Sequence[Pod], number: int) -> list[Pod]:
    """Indexed: those with twice the same index, or the highest, first."""
    if job.spec.completion_mode != INDEXED:
        return deletion_order(active)[:number]
    seen: set[int | None] = set()
    twice = []
    for pod in active:
        if index_of(pod) in seen:
            twice.append(pod)
        seen.add(index_of(pod))
    rest = sorted((p for p in active if p not in twice), key=lambda p: -(index_of(p) or 0))
    return [*twice, *rest][:number]


def _pause(pods: Sequence[Pod], now: float) -> float:
    """Back-off in seconds after failed pods; a succeeded pod resets it."""
    last_good = max((_ended_at(p) for p in pods if p.status.phase == "Succeeded"), default=0.0)
    failures = [at for p in pods if p.status.phase == "Failed" and (at := _ended_at(p)) > last_good]
    if not failures:
        return 0.0
    pause = min(_FIRST_PAUSE * 2.0 ** min(len(failures) - 1, 30), _LONGEST_PAUSE)
    return max(0.0, max(failures) + pause - now)


def _ended_at(pod: Pod) -> float:
    times = [
        parse_rfc3339(end)
        for status in pod.status.container_statuses
        if (end := (status.state.terminated or {}).get("finishedAt"))
    ]
    ready = [c.last_transition_time for c in pod.status.conditions if c.type == "Ready"]
    return max(times) if times else parse_rfc3339(ready[0]) if ready and ready[0] else 0.0


def status(job: Job, todo: JobPlan, pods: Sequence[Pod], count: JobCount, now: float) -> dict[str, Any]:
    """The status to write; a null removes a field."""
    terminating = [pod for pod in pods if pod.metadata.deleting and not pod.terminated]
    start = job.status.start_time
    if start is None and not job.spec.suspend:
        start = rfc3339(now)
    elif job.spec.suspend and todo.outcome is None:
        start = None
    found: dict[str, Any] = {
        "startTime": start,
        "active": len(todo.active),
        "ready": sum(map(is_ready, todo.active)),
        "terminating": len(terminating),
        "succeeded": count.succeeded,
        "failed": count.failed,
        "uncountedTerminatedPods": {
            "succeeded": count.uncounted.succeeded,
            "failed": count.uncounted.failed,
        },
    }
    if count.indexed:
        found["completedIndexes"] = write_indexes(count.completed)
    over = not todo.active and not terminating and not any(map(is_tracked, pods))
    conditions = _conditions(job, todo.outcome, now, over=over)
    found["conditions"] = [to_builtins(c) for c in conditions]
    if todo.outcome is not None and todo.outcome[0] == COMPLETE and over and not job.status.completion_time:
        found["completionTime"] = rfc3339(now)
    return found


def _conditions(job: Job, outcome: tuple[str, str, str] | None, now: float, *, over: bool) -> list[Condition]:
    conditions = list(job.status.conditions)

    def put(kind: str, holds: str, reason: str, message: str) -> None:
        old = next((c for c in conditions if c.type == kind), None)
        if old is None or old.status != holds:
            conditions[:] = [c for c in conditions if c is not old]
            conditions.append(condition((), kind, holds, reason, message, now=rfc3339(now)))

    if outcome is not None:
        kind, reason, message = outcome
        put(_SOON[kind], "True", reason, message)
        if over:
            put(kind, "True", reason, message)
    elif job.spec.suspend:
        put("Suspended", "True", "JobSuspended", "Job suspended")
    elif any(c.type == "Suspended" for c in conditions):
        put("Suspended", "False", "JobResumed", "Job resumed")
    return conditions


INDEXED = "Indexed"


def read_indexes(text: str, completions: int) -> set[int]:
    """`1,3-5` -> 1, 3, 4, 5, those below completions. Parts that are no numbers, or out of order, are skipped."""
    found: set[int] = set()
    after = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = whole(first), whole(last or first)
        if start is not None and end is not None:
            after, start = min(end + 1, completions), max(start, after)
            found.update(range(start, after))
    return found


def write_indexes(indexes: Iterable[int]) -> str:
    """1, 3, 4, 5 -> `1,3-5`."""
    runs: list[tuple[int, int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return ",".join(str(a) if a == b else f"{a},{b}" if b == a + 1 else f"{a}-{b}" for a, b in runs)


def index_of(pod: Pod) -> int | None:
    """A pod's completion index."""
    text = pod.metadata.annotations.get(names.COMPLETION_INDEX, "")
    return whole(text)


def is_tracked(pod: Pod) -> bool:
    """Whether it is yet to be counted."""
    return names.JOB_TRACKING in pod.metadata.finalizers


def has_succeeded(pod: Pod) -> bool:
    """Whether it ended well."""
    return pod.status.phase == "Succeeded"


def has_failed(pod: Pod, *, only_ended: bool) -> bool:
    """Whether it ended badly; a pod that is being deleted is as good as failed, unless only_ended."""
    if pod.status.phase == "Failed":
        return True
    return pod.metadata.deleting and not only_ended and not has_succeeded(pod)


@dataclass(frozen=True)
class JobCount:
    """Ended pods so far. uncounted: pods whose finalizers may be removed once this is written."""

    succeeded: int
    failed: int
    uncounted: Uncounted
    completed: frozenset[int] = frozenset()
    indexed: bool = False

    @property
    def all_succeeded(self) -> int:
        """Succeeded pods, counted or not."""
        return self.succeeded + len(self.uncounted.succeeded)

    @property
    def all_failed(self) -> int:
        """Failed pods, counted or not."""
        return self.failed + len(self.uncounted.failed)


def count(job: Job, pods: Sequence[Pod]) -> JobCount:
    """The next state of the count, from the Job's status and its pods."""
    tracked = {pod.metadata.uid: pod for pod in pods if is_tracked(pod)}
    status = job.status
    before = status.uncounted_terminated_pods
    only_ended = job.spec.pod_replacement_policy == "Failed"
    failed = [uid for uid in before.failed if uid in tracked]
    failed += [
        uid for uid, pod in tracked.items() if uid not in before.failed and has_failed(pod, only_ended=only_ended)
    ]
    failures = status.failed + sum(uid not in tracked for uid in before.failed)
    ended_well = [pod for pod in tracked.values() if has_succeeded(pod)]
    if job.spec.completion_mode == INDEXED:
        completions = job.spec.completions or 0
        done = read_indexes(status.completed_indexes, completions)
        done |= {n for pod in ended_well if (n := index_of(pod)) is not None and n < completions}
        return JobCount(len(done), failures, Uncounted(failed=failed), frozenset(done), indexed=True)
    succeeded = [uid for uid in before.succeeded if uid in tracked]
    succeeded += [pod.metadata.uid for pod in ended_well if pod.metadata.uid not in before.succeeded]
    successes = status.succeeded + sum(uid not in tracked for uid in before.succeeded)
    return JobCount(successes, failures, Uncounted(succeeded=succeeded, failed=failed))


def countable(job: Job, found: JobCount, pods: Sequence[Pod]) -> list[Pod]:
    """Pods whose finalizer may go, now that found is written: those that it names, or whose index it has."""
    named = {*found.uncounted.succeeded, *found.uncounted.failed}
    return [
        pod for pod in pods if is_tracked(pod) and (pod.metadata.uid in named or (found.indexed and has_succeeded(pod)))
    ]


class JobController(Reconciler[str]):
    """Runs Jobs to their end and deletes those whose TTL has passed. Keys are `namespace/name`."""

    def __init__(self, context: ControllerContext) -> None:
        self._client, self._events, self._clock = context.client, context.events, context.clock
        jobs, pods = context.informers.of(JOBS), context.informers.of(PODS)
        self._pod_cache, self._jobs = pods.cache, Dependents(jobs)
        self._control = PodControl(context, JOBS, finalizer=names.JOB_TRACKING)
        super().__init__(NAME, backoff=Backoff(initial=0.005, maximum=120.0))
        self.watch(context.informers.of(JOBS), own_key)
        self._takers = owner_keys(JOBS, jobs.cache, lambda job: job.spec.selector)
        self.watch(pods, self._concerned, deferred=True)

    async def reconcile(self, key: str) -> float | None:
        """Count, plan, write the status, then create and delete pods. Idempotent. Raises: TonnageError."""
        job = self._jobs.get(key)
        if job is None or job.metadata.deleting:
            await self._release_all(key)
            return None
        if finished(job) is not None:
            return await self._expire(job)
        pods = await self._control.claim(job, job.spec.selector)
        now = self._clock.time()
        found = count(job, pods)
        todo = plan(job, pods, found, now)
        written = await write_status(self._client, JOBS, job, status(job, todo, pods, found, now))
        for pod in countable(job, found, pods):
            await self._release(pod)
        if written is None:
            return None
        self._jobs.wrote(written)
        if finished(written) is not None:
            self._emit_end(written)
            return await self._expire(written)
        await self._follow(job, todo)
        return todo.wait

    async def _follow(self, job: Job, todo: JobPlan) -> None:
        for pod in todo.drop:
            await self._release(pod)
        await self._control.delete_many(job, [*todo.drop, *todo.end])
        bodies = [pod_body(job, index) for index in todo.create]
        failure = await self._control.create_many(job, bodies)
        if failure is not None and not in_dying_namespace(failure):
            raise failure

    async def _release(self, pod: Pod) -> None:
        """Take the finalizer off a pod that is counted, or is not to be."""
        if not is_tracked(pod):
            return
        rest = [finalizer for finalizer in pod.metadata.finalizers if finalizer != names.JOB_TRACKING]
        with suppress(ApiNotFoundError):
            patch = {"metadata": {"finalizers": rest or None}}
            self._control.pods.wrote(await patch_object(self._client, PODS, pod, patch))

    def _concerned(self, old: Pod | None, new: Pod | None) -> set[str]:
        return {*self._takers(old, new), *_left_behind(new)}

    async def _release_all(self, key: str) -> None:
        """Remove the finalizers of pods of a deleted Job, which are not counted any more."""
        for pod in list(self._pod_cache):
            if is_tracked(pod) and key in self._concerned(None, pod):
                await self._release(pod)

    def _emit_end(self, job: Job) -> None:
        done = finished(job)
        if done is not None and done.type == COMPLETE:
            self._events.normal(refer(JOBS, job), "Completed", "Job completed")
        elif done is not None:
            self._events.warning(refer(JOBS, job), done.reason, done.message)

    async def _expire(self, job: Job) -> float | None:
        """Delete the Job when its time after its end is over; seconds until then."""
        ttl, done = job.spec.ttl_seconds_after_finished, finished(job)
        if ttl is None or done is None or done.last_transition_time is None:
            return None
        left = parse_rfc3339(done.last_transition_time) + ttl - self._clock.time()
        if left > 0:
            return left
        await delete_object(self._client, JOBS, job, guarded=True, propagation="Foreground")
        return None


def _left_behind(pod: Pod | None) -> Iterable[str]:
    """The Job that a pod was of, which has left it without an owner but with its finalizer."""
    if pod is not None and is_tracked(pod) and controller_of(pod) is None:
        yield f"{pod.metadata.namespace}/{pod.metadata.labels.get(names.JOB_NAME, '')}"


def pod_body(job: Job, index: int | None) -> dict[str, Any]:
    """A pod of the Job, to be created: with a finalizer until it is counted, and perhaps with its index."""
    owner, name = owner_reference(JOBS, job), job.metadata.name
    prefix = f"{name}-"
    if index is not None:
        prefix = f"{name[: _LONGEST_BASE - len(str(index)) - 2]}-{index}-"
    body = pod_of(job.spec.template, owner, prefix=prefix)
    meta, spec = body["metadata"], body["spec"]
    meta["finalizers"] = [*meta.get("finalizers", ()), names.JOB_TRACKING]
    if index is not None and job.spec.completion_mode == INDEXED:
        meta.setdefault("annotations", {})[names.COMPLETION_INDEX] = str(index)
        meta.setdefault("labels", {})[names.COMPLETION_INDEX] = str(index)
        spec.setdefault("hostname", f"{name}-{index}")
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            _add_index_variable(container)
    return body


def _add_index_variable(container: dict[str, Any]) -> None:
    known: Sequence[dict[str, Any]] = container.get("env") or ()
    if not any(variable["name"] == "JOB_COMPLETION_INDEX" for variable in known):
        source = {"fieldRef": {"fieldPath": f"metadata.annotations['{names.COMPLETION_INDEX}']"}}
        container["env"] = [*known, {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}]
