"""Scheduler loop: decides pod by pod, binds many at once.

A pod enters the queue; a cycle picks its node; the decision is assumed (counted at once). A task then sets
selected-node on the claims, waits until all volumes are bound, and binds the pod. A failure is undone, and the pod is
tried again after a back-off.

On Kubernetes this is a second scheduler, for pods that name it. Not supported, and rejected by name: resource claims,
and some affinity terms.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from typing import TypeVar

from tonnage.base.aio.clock import Clock
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import TonnageError
from tonnage.base.observe import metrics
from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informer, Informers
from tonnage.scheduler.core import conditions
from tonnage.scheduler.core.binding import RescheduledError, VolumeBinder, bind
from tonnage.scheduler.core.cache import Cluster
from tonnage.scheduler.core.conditions import ConditionWriter
from tonnage.scheduler.core.cycle import Cycle
from tonnage.scheduler.framework.plugin import HELPED, Diagnosis, SchedulingDecision
from tonnage.scheduler.framework.pod_info import compile_ask
from tonnage.scheduler.framework.queue import ClusterEvent, QueuedPod, SchedulingQueue
from tonnage.scheduler.framework.storage_objects import StorageObjects, claim_key
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.scheduler.preemption.evaluator import Preemptor

log = logging.getLogger(__name__)
T = TypeVar("T", bound=KubeObject)
_SLICE, _SLICE_SECONDS = 64, 0.005  # decisions between two runs of the loop's other work
_HOLD_SECONDS = 1.0
_UNPUBLISHED_SECONDS = 5.0
"""Seconds for which agents may publish the capacity, or an error, of a new class."""


class Scheduler:
    """Places the pods whose schedulerName is `name`.

    strategy: scoring of nodes that fit. pod_fields: field selector of the pods.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder,
        *,
        clock: Clock,
        name: str = "default-scheduler",
        strategy: ScoringStrategy = ScoringStrategy.LEAST_ALLOCATED,
        pod_fields: str = "",
    ) -> None:
        self._client, self._events, self._clock, self._name = client, events, clock, name
        self._informers: list[Informer[KubeObject]] = []
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._assumed: set[str] = set()
        self._rejected: set[str] = set()
        """Pods that preemption and the starvation guard know; without any, no pod passes them."""
        self._tasks = Background("scheduler")
        claims, volumes = self._of(informers, kinds.CLAIMS), self._of(informers, kinds.VOLUMES)
        classes, drivers = self._of(informers, kinds.STORAGE_CLASSES), self._of(informers, kinds.CSI_DRIVERS)
        pods = self._of(informers, kinds.PODS, fields=pod_fields)
        self.queue = SchedulingQueue(self._wake.set)
        # Not waited for: a cluster may have no snapshots.
        snapshots = informers.of(kinds.SNAPSHOTS, optional=True).cache
        contents = informers.of(kinds.SNAPSHOT_CONTENTS, optional=True).cache
        objects = StorageObjects(claims.cache, volumes.cache, classes.cache, drivers.cache, snapshots, contents)
        self.cluster = Cluster(objects, self._notice)
        self.cycle = Cycle(self.cluster, strategy)
        budgets = self._of(informers, kinds.DISRUPTION_BUDGETS).cache
        self._preemptor = Preemptor(client, events, self.cycle, self.queue, lambda: budgets, clock=clock, name=name)
        self._volume_binder = VolumeBinder(client, events, clock, self.cluster, self._assumed.__contains__)
        self._conditions = ConditionWriter(client, events, pods.cache, clock)
        self._of(informers, kinds.NODES).cache.on_change(self.cluster.node_changed)
        self._of(informers, kinds.CSI_NODES).cache.on_change(self.cluster.csi_node_changed)
        self._of(informers, kinds.ATTACHMENTS).cache.on_change(self.cluster.attachment_changed)
        self._of(informers, kinds.CAPACITIES).cache.on_change(self.cluster.capacity_changed)
        volumes.cache.on_change(self._volume_changed)
        claims.cache.on_change(self._claim_changed)
        pods.cache.on_change(self._pod_changed)

    def _of(self, informers: Informers, kind: kinds.Kind[T], *, fields: str = "") -> Informer[T]:
        informer = informers.of(kind, fields=fields)
        self._informers.append(informer)  # type: ignore[arg-type]
        return informer

    # Changes

    def _notice(self, event: ClusterEvent) -> None:
        self.queue.notice(event, self._clock.monotonic())

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        self._volume_binder.waits.changed((new or old).key)  # type: ignore[union-attr]

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        for volume in (old, new):
            if volume is not None and (key := claim_key(volume)):
                self._volume_binder.waits.changed(key)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._forget(old.metadata.uid)
            self._volume_binder.waits.pod_gone(old.metadata.uid)
            self.cluster.pod_lifted(old.metadata.uid)
        if new is None:
            return
        uid = new.metadata.uid
        if new.spec.node_name or new.terminated:
            self._forget(uid)
            if new.terminated:
                self.cluster.pod_lifted(uid)
            else:
                self.cluster.pod_placed(new)
        elif new.metadata.deleting:
            self._forget(uid, assumed=False)
            self._volume_binder.waits.pod_gone(uid)
        elif new.spec.scheduler_name == self._name and uid not in self._assumed:
            self._enqueue(new)

    def _forget(self, uid: str, *, assumed: bool = True) -> None:
        """Forget a pod that needs no node. assumed: also the decision under way, if any."""
        if assumed:
            self._assumed.discard(uid)
        self.queue.remove(uid)
        if uid in self._conditions.reported:
            self._conditions.forget(uid)
        if uid in self._rejected:
            self._rejected.discard(uid)
            self._preemptor.forget(uid)

    def _enqueue(self, pod: Pod) -> None:
        if pod.spec.scheduling_gates:
            self._conditions.report(pod, conditions.GATED, conditions.GATED_MESSAGE)
            return
        try:
            self.queue.add(pod.metadata.uid, compile_ask(pod), self._clock.monotonic())
        except TonnageError as failure:
            self._conditions.report(pod, conditions.FAILED, str(failure))

    # Deciding

    async def run(self) -> None:
        """Schedule until cancelled."""
        for informer in self._informers:
            await informer.wait_synced()
        self.cluster.settle()
        self._rejected.update(self._preemptor.restore())
        try:
            while True:
                now = self._clock.monotonic()
                if self._rejected:
                    self._preemptor.advance(now)
                self.queue.advance(now)
                if self._decide_some():
                    await asyncio.sleep(0)
                    continue
                self._set_timer()
                await self._wake.wait()
                self._wake.clear()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await self._tasks.close()
            await self._preemptor.close()
            await self._conditions.close()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        dues = [self.queue.next_due(), self._preemptor.next_due() if self._rejected else None]
        due = min((due for due in dues if due is not None), default=None)
        if due is not None:
            delay = max(0.0, due - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._wake.set)

    def _decide_some(self) -> bool:
        """Decide about a few pods, for a few milliseconds.

        Returns whether more may be ready.
        """
        until = self._clock.monotonic() + _SLICE_SECONDS
        for _ in range(_SLICE):
            entry = self.queue.pop()
            if entry is None:
                return False
            self._decide(entry)
            if self._clock.monotonic() > until:
                break
        return True

    def _decide(self, entry: QueuedPod) -> None:
        try:
            decide = self._preemptor.nominations.decide if self._rejected else self.cycle.decide
            outcome = decide(entry.ask)
        except Exception as failure:
            if not isinstance(failure, TonnageError):
                log.exception("scheduling cycle failed pod=%s", entry.ask.pod.key)
            self._fail(entry, str(failure))
            return
        if isinstance(outcome, Diagnosis):
            self._reject(entry, outcome)
            return
        if entry.uid in self._conditions.reported:
            self._conditions.cancel(entry.uid)
        self.cycle.reserve(entry.ask, outcome)
        self.queue.decided(entry)
        if self._rejected:
            self._rejected.discard(entry.uid)
            self._preemptor.placed(entry.uid, outcome)
        self._assumed.add(entry.uid)
        self._tasks.start(self._bind(entry, outcome), f"bind {entry.ask.pod.key}")

    def _reject(self, entry: QueuedPod, rejection: Diagnosis) -> None:
        counts = not (self._post_filter(entry, rejection) or rejection.awaited)
        self.queue.reject(
            entry, rejection.causes, self._clock.monotonic(),
            needs=rejection.needs, counts=counts, alike=self._alike(entry, rejection),
        )  # fmt: skip
        after = _HOLD_SECONDS if rejection.awaited else _UNPUBLISHED_SECONDS if rejection.unpublished else 0.0
        self._conditions.report(entry.ask.pod, conditions.UNSCHEDULABLE, rejection.message, after=after)
        metrics.SCHEDULED.labels("awaited" if rejection.awaited else "unschedulable").inc()

    def _alike(self, entry: QueuedPod, rejection: Diagnosis) -> Hashable:
        """Return what the pod has in common with those that are rejected alike. None where it may preempt others."""
        return None if self._preemptor.may_preempt(entry.ask.pod) else rejection.alike(entry.priority)

    def _post_filter(self, entry: QueuedPod, rejection: Diagnosis) -> bool:
        """Return whether victims or reserved capacity will help a rejected pod."""
        if not rejection.causes & HELPED and entry.uid not in self._rejected:
            return False
        self._rejected.add(entry.uid)
        try:
            return self._preemptor.post_filter(entry.ask, rejection)
        except Exception:
            log.exception("preemption failed pod=%s", entry.ask.pod.key)
            return False

    def _fail(self, entry: QueuedPod, message: str, *, free: bool = False) -> None:
        if self.queue.get(entry.uid) is not entry:  # the pod is gone, or being deleted
            return
        self.queue.retry(entry, self._clock.monotonic(), free=free)
        self._conditions.report(entry.ask.pod, conditions.FAILED, message)
        metrics.SCHEDULED.labels("error").inc()

    # Binding

    async def _bind(self, entry: QueuedPod, decision: SchedulingDecision) -> None:
        pod = entry.ask.pod
        try:
            await self._volume_binder.pre_bind(pod, decision)
            await bind(self._client, pod, decision.node)
        except asyncio.CancelledError:  # no longer the leader: undo the decision
            if entry.uid in self._assumed:
                self._assumed.discard(entry.uid)
                self.cycle.roll_back(entry.ask, decision)
                self.queue.retry(entry, self._clock.monotonic(), free=True)
            raise
        except Exception as failure:
            self._undo(entry, decision, failure)
            return
        self.cycle.volumes.post_bind(decision)
        self._forget(entry.uid, assumed=False)
        message = f"Successfully assigned {pod.key} to {decision.node}{self._sources_of(decision)}"
        self._events.normal(refer(kinds.PODS, pod), "Scheduled", message)
        metrics.SCHEDULED.labels("scheduled").inc()

    def _sources_of(self, decision: SchedulingDecision) -> str:
        """Return which data sources of its claims left the pod no other node, "" for none."""
        made = [unbound.claim for unbound in decision.plan.made if unbound.source is not None]
        found = [(claim.metadata.name, self.cluster.objects.origin_of(claim)) for claim in made]
        texts = [f"its claim {name} {origin.verb} {origin.text}" for name, origin in found if origin is not None]
        return f": {' and '.join(texts)}, which is there" if texts else ""

    def _undo(self, entry: QueuedPod, decision: SchedulingDecision, failure: Exception) -> None:
        pod = entry.ask.pod
        if entry.uid not in self._assumed:  # gone meanwhile, or on a node: the cache is up to date
            self.cycle.volumes.unreserve(decision)
            return
        self._assumed.discard(entry.uid)
        self.cycle.roll_back(entry.ask, decision)
        if not isinstance(failure, TonnageError):
            log.error("binding failed pod=%s node=%s", pod.key, decision.node, exc_info=failure)
        else:
            log.info("binding failed pod=%s node=%s error=%s", pod.key, decision.node, failure)
        self._fail(entry, str(failure), free=isinstance(failure, RescheduledError))
