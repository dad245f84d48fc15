"""Pods that have waited for storage for too long while others were given some: for them room is held on a node.

Small claims that keep coming would take each bit of room that a large one waits for. The rule: a pod that has waited
PATIENCE seconds for storage, and was overtaken by OVERTAKEN pods with volumes of its classes, gets the node that lacks
the least for it, if that could ever hold it. Room is held there for HOLD seconds at most; then the pod goes to the end
of this line. At most one node in NODES_A_HOLD is held in this way, and one at least; pods of higher priority are not
kept away. So nobody waits for ever for the sake of another. Sans-I/O; times are monotonic seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tonnage.scheduler.core.cache import Cluster
from tonnage.scheduler.core.cycle import Refusal
from tonnage.scheduler.framework.cause import Cause
from tonnage.scheduler.framework.pod_info import Ask
from tonnage.scheduler.preemption.dry_run import supposing
from tonnage.scheduler.preemption.nominator import Nominations

PATIENCE, HOLD = 60.0, 600.0
OVERTAKEN, NODES_A_HOLD = 5, 20
_LOOK = 5.0
_TESTED = 100
Needs = Iterable[tuple[str, int]]


@dataclass(slots=True)
class _Waiter:
    """since when a pod waits, and how many pods had got volumes of its classes then. needs: (class, bytes)."""

    since: float
    needs: tuple[tuple[str, int], ...]
    before: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A pod that is to have room held, where, and how many bytes are lacking there."""

    ask: Ask
    node: str
    missing: int


class Waiting:
    """Who waits for storage."""

    def __init__(self, cluster: Cluster, nominations: Nominations) -> None:
        self._cluster, self._nominations = cluster, nominations
        self._waiters: dict[str, _Waiter] = {}
        self._served: Counter[str] = Counter()
        self._looks_at: float | None = None

    def refused(self, uid: str, refusal: Refusal, now: float) -> None:
        """A pod was refused. One that lacks something else than storage does not wait for storage."""
        if Cause.STORAGE not in refusal.causes or not refusal.needs:
            self._waiters.pop(uid, None)
        elif uid not in self._waiters:
            self._waiters[uid] = _Waiter(now, refusal.needs, self._count(refusal.needs))

    def served(self, needs: Needs, now: float) -> None:
        """A pod with such claims got a node."""
        for storage_class in {storage_class for storage_class, _ in needs}:
            self._served[storage_class] += 1
            if self._waiters and self._looks_at is None:
                self._looks_at = now + _LOOK

    def forget(self, uid: str) -> None:
        """The pod waits no longer."""
        self._waiters.pop(uid, None)

    def _count(self, needs: Needs) -> int:
        return sum(self._served[storage_class] for storage_class in {c for c, _ in needs})

    def next_due(self) -> float | None:
        """When grants() may have something to say, as far as time tells."""
        return self._looks_at

    def grants(self, now: float) -> Iterator[Grant]:
        """Pods that are to have room held now, longest waiting first. Each waits anew from here on."""
        if self._looks_at is None or self._looks_at > now:
            return
        overtaken = [(w.since, uid) for uid, w in self._waiters.items() if self._count(w.needs) - w.before >= OVERTAKEN]
        self._looks_at = now + _LOOK if overtaken else None
        for since, uid in sorted(overtaken):
            if since + PATIENCE > now or self._held() >= max(1, len(self._cluster.columns.live) // NODES_A_HOLD):
                return
            entry = self._cluster.queue.get(uid)
            if entry is None or self._nominations.get(uid) is not None:
                continue
            waiter = self._waiters[uid]
            waiter.since, waiter.before = now, self._count(waiter.needs)
            if (found := self._soonest(entry.ask, waiter.needs)) is not None:
                yield found

    def _held(self) -> int:
        return sum(one.until is not None and not one.going for one in self._nominations)

    def _soonest(self, ask: Ask, needs: Needs) -> Grant | None:
        """The node that lacks the least, of those where the pod would fit if it were alone there."""
        names, taken = self._cluster.columns.names, {one.node for one in self._nominations}
        lacking = [
            (missing, name)
            for name in (names[slot] for slot in self._cluster.columns.live)
            if name not in taken and (missing := self._missing(name, needs)) is not None
        ]
        for missing, name in sorted(lacking)[:_TESTED]:
            if self._fits_alone(ask, name):
                return Grant(ask, name, missing)
        return None

    def _missing(self, node: str, needs: Needs) -> int | None:
        """Bytes that the node lacks; None where it has nothing of a class."""
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
        with supposing(self._cluster, node, ask) as room:
            for pod in list(self._cluster.residents.on(node)):
                room.take(pod)
            return room.fits()
