"""Job controller: pods that run to completion, and TTL after finish (pkg/controller/job, ttlafterfinished).

Watched: Jobs and their pods. Pods are counted and the next step is planned without I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from tonnage.aio.backoff import Backoff
from tonnage.aio.clock import parse_rfc3339
from tonnage.api import names
from tonnage.api.kinds import JOBS, PODS
from tonnage.api.pods import Pod
from tonnage.api.workloads import Job
from tonnage.box.controllers.podcontrol.context import ControllerContext, own_key
from tonnage.box.controllers.podcontrol.expectations import Dependents, controller_of
from tonnage.box.controllers.podcontrol.pod_control import PodControl, in_dying_namespace
from tonnage.box.controllers.podcontrol.pod_template import owner_reference, pod_of
from tonnage.box.controllers.podcontrol.ref_manager import owner_keys
from tonnage.box.controllers.workloads import job_plan as plans
from tonnage.box.controllers.workloads.job_plan import INDEXED, count, countable, is_tracked
from tonnage.errors import ApiNotFoundError
from tonnage.kube.client import refer
from tonnage.kube.controller import Reconciler
from tonnage.kube.object_write import delete_object, patch_object, write_status

NAME = "job"
_LONGEST_BASE = 58


class JobController(Reconciler[str]):
    """Runs Jobs to their end and deletes those whose TTL has passed. Keys are `namespace/name`."""

    def __init__(self, context: ControllerContext) -> None:
        self._client, self._events, self._clock = context.client, context.events, context.clock
        jobs, pods = context.informers.of(JOBS), context.informers.of(PODS)
        self._pod_cache, self._jobs = pods.cache, Dependents(jobs)
        self._control = PodControl(context, JOBS, finalizer=names.JOB_TRACKING)
        super().__init__(NAME, backoff=Backoff(initial=0.005, maximum=120.0))
        self.watch(context.informers.of(JOBS), own_key)
        takers = owner_keys(JOBS, jobs.cache, lambda job: job.spec.selector)
        self.watch(pods, lambda old, new: {*takers(old, new), *_left_behind(new)})

    async def reconcile(self, key: str) -> float | None:
        """Count, plan, write the status, then create and delete pods. Idempotent. Raises TonnageError."""
        job = self._jobs.get(key)
        if job is None or job.metadata.deleting:
            await self._release_all(key)
            return None
        if plans.finished(job) is not None:
            return await self._expire(job)
        pods = await self._control.claim(job, job.spec.selector)
        now = self._clock.time()
        found = count(job, pods)
        todo = plans.plan(job, pods, found, now)
        written = await write_status(self._client, JOBS, job, plans.status(job, todo, pods, found, now))
        for pod in countable(job, found, pods):
            await self._release(pod)
        if written is None:
            return None
        self._jobs.wrote(written)
        if plans.finished(written) is not None:
            self._emit_end(written)
            return await self._expire(written)
        await self._follow(job, todo)
        return todo.wait

    async def _follow(self, job: Job, todo: plans.JobPlan) -> None:
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

    async def _release_all(self, key: str) -> None:
        """Remove the finalizers of pods of a deleted Job, which are not counted any more."""
        for pod in list(self._pod_cache):
            if is_tracked(pod) and key in (*_owners(pod), *_left_behind(pod)):
                await self._release(pod)

    def _emit_end(self, job: Job) -> None:
        done = plans.finished(job)
        if done is not None and done.type == plans.COMPLETE:
            self._events.normal(refer(JOBS, job), "Completed", "Job completed")
        elif done is not None:
            self._events.warning(refer(JOBS, job), done.reason, done.message)

    async def _expire(self, job: Job) -> float | None:
        """Delete the Job when its time after its end is over; seconds until then."""
        ttl, done = job.spec.ttl_seconds_after_finished, plans.finished(job)
        if ttl is None or done is None or done.last_transition_time is None:
            return None
        left = parse_rfc3339(done.last_transition_time) + ttl - self._clock.time()
        if left > 0:
            return left
        await delete_object(self._client, JOBS, job, guarded=True, propagation="Foreground")
        return None


def _owners(pod: Pod) -> Iterable[str]:
    ref = controller_of(pod)
    if ref is not None and (ref.api_version, ref.kind) == (JOBS.api_version, JOBS.kind):
        yield f"{pod.metadata.namespace}/{ref.name}"


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
