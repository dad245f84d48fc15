"""Hold time of claims before they are rescheduled. Sans-I/O.

Each reschedule costs writes: the scheduler sets selected-node on every claim, the agent removes it, published capacity
falls and rises, and Events are emitted. From the third time on, the hold time doubles. After four minutes it is long
enough for less than one write a minute. The number of reschedules is on the claims, so a restart and another node know
it.

Held claims miss nothing. They are tried whenever this node's capacity changes. They are rescheduled early when another
node has capacity for all of them: once at any time, and again after their hold time.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from tonnage.aio.clock import Clock
from tonnage.capacity.tier import PATIENT_FROM

SLOWEST_FROM = 11
"""After 1 + 2 + 4 ... + 128 seconds."""
LOOK_FROM = 4.0
"""Minimum hold time in seconds for which other nodes are checked."""
_SECONDS_A_WRITE = 60.0
_LOOK_EVERY, _LOOK_EVERY_OBJECT, _LOOK_AT_LEAST_EVERY = 5.0, 0.02, 60.0
"""Seconds between two checks of other nodes: the more objects, the longer."""
_REMEMBERED = 600.0
"""Seconds after which an unused group is forgotten."""


def stay(attempt: int, claims: int, objects: int) -> float:
    """Return the hold time in seconds before the attempt-th reschedule.

    objects: how many capacity objects such a round changes.
    """
    if attempt < PATIENT_FROM:
        return 0.0
    if attempt < SLOWEST_FROM:
        return float(2.0 ** (attempt - PATIENT_FROM))
    # Selected and rescheduled; lowered and raised; our Event, the scheduler's, and the pod's status.
    return _SECONDS_A_WRITE * (2 * claims + 2 * objects + 3)


@dataclass
class _Outlook:
    """What is known of other nodes.

    roomy: nodes with capacity for the group at the last check, None before. Times are monotonic.
    """

    roomy: Set[str] | None = None
    look_at: float = 0.0
    limited_until: float = 0.0


@dataclass
class Patience:
    """Capacity of other nodes for the held groups, by group id."""

    clock: Clock
    _outlooks: dict[str, _Outlook] = field(default_factory=dict)

    def next_look(self, group: str) -> float:
        """Return seconds until the next check of other nodes for the group."""
        found = self._outlooks.get(group, _Outlook())
        return max(0.0, max(found.look_at, found.limited_until) - self.clock.monotonic())

    def news(self, group: str, roomy: Set[str], known: Set[str], *, objects: int) -> Set[str]:
        """Record which nodes have capacity; return those that had none before.

        known: nodes that had it when this node was selected; the scheduler knew of them. objects: how many objects were
        read.
        """
        now = self.clock.monotonic()
        outlook = self._outlooks.setdefault(group, _Outlook())
        outlook.look_at = now + min(_LOOK_AT_LEAST_EVERY, _LOOK_EVERY + _LOOK_EVERY_OBJECT * objects)
        before, outlook.roomy = outlook.roomy, roomy
        return roomy - (known if before is None else before)

    def hurries(self, group: str, stays: float) -> None:
        """Record an early reschedule; the next is so many seconds away."""
        self._outlooks.setdefault(group, _Outlook()).limited_until = self.clock.monotonic() + stays

    def over(self, group: str) -> None:
        """Forget a group that was rescheduled or fits.

        Its early reschedule is remembered as long as it matters.
        """
        now = self.clock.monotonic()
        if (outlook := self._outlooks.get(group)) is not None:
            outlook.roomy, outlook.look_at = None, 0.0
        for id_, known in list(self._outlooks.items()):
            if now > max(known.limited_until, known.look_at + _REMEMBERED if known.look_at else 0.0):
                del self._outlooks[id_]
