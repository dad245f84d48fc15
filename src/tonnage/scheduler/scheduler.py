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
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from tonnage.aio.clock import Clock
from tonnage.aio.tasks import Background
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.kinds import (
    ATTACHMENTS,
    CAPACITIES,
    CLAIMS,
    CSI_DRIVERS,
    CSI_NODES,
    DISRUPTION_BUDGETS,
    NODES,
    PODS,
    STORAGE_CLASSES,
    VOLUMES,
    Kind,
)
from tonnage.api.meta import KubeObject
from tonnage.api.pods import Pod
from tonnage.errors import ApiError, Precondition, TonnageError, Unavailable
from tonnage.kube.client import Client, refer
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informer, Informers
from tonnage.observe import metrics
from tonnage.scheduler.core import conditions
from tonnage.scheduler.core.cache import Cluster
from tonnage.scheduler.core.conditions import ConditionWriter
from tonnage.scheduler.framework.plugin import Refusal, SchedulingDecision, Unbound
from tonnage.scheduler.framework.pod_info import compile_ask
from tonnage.scheduler.framework.queue import QueuedPod, SchedulingQueue
from tonnage.scheduler.framework.storage_objects import StorageObjects, claim_key
from tonnage.scheduler.plugins.binding import POD_GONE, Binding, BindingWaits, Withdrawn, claim_patch, volume_patch
from tonnage.scheduler.plugins.messages import not_there
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.scheduler.preemption.dry_run import Preemption
from tonnage.scheduler.preemption.evaluator import Preemptor

log = logging.getLogger(__name__)
T = TypeVar("T", bound=KubeObject)
_SLICE, _SLICE_SECONDS = 64, 0.005  # decisions between two runs of the loop's other work
_HOLD_SECONDS = 1.0
_UNPUBLISHED_SECONDS = 5.0
"""Seconds for which agents may publish the capacity, or an error, of a new class."""
_RETRY_SECONDS = (0.02, 0.2, 1.0)
_BIND_SECONDS = 600.0


class Scheduler:
    """Places the pods whose schedulerName is `name`.

    patience: seconds for which a volume may be missing without a known provisioner, before the pod's condition says so.
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
        patience: float = 3.0,
        strategy: ScoringStrategy = ScoringStrategy.LEAST_ALLOCATED,
        pod_fields: str = "",
    ) -> None:
        self._patience = patience
        self._client, self._events, self._clock, self._name = client, events, clock, name
        self._informers: list[Informer[KubeObject]] = []
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._assumed: dict[str, str] = {}
        self._tasks = Background("scheduler")
        claims, volumes = self._of(informers, CLAIMS), self._of(informers, VOLUMES)
        classes, drivers = self._of(informers, STORAGE_CLASSES), self._of(informers, CSI_DRIVERS)
        pods = self._of(informers, PODS, fields=pod_fields)
        self.objects = StorageObjects(claims.cache, volumes.cache, classes.cache, drivers.cache)
        self.queue = SchedulingQueue(self._wake.set)
        self.cluster = Cluster(self.objects, self.queue, clock.monotonic, strategy)
        budgets = self._of(informers, DISRUPTION_BUDGETS).cache
        preemption = Preemption(self.cluster, lambda: budgets)
        self._preemptor = Preemptor(client, events, self.cluster, preemption, clock=clock, name=name)
        self._waits = BindingWaits(self.objects)
        self._conditions = ConditionWriter(client, events, pods.cache, clock)
        self._of(informers, NODES).cache.on_change(self.cluster.node_changed)
        self._of(informers, CSI_NODES).cache.on_change(self.cluster.csi_node_changed)
        classes.cache.on_change(self.cluster.class_changed)
        drivers.cache.on_change(self.cluster.driver_changed)
        volumes.cache.on_change(self._volume_changed)
        self._of(informers, ATTACHMENTS).cache.on_change(self.cluster.attachment_changed)
        claims.cache.on_change(self._claim_changed)
        self._of(informers, CAPACITIES).cache.on_change(self.cluster.capacity_changed)
        pods.cache.on_change(self._pod_changed)

    def _of(self, informers: Informers, kind: Kind[T], *, fields: str = "") -> Informer[T]:
        informer = informers.of(kind, fields=fields)
        self._informers.append(informer)  # type: ignore[arg-type]
        return informer

    # Changes

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        self.cluster.claim_changed(old, new)
        self._waits.changed((new or old).key)  # type: ignore[union-attr]

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        self.cluster.volume_changed(old, new)
        for volume in (old, new):
            if volume is not None and (key := claim_key(volume)):
                self._waits.changed(key)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._pod_gone(old.metadata.uid)
        if new is None:
            return
        uid = new.metadata.uid
        if new.spec.node_name or new.terminated:
            self._assumed.pop(uid, None)
            self.queue.remove(uid)
            self._conditions.forget(uid)
            self._preemptor.forget(uid)
            if new.terminated:
                self.cluster.pod_lifted(uid)
            else:
                self.cluster.pod_placed(new)
        elif new.metadata.deleting:
            self.queue.remove(uid)
            self._conditions.forget(uid)
            self._preemptor.forget(uid)
            self._waits.pod_gone(uid)
        elif new.spec.scheduler_name == self._name and uid not in self._assumed:
            self._enqueue(new)

    def _pod_gone(self, uid: str) -> None:
        self._assumed.pop(uid, None)
        self.queue.remove(uid)
        self._conditions.forget(uid)
        self._preemptor.forget(uid)
        self._waits.pod_gone(uid)
        self.cluster.pod_lifted(uid)

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
        self._preemptor.restore(self.queue)
        try:
            while True:
                now = self._clock.monotonic()
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
        dues = [due for due in (self.queue.next_due(), self._preemptor.next_due()) if due is not None]
        if dues:
            delay = max(0.0, min(dues) - self._clock.monotonic())
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
            outcome = self._preemptor.nominations.decide(entry.ask)
        except Exception as failure:
            if not isinstance(failure, TonnageError):
                log.exception("scheduling cycle failed pod=%s", entry.ask.pod.key)
            self._fail(entry, str(failure))
            return
        if isinstance(outcome, Refusal):
            self._refuse(entry, outcome)
            return
        self._conditions.cancel(entry.uid)
        self.cluster.assume(entry.ask, outcome)
        self._preemptor.placed(entry.uid, outcome)
        self._assumed[entry.uid] = outcome.node
        self._tasks.start(self._bind(entry, outcome), f"bind {entry.ask.pod.key}")

    def _refuse(self, entry: QueuedPod, refusal: Refusal) -> None:
        counts = not (self._makes_room(entry, refusal) or refusal.awaited)
        self.queue.refuse(entry, refusal.causes, self._clock.monotonic(), needs=refusal.needs, counts=counts)
        after = _HOLD_SECONDS if refusal.awaited else _UNPUBLISHED_SECONDS if refusal.unpublished else 0.0
        self._conditions.report(entry.ask.pod, conditions.UNSCHEDULABLE, refusal.message, after=after)
        metrics.SCHEDULED.labels("awaited" if refusal.awaited else "unschedulable").inc()

    def _makes_room(self, entry: QueuedPod, refusal: Refusal) -> bool:
        """Return whether victims or reserved capacity will help a rejected pod."""
        try:
            return self._preemptor.refused(entry.ask, refusal)
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
            if decision.plan.found or decision.plan.made:
                await self._bind_volumes(pod, decision)
            await self._bind_pod(pod, decision.node)
        except asyncio.CancelledError:  # no longer the leader: undo the decision
            if self._assumed.pop(entry.uid, None) is not None:
                self.cluster.withdraw(entry.ask, decision)
                self.queue.retry(entry, self._clock.monotonic(), free=True)
            raise
        except Exception as failure:
            self._undo(entry, decision, failure)
            return
        self.cluster.release(decision)
        self.queue.remove(entry.uid)
        self._conditions.forget(entry.uid)
        message = f"Successfully assigned {pod.key} to {decision.node}"
        self._events.normal(refer(PODS, pod), "Scheduled", message)
        metrics.SCHEDULED.labels("scheduled").inc()

    def _undo(self, entry: QueuedPod, decision: SchedulingDecision, failure: Exception) -> None:
        pod = entry.ask.pod
        if self._assumed.pop(entry.uid, None) is None:  # gone meanwhile, or on a node: the cache is up to date
            self.cluster.give_up(decision)
            return
        self.cluster.withdraw(entry.ask, decision)
        if not isinstance(failure, TonnageError):
            log.error("binding failed pod=%s node=%s", pod.key, decision.node, exc_info=failure)
        else:
            log.info("binding failed pod=%s node=%s error=%s", pod.key, decision.node, failure)
        self._fail(entry, str(failure), free=isinstance(failure, Withdrawn))

    async def _bind_volumes(self, pod: Pod, decision: SchedulingDecision) -> None:
        slot = self.cluster.columns.slots[decision.node]
        binding = Binding(pod, decision, self.cluster.columns.labels[slot])
        prefix = 'running PreBind plugin "VolumeBinding": binding volumes: '
        try:
            async with asyncio.timeout(_BIND_SECONDS):
                await self._send(binding)
                if pod.metadata.uid not in self._assumed:
                    raise Precondition(POD_GONE)
                await self._wait(binding)
        except TimeoutError:
            raise TonnageError(prefix + "context deadline exceeded") from None
        except TonnageError as failure:
            kind = Withdrawn if isinstance(failure, Withdrawn) else TonnageError
            raise kind(prefix + str(failure)) from failure

    async def _wait(self, binding: Binding) -> None:
        """Wait for the volumes.

        If no provisioner is known, the pod's condition says so after a while, and it waits on: a provisioner need not
        be a CSI driver.
        """
        absent = [u for u in binding.plan.made if self._is_absent(u.storage_class.provisioner)]
        if not absent:
            await self._waits.wait(binding)
            return
        timer = asyncio.get_running_loop().call_later(self._patience, self._tell_absent, binding, absent)
        try:
            await self._waits.wait(binding)
        finally:
            timer.cancel()

    def _is_absent(self, provisioner: str) -> bool:
        return self.objects.drivers.get(provisioner) is None and not self.cluster.is_registered(provisioner)

    def _tell_absent(self, binding: Binding, absent: list[Unbound]) -> None:
        for unbound in absent:
            claim, storage_class = unbound.claim.metadata.name, unbound.storage_class
            text = (
                f'waiting for provisioner "{storage_class.provisioner}" of StorageClass "{storage_class.metadata.name}"'
                f" to make the volume of claim {claim}: {not_there(storage_class.provisioner)}"
            )
            self._events.warning(refer(PODS, binding.pod), "WaitingForProvisioner", text)

    async def _send(self, binding: Binding) -> None:
        """Write the decision into PVs and claims, in order; the first failure ends it."""
        for claim, volume in binding.plan.found:
            if patch := volume_patch(volume, claim):
                meta = volume.metadata
                wrote = await self._client.patch(VOLUMES, meta.name, patch, resource_version=meta.resource_version)
                binding.sent[meta.uid] = int(wrote.metadata.resource_version)
        for made in binding.plan.made:
            if made.is_sent_to(binding.node):
                continue
            meta = made.claim.metadata
            patch = claim_patch(made, binding.node, binding.pod)
            sent = await self._insist(
                partial(self._client.patch, CLAIMS, meta.name, patch, meta.namespace, uid=meta.uid)
            )
            binding.sent[meta.uid] = int(sent.metadata.resource_version)
            self.cluster.published.confirm(meta.uid, binding.sent[meta.uid])
            if (seen := self.objects.claims.get(made.claim.key)) is not None and seen.metadata.uid == meta.uid:
                self.cluster.published.follow(seen, made.storage_class.key)  # an event that came during the write

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat an idempotent request while the server fails.

        Stopping between two claims of a pod would pin it to the node by the first, without capacity reserved for the
        second.
        """
        for delay in _RETRY_SECONDS:
            try:
                return await call()
            except Unavailable as failure:
                log.debug("request repeated in=%.2fs error=%s", delay, failure)
            except ApiError as failure:
                if failure.code < 500 and failure.code != 429:
                    raise
                delay = failure.retry_after or delay
            await self._clock.sleep(delay)
        return await call()

    async def _bind_pod(self, pod: Pod, node: str) -> None:
        meta = pod.metadata
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._client.post(PODS.path(meta.namespace, meta.name, "binding"), body)
