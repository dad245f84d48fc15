"""Preemption: nominates a node, evicts victims, ends nominations.

Less important pods are evicted as kube-scheduler does, and capacity is reserved for pods that waited too long. First
the pod's status names its node; then its victims get a condition with the reason and are deleted. After a restart
nominations are read from the status, so that no victim is deleted in vain. Source: k/k
pkg/scheduler/framework/preemption (prepareCandidate, PreparePreemption).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from tonnage.base.aio.clock import Clock
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import ApiConflictError, ApiNotFoundError, TonnageError
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.policy import PodDisruptionBudget
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.scheduler.core.conditions import PodCondition, write_condition
from tonnage.scheduler.core.cycle import Cycle
from tonnage.scheduler.framework.plugin import Diagnosis, SchedulingDecision
from tonnage.scheduler.framework.pod_info import Ask
from tonnage.scheduler.framework.queue import SchedulingQueue
from tonnage.scheduler.preemption.dry_run import Preemption
from tonnage.scheduler.preemption.nominator import Nomination, Nominations
from tonnage.scheduler.preemption.starvation import HOLD, Waiting
from tonnage.scheduler.preemption.victims import PreemptionCandidate, priority

log = logging.getLogger(__name__)
DISRUPTION_TARGET, PREEMPTED, CAPACITY_RESERVED = "DisruptionTarget", "Preempted", "CapacityReserved"
_REASON = "PreemptionByScheduler"
_PAUSE = 60.0


class Preemptor:
    """Performs preemption.

    name: the scheduler's name, for texts of conditions.
    """

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        cycle: Cycle,
        queue: SchedulingQueue,
        budgets: Callable[[], Iterable[PodDisruptionBudget]],
        *,
        clock: Clock,
        name: str,
    ) -> None:
        self._client, self._events, self._cycle, self._clock, self._name = client, events, cycle, clock, name
        self._queue = queue
        self._preemption = Preemption(cycle, budgets)
        self._failed: dict[str, float] = {}
        self._tasks = Background("preemption")
        self.nominations = Nominations(cycle, queue.nominees)
        self._waiting = Waiting(cycle, queue, self.nominations)

    async def close(self) -> None:
        """Stop evicting. Idempotent."""
        await self._tasks.close()

    def restore(self) -> Iterator[str]:
        """Restore nominations from before a restart; return their pods.

        Their victims are the pods that are being deleted.
        """
        now, residents = self._clock.monotonic(), self._cycle.cluster.residents
        for entry in self._queue:
            pod = entry.ask.pod
            if node := pod.status.nominated_node_name:
                lower = [p for p in residents.on(node) if priority(p) < priority(pod)]
                going = [victim for victim in lower if victim.metadata.deleting]
                self.nominations.hold(entry.ask, node, now, victims=going)
                yield entry.uid

    def post_filter(self, ask: Ask, rejection: Diagnosis) -> bool:
        """Preempt for a rejected pod if possible; return whether it has a nomination."""
        pod, now = ask.pod, self._clock.monotonic()
        found = self.nominations.get(pod.metadata.uid)
        if found is not None and (found.going or found.until is None):
            return True
        self._waiting.rejected(pod.metadata.uid, rejection, now)
        if self._failed.get(pod.metadata.uid, 0.0) > now or not self._preemption.may(pod):
            return found is not None
        with self.nominations.lifted(ask):
            candidate = self._preemption.find(ask, rejection)
        if candidate is None:
            return found is not None
        self._make_way(pod, candidate.node)
        self.nominations.hold(ask, candidate.node, now, victims=candidate.victims)
        self._tasks.start(self._carry_out(pod, candidate), f"preempt for {pod.key}")
        return True

    def may_preempt(self, pod: Pod) -> bool:
        """Return whether there are pods that this one may preempt."""
        return self._preemption.may(pod)

    def _make_way(self, pod: Pod, node: str) -> None:
        """Clear nominations of less important pods to the node."""
        for one in self.nominations:
            if one.node == node and one.priority < priority(pod):
                self._give_up(one)

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone or needs no node."""
        self._failed.pop(uid, None)
        self._waiting.forget(uid)
        self.nominations.drop(uid)

    def placed(self, uid: str, decision: SchedulingDecision) -> None:
        """Record that the pod got a node, which counts it by now."""
        self._failed.pop(uid, None)
        self._waiting.forget(uid)
        self._waiting.served(decision.volumes.needs, self._clock.monotonic())
        self.nominations.placed(uid, decision.node)

    def advance(self, now: float) -> None:
        """End overdue nominations, so that their pods try again.

        Reserve capacity for pods that waited too long.
        """
        for one in self.nominations.over(now):
            self._give_up(one)
        for ask, node, missing in self._waiting.grants(now):
            self.nominations.hold(ask, node, now, seconds=HOLD)
            self._tasks.start(self._tell_held(ask.pod, node, missing), f"hold for {ask.pod.key}")

    def next_due(self) -> float | None:
        """Return when advance() has something to do, as far as time decides."""
        dues = (self.nominations.next_due(), self._waiting.next_due())
        return min((due for due in dues if due is not None), default=None)

    def _give_up(self, one: Nomination) -> None:
        self.nominations.drop(one.uid)
        self._tasks.start(self._try_nominate(one.ask.pod, None), f"nomination of {one.ask.pod.key}")
        if (entry := self._queue.get(one.uid)) is not None:
            self._queue.wake(entry, self._clock.monotonic())

    # Writing

    async def _try_nominate(self, pod: Pod, node: str | None) -> None:
        try:
            await self._nominate(pod, node)
        except TonnageError as failure:
            log.info("nomination not written pod=%s node=%s error=%s", pod.key, node, failure)

    async def _tell_held(self, pod: Pod, node: str, missing: int) -> None:
        text = (
            f"other pods got storage while this pod waited: capacity on node {node} is reserved, shortfall "
            f"{from_bytes(missing)}; pods of the same or lower priority cannot use it for now"
        )
        self._events.normal(refer(PODS, pod), CAPACITY_RESERVED, text)
        await self._try_nominate(pod, node)

    async def _nominate(self, pod: Pod, node: str | None) -> None:
        meta = pod.metadata
        body = {"status": {"nominatedNodeName": node}}
        await self._client.patch(PODS, meta.name, body, meta.namespace, subresource="status", uid=meta.uid)

    async def _carry_out(self, pod: Pod, candidate: PreemptionCandidate) -> None:
        try:
            await self._nominate(pod, candidate.node)
            results = await asyncio.gather(
                *(self._evict(victim, pod, candidate.node) for victim in candidate.victims), return_exceptions=True
            )
            for failure in results:
                if failure is not None:
                    raise failure
        except (ApiNotFoundError, ApiConflictError):  # the pod itself is gone
            self.nominations.drop(pod.metadata.uid)
        except TonnageError as failure:
            self._not_done(pod, candidate, failure)

    def _not_done(self, pod: Pod, candidate: PreemptionCandidate, failure: TonnageError) -> None:
        """Report a failed preemption; the pod waits for other capacity and tries again."""
        log.warning("preemption failed pod=%s node=%s error=%s", pod.key, candidate.node, failure)
        self._events.warning(
            refer(PODS, pod), "PreemptionFailed", f"preemption on node {candidate.node} failed: {failure}"
        )
        self._failed[pod.metadata.uid] = self._clock.monotonic() + _PAUSE
        if (found := self.nominations.get(pod.metadata.uid)) is not None:
            self._give_up(found)

    async def _evict(self, victim: Pod, pod: Pod, node: str) -> None:
        """Write the victim's condition, and delete it.

        A pod that is gone or was created again is left alone.
        """
        if victim.metadata.deleting:
            return
        meta = victim.metadata
        text = f"{self._name}: preempting to accommodate a higher priority pod"
        condition = PodCondition(DISRUPTION_TARGET, "True", _REASON, text)
        try:
            await write_condition(self._client, self._clock, victim, condition)
            await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        except (ApiNotFoundError, ApiConflictError):
            return
        message = f"Preempted by pod {pod.metadata.uid} on node {node}"
        self._events.normal(refer(PODS, victim), PREEMPTED, message)
