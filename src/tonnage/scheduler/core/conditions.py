"""Pod condition PodScheduled=False and its Event, on each new cause.

One write at a time for a pod. A cause that is expected to pass is delayed (docs/reference/kubernetes/gaps.md): the pod
of a generic ephemeral volume is nearly always observed before its claim.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

from tonnage.base.aio.clock import Clock, rfc3339
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import ApiError, ApiNotFoundError, TonnageError
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.events import EventRecorder

log = logging.getLogger(__name__)
POD_SCHEDULED = "PodScheduled"
UNSCHEDULABLE, GATED, FAILED = "Unschedulable", "SchedulingGated", "SchedulerError"
GATED_MESSAGE = "Scheduling is blocked due to non-empty scheduling gates"
_TRIES = 3


class ConditionWriter:
    """Writes PodScheduled=False conditions.

    report() returns at once; a pod's last report wins.
    """

    def __init__(self, client: Client, events: EventRecorder, pods: Cache[Pod], clock: Clock) -> None:
        self._client, self._events, self._pods, self._clock = client, events, pods, clock
        self.reported: set[str] = set()
        """Pods with a report; the others need no cancel() or forget()."""
        self._news: dict[str, tuple[Pod, PodCondition]] = {}
        self._written: dict[str, tuple[str, str]] = {}
        self._held: dict[str, asyncio.TimerHandle] = {}
        self._writing: set[str] = set()
        self._tasks = Background("pod conditions")

    def report(self, pod: Pod, reason: str, message: str, *, after: float = 0.0) -> None:
        """Report that the pod has no node.

        after: delay in seconds, in which forget() cancels it.
        """
        uid = pod.metadata.uid
        self.reported.add(uid)
        self._unhold(uid)
        if self._written.get(uid, _condition(pod)) == (reason, message):
            self._news.pop(uid, None)
            return
        self._news[uid] = pod, PodCondition(POD_SCHEDULED, "False", reason, message)
        if after > 0:
            self._held[uid] = asyncio.get_running_loop().call_later(after, self._start, uid)
        else:
            self._start(uid)

    def cancel(self, uid: str) -> None:
        """Cancel a report that is not being written yet: the pod may get its node."""
        self._unhold(uid)
        self._news.pop(uid, None)

    def forget(self, uid: str) -> None:
        """Forget a pod that got its node, or is gone."""
        self.cancel(uid)
        self.reported.discard(uid)
        self._written.pop(uid, None)

    async def close(self) -> None:
        """Stop writing. Idempotent."""
        for uid in list(self._held):
            self._unhold(uid)
        await self._tasks.close()

    def _unhold(self, uid: str) -> None:
        if (timer := self._held.pop(uid, None)) is not None:
            timer.cancel()

    def _start(self, uid: str) -> None:
        self._held.pop(uid, None)
        if uid not in self._writing:
            self._writing.add(uid)
            self._tasks.start(self._write_all(uid), f"condition {uid}")

    async def _write_all(self, uid: str) -> None:
        try:
            while uid not in self._held and (news := self._news.pop(uid, None)) is not None:
                pod, condition = news
                self._written[uid] = (condition.reason, condition.message)
                if condition.reason != GATED:
                    self._events.warning(refer(PODS, pod), "FailedScheduling", condition.message)
                now = self._pods.get(pod.key) or pod
                if now.metadata.uid == uid:
                    await write_condition(self._client, self._clock, now, condition)
        except ApiNotFoundError:
            self._written.pop(uid, None)
        except TonnageError as failure:
            self._written.pop(uid, None)  # the next attempt reports it again
            log.info("pod condition not written pod=%s error=%s", uid, failure)
        finally:
            self._writing.discard(uid)


def _condition(pod: Pod) -> tuple[str, str] | None:
    found = next((c for c in pod.status.conditions if c.type == POD_SCHEDULED and c.status == "False"), None)
    return (found.reason, found.message) if found is not None else None


class PodCondition(NamedTuple):
    """Condition of a pod's status."""

    type: str
    status: str
    reason: str
    message: str


async def write_condition(client: Client, clock: Clock, pod: Pod, condition: PodCondition) -> None:
    """Set one condition of a pod's status, and leave the others unchanged.

    A pod that has changed is read again. A condition that the pod has no node is not written when it has one.
    Raises: ApiNotFoundError if the pod is gone, or is another one by now; ApiError.
    """
    meta = pod.metadata
    for attempt in range(_TRIES):
        if pod.metadata.uid != meta.uid:
            raise ApiNotFoundError(f"pod {pod.key} is another one by now")
        if pod.spec.node_name and condition.type == POD_SCHEDULED:
            return
        patch = _patch(pod, condition, rfc3339(clock.time()))
        try:
            await client.patch(PODS, meta.name, patch, meta.namespace, subresource="status")
        except ApiError as failure:
            if failure.code not in (409, 422) or attempt == _TRIES - 1:
                raise
            pod = await client.get(PODS, meta.name, meta.namespace)
        else:
            return


def _patch(pod: Pod, wanted: PodCondition, now: str) -> list[dict[str, Any]]:
    """Return a JSON patch, which fails if the pod has changed since it was read."""
    conditions = pod.status.conditions
    index = next((i for i, c in enumerate(conditions) if c.type == wanted.type), None)
    since = now
    if index is not None and conditions[index].status == wanted.status:
        since = conditions[index].last_transition_time or now
    condition = {**wanted._asdict(), "lastProbeTime": None, "lastTransitionTime": since}
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": pod.metadata.resource_version}
    if index is not None:
        return [test, {"op": "replace", "path": f"/status/conditions/{index}", "value": condition}]
    if conditions:
        return [test, {"op": "add", "path": "/status/conditions/-", "value": condition}]
    return [test, {"op": "add", "path": "/status/conditions", "value": [condition]}]
