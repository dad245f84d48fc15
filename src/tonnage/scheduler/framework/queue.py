"""Scheduling queue: ready, backing-off and waiting pods. Sans-I/O.

The caller has the clock. Source: k/k pkg/scheduler/backend/queue, KEP-4247, KEP-5142. A rejected pod waits for a
queueing hint that its cause may have changed. Then it is ready after its back-off (1 s doubling to 10 s, from its last
attempt). While no other pod is ready, a tenth of a second is enough: on a full cluster each volume that goes wakes
pods of which one fits, and the others would wait longer each time. Without a hint it is tried again after 5 minutes.
Older pods come first among those of equal priority, so small later pods do not starve a large one.

Of pods that were rejected alike, a hint about capacity wakes one, the lead. When it gets a node, or something else but
the same rejection, the next one is woken. So a thousand equal pods that wait cost one attempt for each volume that
goes, and one for each pod that fits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
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

    tries: attempts that count for the back-off. needs: its shortfall, (class, bytes). alike: equal for pods that were
    rejected alike, None for one that is like no other. leads: what the pods have in common that it is tried for.
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
    alike: Hashable = None
    leads: Hashable = None
    stamp: int = 0

    @property
    def priority(self) -> int:
        """The pod's priority."""
        return self.ask.pod.spec.priority or 0


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Change that may help rejected pods (a queueing hint).

    causes: of the rejection that it may remove. helps: test of a pod, None: all. claim: `namespace/name`, if it helps
    only pods that use that claim. alike: whether it helps all pods that were rejected alike, or none of them.
    """

    causes: RejectionCause
    helps: Callable[[QueuedPod], bool] | None = None
    claim: str = ""
    alike: bool = False


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
        self._by_cause: dict[RejectionCause, dict[Hashable, dict[str, QueuedPod]]] = {}
        """Of those, by what they have in common, else by uid."""
        self._leads: dict[Hashable, QueuedPod] = {}
        self._now = 0.0
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
        self._end_lead(entry)

    def pop(self) -> QueuedPod | None:
        """Return the next pod to try. Call decided(), reject(), retry() or remove() after it."""
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

    def decided(self, entry: QueuedPod) -> None:
        """Wake the next of the pods that the entry was tried for: it gets a node. Call remove() or retry() after it."""
        self._end_lead(entry)

    def reject(
        self,
        entry: QueuedPod,
        causes: RejectionCause,
        now: float,
        *,
        needs: tuple[tuple[str, int], ...] = (),
        counts: bool = True,
        alike: Hashable = None,
    ) -> None:
        """Let a rejected pod wait for a hint.

        counts: False if nothing was tried, without back-off. alike: equal for pods of which none fits while one of them
        does not, and that have the same priority and the same rejection; None for a pod that is like no other.
        """
        if entry.place is not QueuePlace.OUT:
            return
        # A lead that is rejected as before backs off no longer for it: the others, which are younger, would pass it.
        entry.tries += counts and (alike is None or entry.leads != alike)
        entry.tried = entry.since = self._now = now
        entry.causes, entry.needs, entry.alike = causes, needs, alike
        entry.place = QueuePlace.WAITING
        self._waiting[entry.uid] = entry
        for cause in causes:
            self._by_cause.setdefault(cause, {}).setdefault(_key(entry), {})[entry.uid] = entry
        self._end_lead(entry, alike)

    def retry(self, entry: QueuedPod, now: float, *, free: bool = False) -> None:
        """Try the pod again after the back-off: its binding failed.

        free: the first retry is immediate.
        """
        if entry.place is not QueuePlace.OUT:
            return
        entry.tries += 1
        entry.tried = self._now = now
        self._end_lead(entry)
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
        self._now = now
        if event.claim:
            found = [entry for entry in self._by_claim.get(event.claim, {}).values() if entry.causes & event.causes]
        else:
            groups = [group for cause in event.causes for group in self._by_cause.get(cause, {}).values()]
            found = [entry for group in groups for entry in (_first(group) if event.alike else group.values())]
        for entry in found:
            if event.helps is not None and not event.helps(entry):
                continue
            if event.alike and entry.alike is not None:
                self._wake_lead(entry)
            else:
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
        self._now = now
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
                group = self._by_cause[cause][_key(entry)]
                del group[entry.uid]
                if not group:
                    del self._by_cause[cause][_key(entry)]
        elif entry.place is QueuePlace.READY:
            self._ready_count -= 1
        entry.place = place

    def _wake_lead(self, one: QueuedPod) -> None:
        """Wake the oldest of the waiting pods like that one."""
        if one.alike in self._leads:
            return
        group = self._by_cause[next(iter(one.causes))][one.alike]
        lead = min(group.values(), key=lambda each: each.number)
        lead.leads = one.alike
        self._leads[one.alike] = lead
        self.wake(lead, self._now)

    def _end_lead(self, entry: QueuedPod, alike: Hashable = None) -> None:
        """Wake the next of the pods that the entry was tried for, unless it was rejected as they were (alike)."""
        led, entry.leads = entry.leads, None
        if led is None:
            return
        del self._leads[led]
        if led != alike:
            waiting = (group[led] for group in self._by_cause.values() if led in group)
            for one in _first(next(waiting, {})):
                self._wake_lead(one)

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


def _key(entry: QueuedPod) -> Hashable:
    return entry.uid if entry.alike is None else entry.alike


def _first(group: Mapping[str, QueuedPod]) -> list[QueuedPod]:
    return [next(iter(group.values()))] if group else []


def _drop_stale(heap: list[tuple[float, int, int, QueuedPod]]) -> bool:
    """Drop entries that back off no more, up to the first that does; return whether there is one."""
    while heap and not (heap[0][3].stamp == heap[0][2] and heap[0][3].place is QueuePlace.BACKING_OFF):
        heapq.heappop(heap)
    return bool(heap)


def backoff(tries: int) -> float:
    """Return seconds of back-off after so many attempts."""
    return min(BACKOFF * 2.0 ** min(tries - 1, 10), LONGEST_BACKOFF) if tries else 0.0
