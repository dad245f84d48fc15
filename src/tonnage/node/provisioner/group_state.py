"""The claims of one pod as a state machine: reserve all, or reschedule all. Sans-I/O; used by the provisioner.

The scheduler sets selected-node claim by claim, and for a new round begins anew. A claim that keeps its selected-node
pins the pod to that node, so a group that does not fit goes back whole, with every claim that arrives meanwhile.

A round is refused by giving it a number of reschedules that is higher than those of its claims. Writing that number and
removing selected-node is one patch, so whether a claim went back is on the claim: a patch is repeated until then, and
never does it twice. A claim with a lower number that arrives while its siblings were still expected belongs to the
refused round. One that arrives later, or carries the number, belongs to a new round.

Invariant: every decision has a time of the next look, at most LOOK_EVERY seconds ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

LOOK_EVERY = 30.0
"""Seconds between two looks at a claim that has no volume yet, whatever events came."""
SHORTEST_WAIT, LONGEST_WAIT = 1.0, 25.0
"""Seconds that a claim waits for its siblings; with the patches that follow it is less than 30."""
FIRST_PACE = 2.5
_REMEMBERED = 16


class Pace:
    """How long the scheduler takes between two claims of a pod. Seconds."""

    def __init__(self) -> None:
        self._gaps: deque[float] = deque([FIRST_PACE], maxlen=_REMEMBERED)

    def observe(self, gap: float) -> None:
        """Two claims of a pod arrived that far apart, or further."""
        self._gaps.append(gap)

    @property
    def wait(self) -> float:
        """How long to wait for a sibling: twice the longest gap of late."""
        return min(LONGEST_WAIT, max(SHORTEST_WAIT, 2 * max(self._gaps)))


@dataclass(frozen=True)
class Member:
    """A claim of the group that has this node as selected-node, and no volume. reschedules: the number on it. arrived:
    monotonic seconds."""

    uid: str
    reschedules: int
    arrived: float


class Action(Enum):
    """What to do now."""

    WAIT = "wait"
    """Siblings are expected, or a watch is behind."""
    CONFIRM = "confirm"
    """Siblings are overdue: read which of them the pod still needs, and decide again."""
    RESERVE = "reserve"
    """All are here: reserve all of them or none."""
    REJECT = "reject"
    """Not all can be here: reject()."""
    RESCHEDULE = "reschedule"
    """Patch the decision's claims."""


@dataclass(frozen=True)
class Decision:
    """look_at: when to decide again at the latest, monotonic seconds. uids: claims to patch, with this number of
    reschedules."""

    action: Action
    look_at: float
    uids: tuple[str, ...] = ()
    reschedules: int = 0


@dataclass
class ClaimGroup:
    """One group on one node. pace is shared with other groups. reason: why the last round was rejected."""

    pace: Pace
    reschedules: int = 0
    """What claims of the rejected round carry when they have gone back; 0: none was rejected."""
    reason: str = ""
    told: int = 0
    """The number of reschedules that an Event told of."""
    _outstanding: set[str] = field(default_factory=set)  # rejected, and not yet patched
    _expected_until: float = 0.0
    _patched: dict[str, float] = field(default_factory=dict)  # uid -> when; the watch does not show it yet

    @property
    def unseen(self) -> frozenset[str]:
        """The claims that have gone back, and that the watch still shows."""
        return frozenset(self._patched)

    def decide(
        self, members: Iterable[Member], now: float, *, missing: bool, fits: bool = True, confirmed: bool = False
    ) -> Decision:
        """What to do with the members. missing: whether the pod needs more claims than these. fits: whether all, those
        that are missing too, would have capacity. confirmed: missing was read from the API server just now."""
        here = list(members)
        self._notice({m.uid: m.reschedules for m in here})
        back = [m for m in here if self._is_of_rejected_round(m, now)]
        if back:
            self._outstanding.update(m.uid for m in back)
            uids = tuple(m.uid for m in back)
            return Decision(Action.RESCHEDULE, now + LOOK_EVERY, uids, self.reschedules)
        current = [m for m in here if m.uid not in self._patched]
        if not current:
            return Decision(Action.WAIT, now + LOOK_EVERY)
        if not missing and len(current) == len(here):
            return Decision(Action.RESERVE, now + LOOK_EVERY)
        overdue = min(m.arrived for m in current) + self.pace.wait
        if now >= overdue:
            return Decision(Action.REJECT if confirmed else Action.CONFIRM, now + LOOK_EVERY)
        return Decision(Action.WAIT if fits else Action.REJECT, overdue)

    def reject(self, members: Sequence[Member], now: float, *, missing: bool, at_least: int = 0) -> None:
        """From now on these go back, with those that are missing and arrive while they are still expected.

        at_least: the number of reschedules on a claim that is missing.
        """
        self.reschedules = max(self.reschedules, 1 + max((m.reschedules for m in members), default=0), at_least)
        self._outstanding.update(m.uid for m in members)
        self._expected_until = now
        overdue = min((m.arrived for m in members), default=now) + self.pace.wait
        if missing and now < overdue:
            self._expected_until = overdue
        elif missing:
            self.pace.observe(self.pace.wait)

    def reserved(self, members: Iterable[Member]) -> None:
        """All have their capacity."""
        times = sorted(m.arrived for m in members)
        if len(times) > 1:
            self.pace.observe(max(later - earlier for earlier, later in pairwise(times)))

    def patched(self, uid: str, now: float) -> None:
        """A claim has gone back."""
        self._patched[uid] = now
        self._outstanding.discard(uid)

    def left(self, uid: str) -> None:
        """The watch shows it."""
        self._patched.pop(uid, None)
        self._outstanding.discard(uid)

    def is_over(self, now: float) -> bool:
        """Whether nothing of the group is worth remembering."""
        return not self._outstanding and not self._patched and now > self._expected_until

    def _is_of_rejected_round(self, member: Member, now: float) -> bool:
        if member.reschedules >= self.reschedules:
            return False
        if member.uid in self._patched:  # by now its event is lost, or it never took effect
            return now >= self._patched[member.uid] + LOOK_EVERY
        return bool(self._outstanding) or member.arrived <= self._expected_until

    def _notice(self, reschedules: dict[str, int]) -> None:
        """A claim that carries the number was sent here again; one that is outstanding and gone needs no patch."""
        self._outstanding &= reschedules.keys()
        for uid in [u for u in self._patched if reschedules.get(u, 0) >= self.reschedules]:
            del self._patched[uid]
