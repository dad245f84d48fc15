"""State machine of a claim group: reserve all claims, or reschedule all.

Sans-I/O; the provisioner uses it.

The scheduler sets selected-node claim by claim, and restarts for a new round. A claim that keeps its selected-node pins
the pod to that node. A group that does not fit is therefore rescheduled whole, with every claim that arrives meanwhile.

A round is rejected by a number of reschedules that is higher than those of its claims. One patch writes that number and
removes selected-node, so the claim itself shows whether it was rescheduled. The patch is repeated until then and never
takes effect twice. A claim with a lower number that arrives while others of its group were still expected belongs to
the rejected round. One that arrives later, or has the number, belongs to a new round.

Invariant: every decision has a time of the next check, at most LOOK_EVERY seconds ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

LOOK_EVERY = 30.0
"""Maximum seconds between two checks of a claim without a volume."""
SHORTEST_WAIT, LONGEST_WAIT = 1.0, 25.0
"""Seconds that a claim waits for its group; with the patches, less than 30."""
FIRST_PACE = 2.5
_REMEMBERED = 16


class GroupPace:
    """Time that the scheduler takes between two claims of a pod, in seconds."""

    def __init__(self) -> None:
        self._gaps: deque[float] = deque([FIRST_PACE], maxlen=_REMEMBERED)

    def observe(self, gap: float) -> None:
        """Record that two claims of a pod arrived at least that far apart."""
        self._gaps.append(gap)

    @property
    def wait(self) -> float:
        """Return how long to wait for another claim: twice the longest recent gap."""
        return min(LONGEST_WAIT, max(SHORTEST_WAIT, 2 * max(self._gaps)))


@dataclass(frozen=True)
class Member:
    """Claim of the group with this node as selected-node, and no volume.

    reschedules: the number on it. arrived: monotonic seconds.
    """

    uid: str
    reschedules: int
    arrived: float


class Action(Enum):
    """What to do with the group."""

    WAIT = "wait"
    """More claims are expected, or a watch is behind."""
    CONFIRM = "confirm"
    """Claims are overdue: read which of them the pod still needs, then decide again."""
    RESERVE = "reserve"
    """All claims are here: reserve all of them or none."""
    REJECT = "reject"
    """Not all claims can be here: call reject()."""
    RESCHEDULE = "reschedule"
    """Patch the decision's claims."""


@dataclass(frozen=True)
class GroupDecision:
    """Result of decide().

    look_at: latest time of the next decision, monotonic seconds. uids: claims to patch, with this number of
    reschedules.
    """

    action: Action
    look_at: float
    uids: tuple[str, ...] = ()
    reschedules: int = 0


@dataclass
class ClaimGroup:
    """One group on one node.

    pace is shared with other groups. reason: why the last round was rejected.
    """

    pace: GroupPace
    reschedules: int = 0
    """Number of the rejected round; 0: no round was rejected."""
    reason: str = ""
    told: int = 0
    """Highest number of reschedules that an Event reported."""
    _outstanding: set[str] = field(default_factory=set)  # rejected, not yet patched
    _expected_until: float = 0.0
    _patched: dict[str, float] = field(default_factory=dict)  # uid -> time of the patch; the watch does not show it yet

    @property
    def unseen(self) -> frozenset[str]:
        """Claims that were rescheduled and that the watch still shows."""
        return frozenset(self._patched)

    def decide(
        self, members: Iterable[Member], now: float, *, missing: bool, fits: bool = True, confirmed: bool = False
    ) -> GroupDecision:
        """Decide what to do with the members.

        missing: whether the pod needs more claims than these. fits: whether all, also the missing ones, would have
        capacity. confirmed: missing was just read from the API server.
        """
        here = list(members)
        self._notice({m.uid: m.reschedules for m in here})
        back = [m for m in here if self._is_of_rejected_round(m, now)]
        if back:
            self._outstanding.update(m.uid for m in back)
            uids = tuple(m.uid for m in back)
            return GroupDecision(Action.RESCHEDULE, now + LOOK_EVERY, uids, self.reschedules)
        current = [m for m in here if m.uid not in self._patched]
        if not current:
            return GroupDecision(Action.WAIT, now + LOOK_EVERY)
        if not missing and len(current) == len(here):
            return GroupDecision(Action.RESERVE, now + LOOK_EVERY)
        overdue = min(m.arrived for m in current) + self.pace.wait
        if now >= overdue:
            return GroupDecision(Action.REJECT if confirmed else Action.CONFIRM, now + LOOK_EVERY)
        return GroupDecision(Action.WAIT if fits else Action.REJECT, overdue)

    def reject(self, members: Sequence[Member], now: float, *, missing: bool, at_least: int = 0) -> None:
        """Reject these claims, and missing ones that arrive in time.

        at_least: the number of reschedules on a missing claim.
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
        """Record that all have their capacity."""
        times = sorted(m.arrived for m in members)
        if len(times) > 1:
            self.pace.observe(max(later - earlier for earlier, later in pairwise(times)))

    def patched(self, uid: str, now: float) -> None:
        """Record that a claim was rescheduled."""
        self._patched[uid] = now
        self._outstanding.discard(uid)

    def left(self, uid: str) -> None:
        """Record that the watch shows it."""
        self._patched.pop(uid, None)
        self._outstanding.discard(uid)

    def is_over(self, now: float) -> bool:
        """Return whether the group has no state to remember."""
        return not self._outstanding and not self._patched and now > self._expected_until

    def _is_of_rejected_round(self, member: Member, now: float) -> bool:
        if member.reschedules >= self.reschedules:
            return False
        if member.uid in self._patched:  # by now its event is lost, or the patch never took effect
            return now >= self._patched[member.uid] + LOOK_EVERY
        return bool(self._outstanding) or member.arrived <= self._expected_until

    def _notice(self, reschedules: dict[str, int]) -> None:
        """Update from the numbers on the claims.

        A claim with the number has been set to this node again. One that is outstanding and gone needs no patch.
        """
        self._outstanding &= reschedules.keys()
        for uid in [u for u in self._patched if reschedules.get(u, 0) >= self.reschedules]:
            del self._patched[uid]
