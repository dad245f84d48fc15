"""Scheduling queue: ready, backing-off and waiting pods. Sans-I/O.

The caller has the clock. Source: k/k pkg/scheduler/backend/queue, KEP-4247, KEP-5142. A rejected pod waits for a
queueing hint that its cause may have changed. Then it is ready after its back-off (1 s doubling to 10 s, from its last
attempt). While no other pod is ready, a tenth of a second is enough: on a full cluster each volume that goes wakes
all pods, of which one fits, and the others would wait longer each time. Without a hint it is tried again after 5
minutes. Older pods come first among those of equal priority, so small later pods do not starve a large one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from tonnage.scheduler.framework.plugin import RejectionCause
from tonnage.scheduler.framework.pod_info import Ask

BACKOFF, LONGEST_BACKOFF, LEFTOVER = 1.0, 10.0, 300.0
IDLE_BACKOFF = 0.1


class QueuePlace(Enum):
    """Where an entry is."""

    READY = "ready"
    BACKING_OFF = "backing off"
    WAITING = "waiting"
    OUT = "out"
    """Returned by pop(): being decided or bound."""
    GONE = "gone"


@dataclass(slots=True, eq=False)
class QueuedPod:
    """A pod in the queue.

    tries: attempts that count for the back-off. needs: its shortfall, (class, bytes).
    """

    uid: str
    ask: Ask
    number: int
    place: QueuePlace = QueuePlace.GONE
    tries: int = 0
    tried: float = 0.0
    since: float = 0.0
    causes: RejectionCause = RejectionCause.NO
    needs: tuple[tuple[str, int], ...] = ()
    stamp: int = 0

    @property
    def priority(self) -> int:
        """The pod's priority."""
        return self.ask.pod.spec.priority or 0


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Change that may help rejected pods (a queueing hint).

    causes: of the rejection that it may remove. helps: test of a pod, None: all. claim: `namespace/name`, if it helps
    only pods that use that claim.
    """

    causes: RejectionCause
    helps: Callable[[QueuedPod], bool] | None = None
    claim: str = ""


class SchedulingQueue:
    """All pods that this scheduler must place. Times are monotonic seconds."""

    def __init__(self, ready: Callable[[], object] = lambda: None) -> None:
        """ready is called when a pod became ready, or will be earlier than any before."""
        self._notify = ready
        self.nominees: set[str] = set()
        """Pods with a nominated node: any improvement of the cluster wakes them."""
        self._entries: dict[str, QueuedPod] = {}
        self._by_claim: dict[str, dict[str, QueuedPod]] = {}
        self._ready: list[tuple[int, int, int, QueuedPod]] = []
        self._later: list[tuple[float, int, int, QueuedPod]] = []
        self._woken: list[tuple[float, int, int, QueuedPod]] = []
        """Of those that back off, the ones that a hint woke, with the time from which they need no longer if idle."""
        self._idle: list[tuple[float, int, int, QueuedPod]] = []
        """Of those, the ones that are tried now, by priority and age. They still back off: pods that are ready pass."""
        self._waiting: dict[str, QueuedPod] = {}
        self._by_cause: dict[RejectionCause, dict[str, QueuedPod]] = {}
        self._numbers = 0
        self._stamps = 0
        self._ready_count = 0

    def __len__(self) -> int:
        """Return how many pods are ready."""
        return self._ready_count

    def get(self, uid: str) -> QueuedPod | None:
        """Return the entry of a pod, or None."""
        return self._entries.get(uid)

    def __iter__(self) -> Iterator[QueuedPod]:
        """Iterate over all pods, in any state."""
        return iter(list(self._entries.values()))

    def waiting(self) -> Iterable[QueuedPod]:
        """Return rejected pods that wait for a hint."""
        return self._waiting.values()

    def add(self, uid: str, ask: Ask, now: float) -> None:
        """Add or update a pod; one that waits because of itself may try again."""
        entry = self._entries.get(uid)
        if entry is None:
            self._numbers += 1
            entry = self._entries[uid] = QueuedPod(uid, ask, self._numbers)
            for use in ask.claims:
                self._by_claim.setdefault(use.key, {})[uid] = entry
            self._make_ready(entry)
            return
        changed = (ask.shape, ask.terms, ask.unsupported) != (entry.ask.shape, entry.ask.terms, entry.ask.unsupported)
        entry.ask = ask
        if changed and entry.place is QueuePlace.WAITING:
            self.wake(entry, now)

    def remove(self, uid: str) -> None:
        """Remove a pod. An unknown one is ignored."""
        entry = self._entries.pop(uid, None)
        if entry is None:
            return
        for use in entry.ask.claims:
            users = self._by_claim[use.key]
            del users[uid]
            if not users:
                del self._by_claim[use.key]
        self._leave(entry, QueuePlace.GONE)

    def pop(self) -> QueuedPod | None:
        """Return the next pod to try. Call refuse(), retry() or remove() after it."""
        while self._ready:
            _, _, stamp, entry = heapq.heappop(self._ready)
            if entry.stamp == stamp and entry.place is QueuePlace.READY:
                self._leave(entry, QueuePlace.OUT)
                return entry
        if not _drop_stale(self._idle):
            return None
        entry = heapq.heappop(self._idle)[3]
        self._leave(entry, QueuePlace.OUT)
        return entry

    def refuse(
        self,
        entry: QueuedPod,
        causes: RejectionCause,
        now: float,
        *,
        needs: tuple[tuple[str, int], ...] = (),
        counts: bool = True,
    ) -> None:
        """Let a rejected pod wait for a hint.

        counts: False if nothing was tried, without back-off.
        """
        if entry.place is not QueuePlace.OUT:
            return
        entry.tries += counts
        entry.tried = entry.since = now
        entry.causes, entry.needs = causes, needs
        entry.place = QueuePlace.WAITING
        self._waiting[entry.uid] = entry
        for cause in causes:
            self._by_cause.setdefault(cause, {})[entry.uid] = entry

    def retry(self, entry: QueuedPod, now: float, *, free: bool = False) -> None:
        """Try the pod again after the back-off: its binding failed.

        free: the first retry is immediate.
        """
        if entry.place is not QueuePlace.OUT:
            return
        entry.tries += 1
        entry.tried = now
        if free and entry.tries == 1:
            self._make_ready(entry)
        else:
            self._wait_backoff(entry, now)

    def wake(self, entry: QueuedPod, now: float) -> None:
        """Apply a hint to a waiting pod."""
        if entry.place is QueuePlace.WAITING:
            self._leave(entry, QueuePlace.OUT)
            self._wait_backoff(entry, now, woken=True)

    def notice(self, event: ClusterEvent, now: float) -> None:
        """Wake the pods that a change may help."""
        if event.claim:
            found = [entry for entry in self._by_claim.get(event.claim, {}).values() if entry.causes & event.causes]
        else:
            found = [entry for cause in event.causes for entry in self._by_cause.get(cause, {}).values()]
        for entry in found:
            if event.helps is None or event.helps(entry):
                self.wake(entry, now)
        if not event.claim and event.causes != RejectionCause.NEIGHBOURS:
            for uid in self.nominees & self._entries.keys():
                self.wake(self._entries[uid], now)

    def next_due(self) -> float | None:
        """Return when advance() has something to do, or None."""
        due = [heap[0][0] for heap in (self._later, self._woken) if _drop_stale(heap)]
        if (oldest := next(iter(self._waiting.values()), None)) is not None:  # in the order of their rejection
            due.append(oldest.since + LEFTOVER)
        return min(due, default=None)

    def advance(self, now: float) -> None:
        """Make pods ready whose back-off is over, or that waited for too long."""
        while _drop_stale(self._later) and self._later[0][0] <= now:
            self._make_ready(heapq.heappop(self._later)[3])
        is_idle = not self._ready_count and not _drop_stale(self._idle)  # all are tried before one is tried again
        while is_idle and _drop_stale(self._woken) and self._woken[0][0] <= now:
            entry = heapq.heappop(self._woken)[3]
            heapq.heappush(self._idle, (-entry.priority, entry.number, entry.stamp, entry))
        while self._waiting and (oldest := next(iter(self._waiting.values()))).since + LEFTOVER <= now:
            self.wake(oldest, now)

    def _leave(self, entry: QueuedPod, place: QueuePlace) -> None:
        if entry.place is QueuePlace.WAITING:
            del self._waiting[entry.uid]
            for cause in entry.causes:
                del self._by_cause[cause][entry.uid]
        elif entry.place is QueuePlace.READY:
            self._ready_count -= 1
        entry.place = place

    def _wait_backoff(self, entry: QueuedPod, now: float, *, woken: bool = False) -> None:
        due = entry.tried + backoff(entry.tries)
        if due <= now:
            self._make_ready(entry)
        else:
            self._stamps += 1
            entry.stamp, entry.place = self._stamps, QueuePlace.BACKING_OFF
            heapq.heappush(self._later, (due, entry.number, entry.stamp, entry))
            if woken:
                heapq.heappush(self._woken, (entry.tried + IDLE_BACKOFF, entry.number, entry.stamp, entry))
            self._notify()

    def _make_ready(self, entry: QueuedPod) -> None:
        self._stamps += 1
        entry.stamp, entry.place = self._stamps, QueuePlace.READY
        self._ready_count += 1
        heapq.heappush(self._ready, (-entry.priority, entry.number, entry.stamp, entry))
        self._notify()


def _drop_stale(heap: list[tuple[float, int, int, QueuedPod]]) -> bool:
    """Drop entries that back off no more, up to the first that does; return whether there is one."""
    while heap and not (heap[0][3].stamp == heap[0][2] and heap[0][3].place is QueuePlace.BACKING_OFF):
        heapq.heappop(heap)
    return bool(heap)


def backoff(tries: int) -> float:
    """Return seconds of back-off after so many attempts."""
    return min(BACKOFF * 2.0 ** min(tries - 1, 10), LONGEST_BACKOFF) if tries else 0.0
