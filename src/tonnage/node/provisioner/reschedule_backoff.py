"""How long the claims of a pod that fits nowhere are kept before they go back. Sans-I/O.

Each time they go back costs writes: the scheduler sends every claim anew, the agent takes every claim back, capacity is
published lower and higher again, and it is told. So from the third time on they stay ever longer, doubling, until after
four minutes they stay so long that all of this is less than one write a minute. How often they went back is on the
claims themselves, so a restart and another node know it.

Kept claims miss nothing: they are tried whenever this node's room changes (booking.py), and go back early when another
node comes to have room for all of them (elsewhere.py): once at any time, and again after as long as they would stay.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from tonnage.aio.clock import Clock
from tonnage.capacity.tier import PATIENT_FROM

SLOWEST_FROM = 11
"""After 1 + 2 + 4 ... + 128 seconds."""
LOOK_FROM = 4.0
"""Seconds of a stay that is worth looking at other nodes."""
_SECONDS_A_WRITE = 60.0
_LOOK_EVERY, _LOOK_EVERY_OBJECT, _LOOK_AT_LEAST_EVERY = 5.0, 0.02, 60.0
"""Seconds between two looks: the more there is to look at, the fewer."""
_REMEMBERED = 600.0
"""Seconds after which a group that nobody asked about is forgotten."""


def stay(attempt: int, claims: int, objects: int) -> float:
    """Seconds that a pod's claims stay before they go back for the attempt-th time. objects: how many capacity objects
    such a round changes."""
    if attempt < PATIENT_FROM:
        return 0.0
    if attempt < SLOWEST_FROM:
        return float(2.0 ** (attempt - PATIENT_FROM))
    # Sent and taken back; lowered and raised; our Event, the scheduler's, and the pod's status.
    return _SECONDS_A_WRITE * (2 * claims + 2 * objects + 3)


@dataclass
class _Outlook:
    """roomy: nodes that had room for the group when it was last looked, None before that. Times are monotonic."""

    roomy: Set[str] | None = None
    look_at: float = 0.0
    limited_until: float = 0.0


@dataclass
class Patience:
    """What other nodes had for the groups held here, by the groups' ids."""

    clock: Clock
    _outlooks: dict[str, _Outlook] = field(default_factory=dict)

    def next_look(self, group: str) -> float:
        """Seconds until it is worth looking whether another node has room for the group."""
        found = self._outlooks.get(group, _Outlook())
        return max(0.0, max(found.look_at, found.limited_until) - self.clock.monotonic())

    def news(self, group: str, roomy: Set[str], known: Set[str], *, objects: int) -> Set[str]:
        """Take in which nodes have room for the group: those that did not at the last look.

        known: those that had it already when the group was sent here; the scheduler knew of them. objects: how many
        there were to look at.
        """
        now = self.clock.monotonic()
        outlook = self._outlooks.setdefault(group, _Outlook())
        outlook.look_at = now + min(_LOOK_AT_LEAST_EVERY, _LOOK_EVERY + _LOOK_EVERY_OBJECT * objects)
        before, outlook.roomy = outlook.roomy, roomy
        return roomy - (known if before is None else before)

    def hurries(self, group: str, stays: float) -> None:
        """The group goes back early; not again for so many seconds."""
        self._outlooks.setdefault(group, _Outlook()).limited_until = self.clock.monotonic() + stays

    def over(self, group: str) -> None:
        """The group went back, or needs to no more. That it hurried is remembered as long as it matters."""
        now = self.clock.monotonic()
        if (outlook := self._outlooks.get(group)) is not None:
            outlook.roomy, outlook.look_at = None, 0.0
        for id_, known in list(self._outlooks.items()):
            if now > max(known.limited_until, known.look_at + _REMEMBERED if known.look_at else 0.0):
                del self._outlooks[id_]
