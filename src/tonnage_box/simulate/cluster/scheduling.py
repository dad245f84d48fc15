"""Scheduler of a simulation: the real queue, model and cycle; each decision takes virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.kubernetes.client.cache import Cache
from tonnage.scheduler.core.cache import Cluster
from tonnage.scheduler.core.cycle import Cycle
from tonnage.scheduler.framework.plugin import Diagnosis, SchedulingDecision
from tonnage.scheduler.framework.pod_info import Ask
from tonnage.scheduler.framework.queue import QueuedPod, SchedulingQueue
from tonnage.scheduler.framework.storage_objects import StorageObjects
from tonnage_box.simulate.cluster.events import Events
from tonnage_box.simulate.policy import Policy
from tonnage_box.simulate.tally import Tally


class Scheduling:
    """Schedules the pods in the queue, one after the other.

    decided(entry, decision) is called for each pod that has a node now; its caller carries the decision out. seconds:
    time of a decision.
    """

    def __init__(
        self,
        events: Events,
        policy: Policy,
        tally: Tally,
        *,
        seconds: float,
        decided: Callable[[QueuedPod, SchedulingDecision], None],
    ) -> None:
        self._events, self._policy, self._tally, self._seconds, self._decided = events, policy, tally, seconds, decided
        self._busy_until = 0.0
        self._planned: float | None = None
        self.objects = StorageObjects(Cache(), Cache(), Cache(), Cache())
        self.queue = SchedulingQueue(self._ready)
        self.cluster = Cluster(self.objects, lambda event: self.queue.notice(event, events.now))
        self.cycle = Cycle(self.cluster, policy.strategy)
        self.capacities: Cache[CSIStorageCapacity] = Cache()
        self.capacities.on_change(self.cluster.capacity_changed)

    def add(self, ask: Ask) -> None:
        """A pod wants a node."""
        self.queue.add(ask.pod.metadata.uid, ask, self._events.now)

    def sent(self, uid: str, version: int) -> None:
        """Record that the write with that resourceVersion set a claim's node, and that the cache shows it."""
        if self._policy.tracked:
            self.cluster.published.confirm(uid, version)
        else:
            self.cluster.published.drop(uid)

    # When to decide

    def _ready(self) -> None:
        self._plan(self._events.now)

    def _plan(self, when: float) -> None:
        when = max(when, self._busy_until)
        if self._planned is None or when < self._planned:
            self._planned = when
            self._events.at(when, partial(self._turn, when))

    def _turn(self, when: float) -> None:
        if self._planned != when:  # an earlier turn was planned since
            return
        now = self._events.now
        self.queue.advance(now)
        entry = self.queue.pop()
        self._planned = None
        if entry is not None:
            self._busy_until = now + self._seconds
            self._decide(entry)
            if len(self.queue):
                self._plan(now)
        if self._planned is None and (due := self.queue.next_due()) is not None:
            self._plan(due)

    def _decide(self, entry: QueuedPod) -> None:
        self._tally.decisions += 1
        outcome = self.cycle.decide(entry.ask)
        if isinstance(outcome, Diagnosis):
            self._tally.rejected += 1
            self._tally.writes["pods"] += entry.tries == 0  # the condition is written when it changes
            alike = outcome.alike(entry.priority)
            self.queue.reject(entry, outcome.causes, self._events.now, needs=outcome.needs, alike=alike)
            return
        self.cycle.reserve(entry.ask, outcome)
        self.queue.decided(entry)
        if not self._policy.tracked:
            for made in outcome.plan.made:
                self.cluster.published.drop(made.claim.metadata.uid)
        self._decided(entry, outcome)
