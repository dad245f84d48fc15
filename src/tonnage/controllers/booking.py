"""All claims of a pod get their room on this node, or none does.

The scheduler sends a pod's claims one by one, so the first waits a moment for the others. Then the ledger books all of
them, or all are sent back (withdrawal.py). Claims that are held before they go back are booked after all when room
comes up. Claims with a sibling that can never have a volume stay here unserved: no node would do better.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from tonnage.aio.clock import Clock
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.origin import is_clone
from tonnage.controllers.drivers import Driver
from tonnage.controllers.feasibility import Feasibility
from tonnage.controllers.ledger import Ledger, Shortage, Stage
from tonnage.controllers.readings import Readings
from tonnage.controllers.refusals import Refusals
from tonnage.controllers.siblings import Siblings
from tonnage.controllers.withdrawal import Withdrawal
from tonnage.kube.cache import Cache

SIBLINGS_WAIT = 0.2
"""Seconds that the first claim of a pod waits for the others."""
SENT_BACK = 0.0
UNTOLD_WAIT = 60.0
"""Seconds after which a driver that has refused, and does not tell how much room it has, is asked again."""
INFEASIBLE_WAIT = 300.0
"""Seconds between two looks at claims that can never have their volumes as they are."""


@dataclass
class _Exhausted:
    """A claim that its driver refused at `since` (monotonic seconds; infinite: never to be tried again here). free: the
    least that the driver told it has since then. why: what to tell of it, "" for want of room."""

    since: float
    free: int | None = None
    why: str = ""

    def is_over(self, free: int | None, now: float) -> bool:
        """Whether it is worth asking the driver again. free: what it tells now, None if it tells nothing."""
        if free is None:
            return now > self.since + UNTOLD_WAIT
        more = self.free is not None and free > self.free
        self.free = free if self.free is None else min(self.free, free)
        return more and self.since < now


class Booking:
    """Books claims by uid. enqueue asks for another look at a claim; away tells why a copy can only be elsewhere."""

    def __init__(
        self,
        claims: Cache[PersistentVolumeClaim],
        ledger: Ledger,
        readings: Readings,
        siblings: Siblings,
        withdrawal: Withdrawal,
        feasibility: Feasibility,
        refusals: Refusals,
        clock: Clock,
        enqueue: Callable[[str], None],
        away: Callable[[PersistentVolumeClaim], Awaitable[str]],
    ) -> None:
        self._claims, self._ledger, self._readings = claims, ledger, readings
        self._siblings, self._withdrawal, self._clock = siblings, withdrawal, clock
        self._feasibility, self._refusals = feasibility, refusals
        self._enqueue, self._why_away = enqueue, away
        self._held: set[str] = set()  # refused claims that wait here
        self._exhausted: dict[str, _Exhausted] = {}  # refused by the driver itself, whatever the ledger says
        readings.on_reading(self._wake_held)

    async def book(self, claim: PersistentVolumeClaim, driver: Driver, *, late: bool) -> float | None:
        """None when the claim has its room, else the seconds to wait (SENT_BACK: it is no longer for us).

        late: the scheduler sends the claim together with its siblings. May be repeated. Raises ApiError, Unavailable.
        """
        uid = claim.metadata.uid
        await self._readings.first(driver)
        promise = self._ledger.get(uid)
        if promise is None or promise.stage is Stage.MADE:  # it left while we waited, or all is done
            return SENT_BACK
        if promise.stage in (Stage.BOOKED, Stage.CREATING):
            return None
        group = await self._siblings.of(claim)
        if self._ledger.get(uid) is not promise:  # it left while we asked
            return SENT_BACK
        here = [c for key in group.claims if (c := self._claims.get(key)) is not None]
        uids = [c.metadata.uid for c in here] or [uid]
        waited = self._clock.monotonic() - min((p.seen for u in uids if (p := self._ledger.get(u))), default=0.0)
        if group.missing and late and waited < SIBLINGS_WAIT:
            return SIBLINGS_WAIT - waited
        if len(here) > 1 and await self._is_hopeless(here):
            return INFEASIBLE_WAIT
        if len(group.claims) > 1 and (away := await self._away([*filter(is_clone, here), *group.copies])):
            self.turn_away(uid, away)
        if self._ledger.get(uid) is not promise:
            return SENT_BACK
        if any(self._withdrawal.is_going(c) for c in here):
            return SENT_BACK
        shortage: Shortage | None = None
        if not self._withdrawal.leaving(group) and not any(self._is_exhausted(u) for u in uids):
            shortage = self._ledger.book(uids)
            if shortage is None:
                self._booked(uids, uid)
                self._withdrawal.settled(group)
                return None
        self._held.update(u for u in uids if self._ledger.get(u))
        why = next((e.why for u in uids if (e := self._exhausted.get(u)) and e.why), "")
        wait = await self._withdrawal.refuse(group, shortage, why)
        if wait is None:
            self._forget(uids)
        return wait or SENT_BACK

    async def _away(self, copies: Iterable[PersistentVolumeClaim]) -> str:
        """Why the pod cannot be here: one of its claims is to be a copy of what is on another node. "" when it can."""
        for claim in copies:
            if why := await self._why_away(claim):
                return why
        return ""

    async def _is_hopeless(self, claims: Sequence[PersistentVolumeClaim]) -> bool:
        """Whether one of a pod's claims can never be served; then none is, and all are told."""
        found = await self._feasibility.first_fault(claims)
        if found is None:
            return False
        cause, message = found
        self._ledger.refuse(c.metadata.uid for c in claims)
        self._held.update(c.metadata.uid for c in claims if self._ledger.get(c.metadata.uid))
        await self._refusals.tell(cause, message)
        self._refusals.tell_siblings([c for c in claims if c is not cause], cause)
        return True

    def exhausted(self, uid: str) -> None:
        """The driver had no room though the ledger thought so: the claim and its siblings go back at the next look, or
        are kept (patience.py) until there is more room than there was, or might be."""
        self._exhausted[uid] = _Exhausted(self._clock.monotonic())
        self._enqueue(uid)

    def turn_away(self, uid: str, why: str = "") -> None:
        """The claim is to go back at the next look, with its siblings, whatever room there is. May be repeated."""
        self._exhausted[uid] = _Exhausted(float("inf"), why=why)

    def left(self, uid: str) -> None:
        """The claim is no longer sent here. One that is held may wait for just that."""
        self._forget([uid])
        self._withdrawal.left(uid)
        self._wake_held()

    def _booked(self, uids: Iterable[str], asking: str) -> None:
        self._held.difference_update(uids)
        for uid in uids:
            if uid != asking:
                self._enqueue(uid)

    def _forget(self, uids: Iterable[str]) -> None:
        self._held.difference_update(uids)
        for uid in uids:
            self._exhausted.pop(uid, None)

    def _is_exhausted(self, uid: str) -> bool:
        """Whether the driver still has no room for the claim as far as one can tell without asking it again."""
        found, promise = self._exhausted.get(uid), self._ledger.get(uid)
        if found is None or promise is None:
            return found is not None
        if found.is_over(self._ledger.free(promise.source), self._clock.monotonic()):
            del self._exhausted[uid]
            return False
        return True

    def _wake_held(self) -> None:
        for uid in self._held:
            self._enqueue(uid)
