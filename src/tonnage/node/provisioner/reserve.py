"""Reservation of capacity for a whole claim group, or its rescheduling.

The state machine of a claim group decides; this module acts. Claims that are held get their reservation if capacity
becomes free. Claims whose group has an infeasible claim stay here unserved: no other node would serve it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from tonnage.aio.clock import Clock
from tonnage.aio.tasks import KeyedLocks
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.origin import is_clone, is_populated
from tonnage.capacity.ledger import Ledger, Stage
from tonnage.claims.node_scope import DriverInfo
from tonnage.claims.selected_node import withdrawals
from tonnage.kube.cache import Cache
from tonnage.node.capacity.poller import Readings
from tonnage.node.provisioner.claim_group import PodClaimGroup, Siblings, is_there
from tonnage.node.provisioner.existing import ExistingVolumes
from tonnage.node.provisioner.failure_events import Refusals
from tonnage.node.provisioner.group_state import LOOK_EVERY, Action, ClaimGroup, GroupPace, Member
from tonnage.node.provisioner.precheck import Feasibility
from tonnage.node.provisioner.reschedule import Withdrawal

UNTOLD_WAIT = 60.0
"""Seconds until a driver that rejected and reports no capacity is asked again."""
_AGAIN = 0.001
"""Seconds: something changed during the check."""


@dataclass
class _Exhausted:
    """A claim for which the driver had insufficient storage.

    since: monotonic seconds; infinite: never tried again here. free: the lowest capacity that the driver reported since
    then. why: the message, "" for insufficient storage.
    """

    since: float
    free: int | None = None
    why: str = ""

    def is_over(self, free: int | None, now: float) -> bool:
        """Return whether to ask the driver again.

        free: capacity that it reports now, None if it reports none.
        """
        if free is None:
            return now > self.since + UNTOLD_WAIT
        more = self.free is not None and free > self.free
        self.free = free if self.free is None else min(self.free, free)
        return more and self.since < now


class ClaimReserver:
    """Reserves claims by uid.

    enqueue: schedules another check of a claim. away: returns why a clone can only be made elsewhere.
    """

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
        existing: ExistingVolumes,
    ) -> None:
        self._claims, self._ledger, self._readings = claims, ledger, readings
        self._siblings, self._withdrawal, self._clock = siblings, withdrawal, clock
        self._feasibility, self._refusals = feasibility, refusals
        self._enqueue, self._why_away, self._existing = enqueue, away, existing
        self._held: set[str] = set()  # rejected claims that wait here
        self._exhausted: dict[str, _Exhausted] = {}  # rejected by the driver itself, whatever the ledger says
        self._pace = GroupPace()
        self._groups: dict[str, ClaimGroup] = {}  # rejected groups
        self._group_of: dict[str, str] = {}  # uid of a claim here -> its rejected group
        self._locks = KeyedLocks()
        self.reasons: dict[str, str] = {}
        """uid -> why the claim waits: "siblings", "capacity", "rescheduling" or "infeasible"."""
        readings.on_reading(self._wake_held)

    async def book(self, claim: PersistentVolumeClaim, driver: DriverInfo, *, late: bool) -> float | None:
        """Reserve the claim; return None, or seconds until the next check.

        late: the scheduler sets selected-node on all claims of the group. Idempotent. Raises: ApiError, Unavailable.
        """
        await self._readings.first(driver)
        if self._ledger.get(claim.metadata.uid) is None:  # it left during the wait
            return LOOK_EVERY
        group = await self._siblings.of(claim)
        async with self._locks.hold(group.id):
            return await self._decide(group, claim.metadata.uid, late=late)

    async def _decide(self, group: PodClaimGroup, uid: str, *, late: bool) -> float | None:
        here = self._here(group)
        if len(here) > 1 and await self._is_hopeless(here):
            self._wait(here, "infeasible")
            return LOOK_EVERY
        if len(group.claims) > 1 and (away := await self._away([*filter(is_clone, here), *group.copies])):
            self.turn_away(uid, away)
        known = (group.id, *(self._group_of.get(c.metadata.uid, "") for c in here))
        state = next((self._groups[id_] for id_ in known if id_ in self._groups), None) or ClaimGroup(self._pace)
        missing, confirmed, most = group.missing if late else (), False, 0
        while True:
            promise, now = self._ledger.get(uid), self._clock.monotonic()
            if promise is None or promise.stage is Stage.CREATED:
                return LOOK_EVERY
            if promise.stage in (Stage.RESERVED, Stage.CREATING):
                return None
            here, missing = self._here(group), tuple(key for key in missing if not is_there(self._claims.get(key)))
            if late and not group.present <= {c.key for c in here if is_there(c)}:
                return _AGAIN  # one has left
            pending = {c.metadata.uid: c for c in here if self._withdrawal.is_pending(c)}
            members = [self._member(c, now) for c in pending.values()]
            uids = [c.metadata.uid for c in here] or [uid]
            refused = self._withdrawal.leaving(group) or any(self._is_exhausted(u) for u in uids)
            lacks = self._ledger.lacks(uids, group.coming) if missing and not refused else None
            if lacks is not None and await self._find_existing(uids):
                continue
            fits = lacks is None and not refused
            decision = state.decide(members, now, missing=bool(missing), fits=fits, confirmed=confirmed)
            if decision.action is Action.WAIT:
                self._wait(pending.values(), "siblings" if missing else "rescheduling")
                return decision.look_at - now
            if decision.action is Action.CONFIRM:
                (missing, most), confirmed = await self._siblings.confirm(group), True
                continue
            if decision.action is Action.RESCHEDULE:
                await self._reschedule(group, state, [pending[u] for u in decision.uids], decision.reschedules)
                continue
            if decision.action is Action.RESERVE and not refused:
                lacks = self._ledger.book(uids)
                if lacks is None:
                    state.reserved(members)
                    self._booked(group, uids, uid)
                    return None
                if await self._find_existing(uids):
                    continue
            self._held.update(u for u in uids if self._ledger.get(u))
            why = next((e.why for u in uids if (e := self._exhausted.get(u)) and e.why), "")
            overdue = decision.action is Action.REJECT and confirmed
            if overdue and fits:
                why = self._withdrawal.overdue(missing)
            ready = await self._withdrawal.prepare(group, list(pending.values()), lacks, patient=not overdue, why=why)
            if not isinstance(ready, str):
                self._wait(pending.values(), "capacity")
                return min(ready, decision.look_at - now)
            state.reason = ready
            state.reject(members, self._clock.monotonic(), missing=bool(missing), at_least=most)
            self._groups[group.id] = state
            self._group_of.update((m.uid, group.id) for m in members)

    async def _reschedule(
        self, group: PodClaimGroup, state: ClaimGroup, claims: Sequence[PersistentVolumeClaim], reschedules: int
    ) -> None:
        self._ledger.refuse(c.metadata.uid for c in claims)
        self._wait(claims, "rescheduling")
        done, failure = await self._withdrawal.send_back(group, claims, reschedules, state.unseen)
        for uid in (c.metadata.uid for c in done):
            if self._ledger.get(uid) is not None:  # else the watch shows it already
                state.patched(uid, self._clock.monotonic())
            self._forget([uid])
        if done and state.told < reschedules:
            state.told = reschedules
            self._withdrawal.tell(group, done, reschedules, state.reason)
        if failure is not None:
            raise failure

    async def _find_existing(self, uids: Iterable[str]) -> bool:
        """Return whether one of these claims has a volume already, which the ledger did not know."""
        found = False
        for promise in self._ledger.needing(uids):
            if await self._existing.has(promise.source.driver, promise.uid):
                self._ledger.exists(promise.uid)
                found = True
        return found

    def _here(self, group: PodClaimGroup) -> list[PersistentVolumeClaim]:
        """Return claims of the group with this node.

        A volume populator's claims need nothing of this node: their volumes are created for claims of its own.
        """
        return [c for key in group.claims if (c := self._claims.get(key)) is not None and not is_populated(c)]

    def _member(self, claim: PersistentVolumeClaim, now: float) -> Member:
        promise = self._ledger.get(claim.metadata.uid)
        return Member(claim.metadata.uid, withdrawals(claim), promise.seen if promise is not None else now)

    def _wait(self, claims: Iterable[PersistentVolumeClaim], reason: str) -> None:
        self.reasons.update((c.metadata.uid, reason) for c in claims)

    async def _away(self, copies: Iterable[PersistentVolumeClaim]) -> str:
        """Return why the pod cannot be on this node, or "".

        True reasons are clones whose source is on another node.
        """
        for claim in copies:
            if why := await self._why_away(claim):
                return why
        return ""

    async def _is_hopeless(self, claims: Sequence[PersistentVolumeClaim]) -> bool:
        """Return whether one of the claims is infeasible.

        Then none is served, and Events report it on all.
        """
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
        """Record that the driver had less storage than the ledger.

        The group is rescheduled at the next check, or held until there is, or may be, more capacity than before.
        """
        self._exhausted[uid] = _Exhausted(self._clock.monotonic())
        self._enqueue(uid)

    def turn_away(self, uid: str, why: str = "") -> None:
        """Reschedule the claim's group at the next check. Idempotent."""
        self._exhausted[uid] = _Exhausted(float("inf"), why=why)

    def left(self, uid: str) -> None:
        """Forget a claim without this node. Held claims may fit now."""
        self._forget([uid])
        self.reasons.pop(uid, None)
        if (group := self._groups.get(self._group_of.pop(uid, ""))) is not None:
            group.left(uid)
        now = self._clock.monotonic()
        for id_ in [i for i, g in self._groups.items() if g.is_over(now)]:
            del self._groups[id_]
        self._wake_held()

    def _booked(self, group: PodClaimGroup, uids: Sequence[str], asking: str) -> None:
        self._withdrawal.settled(group)
        self._held.difference_update(uids)
        for uid in uids:
            self.reasons.pop(uid, None)
            if uid != asking:
                self._enqueue(uid)

    def _forget(self, uids: Iterable[str]) -> None:
        self._held.difference_update(uids)
        for uid in uids:
            self._exhausted.pop(uid, None)

    def _is_exhausted(self, uid: str) -> bool:
        """Return whether the driver still has insufficient storage for the claim.

        Decided from known results, without another call.
        """
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
