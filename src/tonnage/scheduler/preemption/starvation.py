"""Starvation rule: capacity for pods that waited too long for it.

Otherwise a stream of small claims would use each byte that a large one waits for. A pod that has waited PATIENCE
seconds for storage, and was overtaken by OVERTAKEN pods with volumes of its classes, gets the node with the smallest
shortfall, if that could ever hold it. Capacity is reserved there for HOLD seconds at most; then the pod starts to wait
again. At most one node in NODES_A_HOLD is reserved so, and at least one; pods of higher priority may still use it. So
no pod starves. Sans-I/O; times are monotonic seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tonnage.scheduler.core.cycle import Cycle
from tonnage.scheduler.framework.plugin import Diagnosis, RejectionCause
from tonnage.scheduler.framework.pod_info import Ask
from tonnage.scheduler.framework.queue import SchedulingQueue
from tonnage.scheduler.preemption.dry_run import Supposed
from tonnage.scheduler.preemption.nominator import Nominations

PATIENCE, HOLD = 60.0, 600.0
OVERTAKEN, NODES_A_HOLD = 5, 20
_LOOK = 5.0
_TESTED = 100
Needs = Iterable[tuple[str, int]]


@dataclass(slots=True)
class _Waiter:
    """Start of a pod's wait; pods with volumes of its classes by then.

    needs: (class, bytes).
    """

    since: float
    needs: tuple[tuple[str, int], ...]
    before: int


Grant = tuple[Ask, str, int]
"""A pod to reserve capacity for, its node, and the node's shortfall in bytes."""


class Waiting:
    """Pods that wait for storage."""

    def __init__(self, cycle: Cycle, queue: SchedulingQueue, nominations: Nominations) -> None:
        self._cycle, self._cluster, self._queue, self._nominations = cycle, cycle.cluster, queue, nominations
        self._waiters: dict[str, _Waiter] = {}
        self._served: Counter[str] = Counter()
        self._looks_at: float | None = None

    def rejected(self, uid: str, rejection: Diagnosis, now: float) -> None:
        """Record a rejected pod.

        A pod rejected for anything else than storage does not wait for storage.
        """
        if RejectionCause.STORAGE not in rejection.causes or not rejection.needs:
            self._waiters.pop(uid, None)
        elif uid not in self._waiters:
            self._waiters[uid] = _Waiter(now, rejection.needs, self._count(rejection.needs))

    def served(self, needs: Needs, now: float) -> None:
        """Record that a pod with such claims got a node."""
        for storage_class in {storage_class for storage_class, _ in needs}:
            self._served[storage_class] += 1
            if self._waiters and self._looks_at is None:
                self._looks_at = now + _LOOK

    def forget(self, uid: str) -> None:
        """Forget a pod that no longer waits."""
        self._waiters.pop(uid, None)

    def _count(self, needs: Needs) -> int:
        return sum(self._served[storage_class] for storage_class in {c for c, _ in needs})

    def next_due(self) -> float | None:
        """Return when grants() may return something, as far as time decides."""
        return self._looks_at

    def grants(self, now: float) -> Iterator[Grant]:
        """Return pods to reserve capacity for, longest wait first.

        The wait of each starts again.
        """
        if self._looks_at is None or self._looks_at > now:
            return
        overtaken = [(w.since, uid) for uid, w in self._waiters.items() if self._count(w.needs) - w.before >= OVERTAKEN]
        self._looks_at = now + _LOOK if overtaken else None
        for since, uid in sorted(overtaken):
            if since + PATIENCE > now or self._held() >= max(1, len(self._cluster.columns.live) // NODES_A_HOLD):
                return
            entry = self._queue.get(uid)
            if entry is None or self._nominations.get(uid) is not None:
                continue
            waiter = self._waiters[uid]
            waiter.since, waiter.before = now, self._count(waiter.needs)
            if (found := self._soonest(entry.ask, waiter.needs)) is not None:
                yield found

    def _held(self) -> int:
        return sum(one.until is not None and not one.going for one in self._nominations)

    def _soonest(self, ask: Ask, needs: Needs) -> Grant | None:
        """Return the node with the smallest shortfall where the pod alone would fit."""
        names, taken = self._cluster.columns.names, {one.node for one in self._nominations}
        lacking = [
            (missing, name)
            for name in (names[slot] for slot in self._cluster.columns.live)
            if name not in taken and (missing := self._missing(name, needs)) is not None
        ]
        for missing, name in sorted(lacking)[:_TESTED]:
            if self._fits_alone(ask, name):
                return ask, name, missing
        return None

    def _missing(self, node: str, needs: Needs) -> int | None:
        """Return the node's shortfall in bytes; None if it has none of a class."""
        wanted: Counter[str] = Counter()
        for storage_class, size in needs:
            wanted[storage_class] += size
        missing, offers = 0, self._cluster.published.on(node)
        for storage_class, size in wanted.items():
            left = max((offer.left for offer in offers.get(storage_class, ())), default=-1)
            if left == -1:
                return None
            missing += max(0, size - left)
        return missing

    def _fits_alone(self, ask: Ask, node: str) -> bool:
        with Supposed(self._cycle, node, ask) as supposed:
            for pod in list(self._cluster.residents.on(node)):
                supposed.take(pod)
            return supposed.fits()
