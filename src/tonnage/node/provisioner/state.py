"""State machines of a claim and of the claim group of its pod. Sans-I/O.

The provisioner uses them: it gathers facts, calls step() or decide(), and runs the result. One table holds what is
known of each claim, and of each group that was rejected or is held.

The scheduler sets selected-node claim by claim, and restarts for a new round. A claim that keeps its selected-node pins
the pod to that node. A group that does not fit is therefore rescheduled whole, with every claim that arrives meanwhile.

A round is rejected by a number of reschedules that is higher than those of its claims. One patch writes that number and
removes selected-node, so the claim itself shows whether it was rescheduled. The patch is repeated until then and never
takes effect twice. A claim with a lower number that arrives while others of its group were still expected belongs to
the rejected round. One that arrives later, or has the number, belongs to a new round.

Each reschedule costs writes: the scheduler sets selected-node on every claim, the agent removes it, published capacity
falls and rises, and Events are emitted. From the third time on, the hold time doubles. After four minutes it is long
enough for less than one write a minute. The number of reschedules is on the claims, so a restart and another node know
it. Held claims miss nothing. They are tried whenever this node's capacity changes. They are rescheduled early when
another node has capacity for all of them: once at any time, and again after their hold time.

Invariant: every decision has a time of the next check, at most LOOK_EVERY seconds ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from tonnage.base.aio.backoff import Rewrites
from tonnage.base.transitions import ImpossibleTransitionError, Transition, TransitionTable
from tonnage.csi.client.types import CreatedVolume
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.meta import ObjectReference
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.provisioning.capacity.ledger import Shortfall
from tonnage.provisioning.capacity.tier import PATIENT_FROM
from tonnage.provisioning.claims.bind import reschedules_of
from tonnage.provisioning.claims.node_scope import CapacitySource, DriverInfo
from tonnage.provisioning.claims.provisioning import ClaimRequest

LOOK_EVERY = 30.0
"""Maximum seconds between two checks of a claim without a volume."""
SHORTEST_WAIT, LONGEST_WAIT = 1.0, 25.0
"""Seconds that a claim waits for its group; with the patches, less than 30."""
FIRST_PACE = 2.5
_REMEMBERED = 16
RETRY_MAX = 60.0
"""Maximum seconds between two CreateVolume calls for one claim."""
SOURCE_WAIT = 5.0
"""Seconds between two checks for a data source that does not exist yet."""
UNREPORTED_WAIT = 60.0
"""Seconds until a driver that rejected and reports no capacity is asked again."""
SLOWEST_FROM = 11
"""After 1 + 2 + 4 ... + 128 seconds."""
LOOK_FROM = 4.0
"""Minimum hold time in seconds for which other nodes are checked."""
_SECONDS_A_WRITE = 60.0
_LOOK_EVERY, _LOOK_EVERY_OBJECT, _LOOK_AT_LEAST_EVERY = 5.0, 0.02, 60.0
"""Seconds between two checks of other nodes: the more objects, the longer."""
_REMEMBERED_SECONDS = 600.0
"""Seconds after which an unused check of other nodes is forgotten."""

# One claim


class Phase(Enum):
    """Phase of a claim of this node. Its value is its name in docs."""

    WAITING = "waiting"
    """Nothing is decided: it has no volume here, or is none of ours."""
    SIBLINGS = "siblings"
    """Other claims of its pod are expected here."""
    SOURCE = "source"
    """Its data source cannot be used yet."""
    INFEASIBLE = "infeasible"
    """No volume can be as its classes say."""
    BARRED = "barred"
    """Its pod has an infeasible claim, so none of the pod's claims gets a volume."""
    HELD = "held"
    """It was rejected, and waits here for capacity or for its reschedule."""
    RESCHEDULING = "rescheduling"
    """The patch that removes its selected-node is under way, or failed and is repeated."""
    LEAVING = "leaving"
    """A claim of its pod was rescheduled, which the watch does not show yet."""
    RESERVED = "reserved"
    """The ledger has its capacity: CreateVolume comes next."""
    POPULATED = "populated"
    """An external populator provides its volume, as an Event says."""
    BLOCKED = "blocked"
    """A sweep deletes the volume of an earlier attempt."""
    CREATING = "creating"
    """CreateVolume may be under way, or its outcome is not known."""
    FILLING = "filling"
    """The driver fills the volume: CreateVolume is called again until it is full."""
    CREATED = "created"
    """The volume exists, its PV may not."""
    BINDING = "binding"
    """The PV exists and is being bound."""
    BOUND = "bound"
    """The PV is bound; the watch may not show it yet."""

    @property
    def reason(self) -> str:
        """Why a claim waits, as a label of `tonnage_claims_waiting`."""
        return _REASONS.get(self, "other")


_REASONS = {
    Phase.SIBLINGS: "siblings",
    Phase.SOURCE: "source",
    Phase.INFEASIBLE: "infeasible",
    Phase.BARRED: "infeasible",
    Phase.HELD: "capacity",
    Phase.RESCHEDULING: "rescheduling",
    Phase.LEAVING: "rescheduling",
}


class ClaimEvent(Enum):
    """What happens to a claim. Its value is its name in docs."""

    SIBLINGS_MISSING = "siblings missing"
    SOURCE_NOT_READY = "source not ready"
    INFEASIBLE = "infeasible"
    POD_INFEASIBLE = "pod infeasible"
    AWAY = "away"
    REJECTED = "rejected"
    RESCHEDULE = "reschedule"
    PATCHED = "patched"
    WATCH_BEHIND = "watch behind"
    RESERVED = "reserved"
    LEFT_TO_POPULATOR = "left to populator"
    BLOCK = "block"
    UNBLOCK = "unblock"
    BEGIN = "begin"
    OUTCOME_UNKNOWN = "outcome unknown"
    FILL = "fill"
    MADE = "made"
    NOT_CALLED = "not called"
    FAILED = "failed"
    DRIVER_REJECTED = "driver rejected"
    UNWANTED = "unwanted"
    DELIVERED = "delivered"
    BIND = "bind"
    BIND_DONE = "bind done"
    BIND_FAILED = "bind failed"
    OVERDUE = "overdue"
    FORGET = "forget"


_P, _E = Phase, ClaimEvent
_WAITS = (
    _P.WAITING,
    _P.SIBLINGS,
    _P.SOURCE,
    _P.INFEASIBLE,
    _P.BARRED,
    _P.HELD,
    _P.RESCHEDULING,
    _P.LEAVING,
    _P.RESERVED,
)
_CALLS = (_P.CREATING, _P.FILLING)
_UNDER_WAY = (*_CALLS, _P.CREATED, _P.BINDING)
_OF_ROUNDS = (
    _E.SIBLINGS_MISSING, _E.POD_INFEASIBLE, _E.REJECTED, _E.RESCHEDULE, _E.PATCHED, _E.WATCH_BEHIND, _E.RESERVED
)  # fmt: skip
_Row = Transition[Phase, ClaimEvent]

# How to read the table. A claim waits until a decision finds it a place: a check of the claim alone, or a round of its
# claim group, which decides all members at once. Both read the API server between the facts and their result, so each
# result may meet any state that waits, and replaces it: only the last decision counts. What has an effect outside of
# this process (a volume, a PV, a binding) is different. It goes on until its outcome is known, whatever is decided
# meanwhile, and whether or not the claim still exists: else a volume would stay that nobody knows of. A sweep and a
# creation exclude each other, as the one deletes what the other makes.
CLAIM_TRANSITIONS = TransitionTable(
    "claim",
    Phase.WAITING,
    (
        _Row(_WAITS, _E.SOURCE_NOT_READY, _P.SOURCE, "its data source is missing or not ready; it is read again"),
        _Row(_WAITS, _E.INFEASIBLE, _P.INFEASIBLE, "the request is wrong, or the driver said so for these classes"),
        _Row(_WAITS, _E.AWAY, _P.HELD, "its source is on another node: its group is rescheduled whatever fits here"),
        *(
            _Row((_P.BLOCKED,), event, None, "the sweep began during the check; its end checks again")
            for event in (_E.SOURCE_NOT_READY, _E.INFEASIBLE, _E.AWAY)
        ),
        _Row(_WAITS, _E.SIBLINGS_MISSING, _P.SIBLINGS, "the scheduler selects the node claim by claim"),
        _Row(_WAITS, _E.POD_INFEASIBLE, _P.BARRED, "a pod gets all its volumes or none"),
        _Row(_WAITS, _E.REJECTED, _P.HELD, "the group does not fit; it is tried again when capacity changes"),
        _Row(_WAITS, _E.RESCHEDULE, _P.RESCHEDULING, "the round is rejected: its claims leave together"),
        _Row(_WAITS, _E.PATCHED, _P.LEAVING, "the patch was written; capacity here no longer matters to it"),
        _Row(_WAITS, _E.WATCH_BEHIND, _P.LEAVING, "members that were patched are still shown: the round is not whole"),
        _Row(_WAITS, _E.RESERVED, _P.RESERVED, "the ledger reserved the whole group"),
        *(
            _Row((*_UNDER_WAY, _P.BOUND, _P.BLOCKED), event, None, "the round saw it before; what is under way goes on")
            for event in _OF_ROUNDS
        ),
        _Row(_WAITS, _E.LEFT_TO_POPULATOR, _P.POPULATED, "its data source is of a kind that others fill"),
        _Row((*_WAITS, _P.POPULATED), _E.BLOCK, _P.BLOCKED, "a sweep may delete only what no creation makes"),
        _Row((_P.BLOCKED,), _E.BLOCK, None, "the sweep comes to its volume again"),
        _Row((_P.BLOCKED,), _E.UNBLOCK, _P.WAITING, "the volume is deleted, or stays: all is decided anew"),
        _Row(_WAITS, _E.BEGIN, _P.CREATING, "the ledger has its reservation, maybe of an earlier attempt"),
        _Row(_CALLS, _E.NOT_CALLED, _P.WAITING, "it left, or its secret cannot be read: there is no volume"),
        _Row(_CALLS, _E.OUTCOME_UNKNOWN, _P.CREATING, "a volume may exist: the same call is repeated"),
        _Row(_CALLS, _E.FILL, _P.FILLING, "the driver has the volume and reports its progress"),
        _Row(_CALLS, _E.MADE, _P.CREATED, "the driver returned the volume"),
        _Row(_CALLS, _E.FAILED, _P.WAITING, "the error is final: there is no volume"),
        _Row(_CALLS, _E.INFEASIBLE, _P.INFEASIBLE, "the driver rejects these classes for good"),
        _Row(_CALLS, _E.DRIVER_REJECTED, _P.HELD, "the driver lacks storage, or fails on this node again and again"),
        _Row((_P.FILLING, _P.CREATED), _E.UNWANTED, _P.WAITING, "no claim waits here for the volume: it is deleted"),
        _Row((_P.CREATED,), _E.DELIVERED, _P.WAITING, "the PV exists; who binds it is another question"),
        _Row((*_WAITS, _P.POPULATED), _E.BIND, _P.BINDING, "its PV is there and not bound, or somebody undid that"),
        _Row((_P.BINDING,), _E.BIND_DONE, _P.BOUND, "the writes were made; the watch will show them"),
        _Row((_P.BINDING,), _E.BIND_FAILED, _P.WAITING, "some write may be missing: binding is idempotent"),
        _Row((_P.BOUND,), _E.OVERDUE, _P.WAITING, "the watch does not show it in time: all is decided anew"),
        _Row((*_WAITS, _P.POPULATED, _P.BOUND), _E.FORGET, _P.WAITING, "it is gone, bound, or has another node"),
        _Row((*_UNDER_WAY, _P.BLOCKED), _E.FORGET, None, "its outcome is not known, or the sweep has not ended"),
    ),
    groups={"waits": _WAITS, "calls": _CALLS, "under_way": _UNDER_WAY},
)
_CREATIONS = frozenset((*_CALLS, Phase.CREATED))
_WOKEN_BY_CAPACITY = frozenset((Phase.HELD, Phase.BARRED, Phase.RESCHEDULING))


@dataclass
class Creation:
    """A creation between two calls; it outlives its claim.

    volume: created, without a PV yet. began: time of the last CreateVolume call. reported: whether an Event says so.
    shown_at: time of the last Event about its filling.
    """

    claim: PersistentVolumeClaim
    driver: DriverInfo
    storage_class: StorageClass
    request: ClaimRequest
    volume: CreatedVolume | None = None
    reported: bool = False
    began: float = 0.0
    shown_at: float = float("-inf")

    @property
    def classes(self) -> str:
        """The uids of the classes that the request was made of."""
        attributes = self.request.attributes
        own = self.storage_class.metadata.uid
        return own if attributes is None else f"{own} {attributes.metadata.uid}"

    def report_slow(self) -> bool:
        """Record that an Event says that it takes long; return whether it is the first."""
        is_first, self.reported = not self.reported, True
        return is_first

    def report_filling(self, now: float, *, every: float) -> bool:
        """Return whether an Event about the filling is due, and record it."""
        is_due = now >= self.shown_at + every
        self.shown_at = now if is_due else self.shown_at
        return is_due


@dataclass
class Hold:
    """Why a claim's group is not reserved here, whatever the ledger says.

    The driver had insufficient storage, or the claim must be served elsewhere. since: monotonic seconds; infinite:
    never tried again here. free: the lowest capacity that the driver reported since then. why: the message, "" for
    insufficient storage.
    """

    since: float
    free: int | None = None
    why: str = ""

    def is_over(self, free: int | None, now: float) -> bool:
        """Return whether to ask the driver again.

        free: capacity that it reports now, None if it reports none.
        """
        if free is None:
            return now > self.since + UNREPORTED_WAIT
        more = self.free is not None and free > self.free
        self.free = free if self.free is None else min(self.free, free)
        return more and self.since < now


@dataclass(frozen=True, slots=True)
class FailureReport:
    """Last Event of a claim's failure.

    pod: uid of the pod that owns the claim, else of the claim. at: monotonic seconds.
    """

    pod: str
    message: str
    at: float


@dataclass(slots=True)
class ClaimState:
    """All that the agent remembers of one claim, except its reservation.

    Only its methods change it. creation: while one is under way. bound_until: in BOUND, when to bind it again if the
    watch still does not show it. infeasible: uids of the classes that cannot serve the claim, and why. group: the
    rejected group that it belongs to.
    """

    phase: Phase = CLAIM_TRANSITIONS.start
    creation: Creation | None = None
    bound_until: float = 0.0
    hold: Hold | None = None
    infeasible: tuple[str, str] | None = None
    group: str = ""
    report: FailureReport | None = None
    failures: int = 0
    """CreateVolume calls in a row that failed with INTERNAL."""
    is_active: bool = False
    """Whether it is being reconciled."""
    fault: ImpossibleTransitionError | None = None
    """Of a round of its group; its own reconcile raises it."""
    uid: str = ""

    @property
    def is_creating(self) -> bool:
        """Whether a volume may be in the making, or has no PV yet."""
        return self.phase in _CREATIONS

    @property
    def is_settled(self) -> bool:
        """Whether its volume is in the making, or there: it cannot be rescheduled."""
        return self.phase in _UNDER_WAY or self.phase is Phase.BOUND

    @property
    def is_held(self) -> bool:
        """Whether it is tried again when capacity changes."""
        return self.phase in _WOKEN_BY_CAPACITY

    def is_bound(self, now: float) -> bool:
        """Return whether the claim is bound, before the watch shows it."""
        return self.phase is Phase.BINDING or (self.phase is Phase.BOUND and now < self.bound_until)

    def is_on_hold(self, free: int | None, now: float) -> bool:
        """Return whether the driver is not to be asked yet, and end a hold that is over."""
        if self.hold is not None and self.hold.is_over(free, now):
            self.hold = None
        return self.hold is not None

    def happened(self, event: ClaimEvent) -> None:
        """Change the phase as the table says. Raises: ImpossibleTransitionError; nothing has changed then."""
        self.phase = CLAIM_TRANSITIONS.after(self.phase, event, about=self.uid)
        if not self.is_creating:
            self.creation = None
        if event is ClaimEvent.PATCHED:
            self.hold = None

    def check_fault(self) -> None:
        """Raise what a round of its group could not record, once. Raises: ImpossibleTransitionError."""
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault

    def go_away(self, why: str) -> None:
        """Record that another node must serve it. Raises: ImpossibleTransitionError."""
        self.happened(ClaimEvent.AWAY)
        if self.phase is Phase.HELD:
            self.hold = Hold(float("inf"), why=why)

    def begin(self, creation: Creation) -> None:
        """Record that CreateVolume may be called. Raises: ImpossibleTransitionError."""
        self.happened(ClaimEvent.BEGIN)
        self.creation = creation

    def update(self, claim: PersistentVolumeClaim | None) -> None:
        """Record the claim as the watch shows it; None keeps that of a creation."""
        if self.creation is not None and claim is not None:
            self.creation.claim = claim

    def call(self, now: float) -> None:
        """Record when CreateVolume is called. Calls for a volume that is being filled are one."""
        if self.creation is not None and self.phase is not Phase.FILLING:
            self.creation.began = now

    def made(self, volume: CreatedVolume) -> None:
        """Record the volume that the driver returned. Raises: ImpossibleTransitionError."""
        self.happened(ClaimEvent.MADE)
        if self.creation is not None:
            self.creation.volume = volume

    def count_failure(self, *, is_internal: bool) -> int:
        """Count a final failure of CreateVolume; return how many in a row were INTERNAL."""
        self.failures = self.failures + 1 if is_internal else 0
        return self.failures

    def reject(self, hold: Hold) -> None:
        """Record that the driver cannot make the volume here now. Raises: ImpossibleTransitionError."""
        self.happened(ClaimEvent.DRIVER_REJECTED)
        self.hold, self.failures = hold, 0

    def reject_classes(self, classes: str, why: str) -> None:
        """Record that the driver rejects the classes of these uids. Raises: ImpossibleTransitionError."""
        self.happened(ClaimEvent.INFEASIBLE)
        self.infeasible = classes, why

    def bound(self, until: float) -> None:
        """Record a binding. Raises: ImpossibleTransitionError."""
        self.happened(ClaimEvent.BIND_DONE)
        self.bound_until = until

    def remember(self, report: FailureReport) -> None:
        """Record the last Event of its failure."""
        self.report = report

    def expire(self, now: float) -> None:
        """End a binding that the watch should show by now. Idempotent."""
        if self.phase is Phase.BOUND and not self.is_bound(now):
            self.happened(ClaimEvent.OVERDUE)

    def forget(self) -> None:
        """Forget all but what is under way. Idempotent."""
        self.happened(ClaimEvent.FORGET)
        self.hold, self.infeasible, self.group, self.report, self.failures = None, None, "", None, 0


@dataclass(frozen=True)
class Plan:
    """Result of examining a claim.

    creation: None if the claim needs nothing of this node. fault: why it is infeasible. not_ready: why its data source
    cannot be used yet. away: why it must be served by another node, with report for an Event.
    """

    creation: Creation | None = None
    fault: str = ""
    not_ready: str = ""
    away: str | None = None
    report: str = ""


@dataclass(frozen=True)
class Facts:
    """Facts about one claim.

    claim, volume: from the caches; volume is its PV. plan: None until step() asks for it.
    """

    now: float
    claim: PersistentVolumeClaim | None = None
    volume: PersistentVolume | None = None
    plan: Plan | None = None


@dataclass(frozen=True)
class Forget:
    """Do nothing: an event comes first."""


@dataclass(frozen=True)
class Examine:
    """Plan the request and read the data source; then call step() with the plan."""

    claim: PersistentVolumeClaim


@dataclass(frozen=True)
class Create:
    """Call CreateVolume, then create the PV and bind it."""

    creation: Creation


@dataclass(frozen=True)
class BindVolume:
    """Bind the PV that exists."""

    claim: PersistentVolumeClaim
    volume: PersistentVolume


@dataclass(frozen=True)
class RollBack:
    """Delete the unused volume, then the claim, so that its pod can go elsewhere."""

    claim: PersistentVolumeClaim


@dataclass(frozen=True)
class ReserveGroup:
    """Reserve capacity for the claim's group, or reschedule it."""

    creation: Creation


@dataclass(frozen=True)
class Reschedule:
    """Reschedule the claim's group. report: Event to emit, "" for none."""

    creation: Creation
    reason: str
    report: str = ""


@dataclass(frozen=True)
class Reject:
    """Reserve nothing, emit the message, and check again after some seconds."""

    claim: PersistentVolumeClaim
    event: ClaimEvent
    message: str
    seconds: float


@dataclass(frozen=True)
class Wait:
    """Check again after some seconds."""

    seconds: float


@dataclass(frozen=True)
class Reserved:
    """The claim has its capacity. uids: the claims of its group that got it now."""

    uids: tuple[str, ...] = ()


Action = Forget | Examine | Create | BindVolume | RollBack | ReserveGroup | Reschedule | Reject


def is_rolled_back(claim: PersistentVolumeClaim) -> bool:
    """Return whether the rollback of a claim has begun."""
    return bool(claim.metadata.annotations.get(names.ROLLED_BACK))


def step(state: ClaimState, facts: Facts) -> Action:
    """Return what to do with a claim. Changes nothing."""
    claim, plan = facts.claim, facts.plan
    if state.phase is Phase.BLOCKED:
        return Forget()  # the end of the sweep enqueues it again
    if state.creation is not None:
        return Create(state.creation)  # even if the claim is deleted: until the outcome is known
    if claim is not None and is_rolled_back(claim) and not claim.metadata.deleting:
        return RollBack(claim)
    if claim is None or state.is_bound(facts.now):
        return Forget()
    if facts.volume is not None:
        return BindVolume(claim, facts.volume)
    return Examine(claim) if plan is None else _step_planned(state, claim, plan)


def _step_planned(state: ClaimState, claim: PersistentVolumeClaim, plan: Plan) -> Action:
    if plan.fault:
        return Reject(claim, ClaimEvent.INFEASIBLE, plan.fault, RETRY_MAX)
    if plan.not_ready:
        return Reject(claim, ClaimEvent.SOURCE_NOT_READY, plan.not_ready, SOURCE_WAIT)
    if plan.creation is None:
        return Forget()
    if state.infeasible is not None and state.infeasible[0] == plan.creation.classes:
        return Reject(claim, ClaimEvent.INFEASIBLE, state.infeasible[1], RETRY_MAX)
    if plan.away is not None:
        return Reschedule(plan.creation, plan.away, plan.report)
    return ReserveGroup(plan.creation)


# The claim group of a pod


def hold_time(attempt: int, claims: int, objects: int) -> float:
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
class NodeSearch:
    """Other nodes with capacity for a held group. Times are monotonic seconds.

    found: those of the last check, None before.
    """

    found: Set[str] | None = None
    check_at: float = 0.0
    limited_until: float = 0.0

    def next_check(self, now: float) -> float:
        """Return seconds until the next check."""
        return max(0.0, max(self.check_at, self.limited_until) - now)

    def newly_available_nodes(self, found: Set[str], known: Set[str], *, objects: int, now: float) -> Set[str]:
        """Record which nodes have capacity; return those that had none before.

        known: nodes that had it when this node was selected; the scheduler knew of them. objects: how many objects were
        read.
        """
        self.check_at = now + min(_LOOK_AT_LEAST_EVERY, _LOOK_EVERY + _LOOK_EVERY_OBJECT * objects)
        before, self.found = self.found, found
        return found - (known if before is None else before)

    def limit(self, until: float) -> None:
        """Record an early reschedule, and when the next is possible."""
        self.limited_until = until

    def end(self) -> None:
        """Forget all but the early reschedule: the group was rescheduled or fits. Idempotent."""
        self.found, self.check_at = None, 0.0

    def is_over(self, now: float) -> bool:
        """Return whether nothing needs to be remembered."""
        return now > max(self.limited_until, self.check_at + _REMEMBERED_SECONDS if self.check_at else 0.0)


class GroupPace:
    """Time that the scheduler takes between two claims of a pod, in seconds."""

    def __init__(self) -> None:
        self._gaps: deque[float] = deque([FIRST_PACE], maxlen=_REMEMBERED)

    def observe(self, gap: float) -> None:
        """Record that two claims of a pod arrived at least that far apart."""
        self._gaps.append(gap)

    @property
    def wait(self) -> float:
        """How long to wait for another claim: twice the longest recent gap."""
        return min(LONGEST_WAIT, max(SHORTEST_WAIT, 2 * max(self._gaps)))


@dataclass(frozen=True)
class Member:
    """Claim of the group with this node as selected-node, and no volume.

    reschedules: the number on it. arrived: monotonic seconds.
    """

    uid: str
    reschedules: int
    arrived: float


class GroupMove(Enum):
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

    recheck_at: latest time of the next decision, monotonic seconds. uids: claims to patch, with this number of
    reschedules.
    """

    move: GroupMove
    recheck_at: float
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
    reported: int = 0
    """Highest number of reschedules that an Event reported."""
    rollback: list[PersistentVolumeClaim] | None = None
    """Created claims that are being rolled back; None without a rollback."""
    search: NodeSearch = field(default_factory=NodeSearch)
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
            return GroupDecision(GroupMove.RESCHEDULE, now + LOOK_EVERY, uids, self.reschedules)
        current = [m for m in here if m.uid not in self._patched]
        if not current:
            return GroupDecision(GroupMove.WAIT, now + LOOK_EVERY)
        if not missing and len(current) == len(here):
            return GroupDecision(GroupMove.RESERVE, now + LOOK_EVERY)
        overdue = min(m.arrived for m in current) + self.pace.wait
        if now >= overdue:
            return GroupDecision(GroupMove.REJECT if confirmed else GroupMove.CONFIRM, now + LOOK_EVERY)
        return GroupDecision(GroupMove.WAIT if fits else GroupMove.REJECT, overdue)

    def reject(
        self, members: Sequence[Member], now: float, *, missing: bool, at_least: int = 0, reason: str = ""
    ) -> None:
        """Reject these claims, and missing ones that arrive in time.

        at_least: the number of reschedules on a missing claim.
        """
        self.reason = reason
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

    def report(self, reschedules: int) -> bool:
        """Return whether an Event of that number of reschedules is due, and record it."""
        is_due = self.reported < reschedules
        self.reported = max(self.reported, reschedules)
        return is_due

    def patched(self, uid: str, now: float) -> None:
        """Record that a claim was rescheduled."""
        self._patched[uid] = now
        self._outstanding.discard(uid)

    def left(self, uid: str) -> None:
        """Record that the watch shows it."""
        self._patched.pop(uid, None)
        self._outstanding.discard(uid)

    def is_over(self, now: float) -> bool:
        """Return whether no round has state to remember."""
        is_open = self._outstanding or self._patched or self.rollback is not None
        return not is_open and now > self._expected_until

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


@dataclass(frozen=True)
class PodClaimGroup:
    """Claims (by key) of one pod, the given one included.

    pod: None where it is not known. present: claims with this node. missing: claims that must still get this node
    before the pod can start. coming: what the missing ones request, as far as it is known.
    """

    id: str
    namespace: str
    pod: ObjectReference | None
    claims: tuple[str, ...]
    present: frozenset[str]
    missing: tuple[str, ...] = ()
    copies: tuple[PersistentVolumeClaim, ...] = ()
    """Claims without this node that clone a claim or restore a snapshot."""
    coming: tuple[tuple[CapacitySource, int], ...] = ()


@dataclass
class GroupRound:
    """A group while it is decided.

    missing: keys of claims that the pod still needs here. is_confirmed: they were read from the API server, and
    reschedules is the max of theirs. pending: claims that may be rescheduled, by uid. uids: of all claims here.
    is_rejected: the group cannot be served here, whatever the ledger says.
    """

    found: PodClaimGroup
    group: ClaimGroup
    missing: tuple[str, ...]
    is_confirmed: bool = False
    reschedules: int = 0
    now: float = 0.0
    pending: Mapping[str, PersistentVolumeClaim] = field(default_factory=dict)
    members: Sequence[Member] = ()
    uids: Sequence[str] = ()
    is_rejected: bool = False
    shortfall: Shortfall | None = None

    @property
    def fits(self) -> bool:
        """Whether all claims would have capacity, also the missing ones."""
        return self.shortfall is None and not self.is_rejected

    @property
    def number(self) -> int:
        """Number of reschedules that the claims have after it."""
        return 1 + max(map(reschedules_of, self.pending.values()), default=0)


class ClaimTable:
    """State of each claim, and of each group that was rejected or is held."""

    def __init__(self) -> None:
        self.claims: dict[str, ClaimState] = {}
        self.bindings = Rewrites()
        """Of bound claims, by uid: a PV controller that sees another state may undo them."""
        self.pace = GroupPace()
        self._groups: dict[str, ClaimGroup] = {}

    def of(self, uid: str) -> ClaimState:
        """Return the state of a claim, which may be new."""
        if (state := self.claims.get(uid)) is None:
            state = self.claims[uid] = ClaimState(uid=uid)
        return state

    @contextmanager
    def active(self, uid: str) -> Iterator[ClaimState]:
        """Keep the state of a claim while it is reconciled."""
        state = self.of(uid)
        state.is_active = True
        try:
            yield state
        finally:
            state.is_active = False

    def happened(self, uids: Iterable[str], event: ClaimEvent) -> None:
        """Record an event of those claims that are known.

        One that cannot have it does not stop the others: it keeps its phase, and its own reconcile raises the error.
        """
        for state in self.of_all(uids):
            try:
                state.happened(event)
            except ImpossibleTransitionError as fault:
                state.fault = fault

    def forget(self, uid: str) -> None:
        """Forget a claim that is gone, bound or has another node. Idempotent.

        A creation continues until its outcome is known, and a sweep until it ends.
        """
        old = self.claims.get(uid)
        if old is None:
            return
        old.forget()
        if old.phase is Phase.WAITING and not old.is_active:
            del self.claims[uid]

    def leave(self, uid: str, now: float) -> None:
        """Forget a claim without this node, and groups that are over. Idempotent.

        An early reschedule is remembered as long as it matters, in a group without a round.
        """
        state = self.claims.get(uid)
        if state is not None and (group := self._groups.get(state.group)) is not None:
            group.left(uid)
        self.forget(uid)
        for id_, old in list(self._groups.items()):
            if old.is_over(now) and old.search.is_over(now):
                del self._groups[id_]
            elif old.is_over(now):
                self._groups[id_] = ClaimGroup(self.pace, search=old.search)

    def group(self, id_: str, uids: Iterable[str]) -> ClaimGroup:
        """Return the group of that id, or the rejected one of these claims; else a new one."""
        known = (id_, *(state.group for state in self.of_all(uids)))
        return next((self._groups[i] for i in known if i in self._groups), None) or ClaimGroup(self.pace)

    def remember(self, id_: str, group: ClaimGroup) -> None:
        """Remember a group until it is over. Idempotent."""
        self._groups[id_] = group

    def of_all(self, uids: Iterable[str]) -> Iterator[ClaimState]:
        """Return the states of those claims that are known."""
        return (self.claims[uid] for uid in uids if uid in self.claims)

    def join(self, uids: Iterable[str], id_: str) -> None:
        """Record the rejected group of these claims."""
        for state in self.of_all(uids):
            state.group = id_

    def held(self) -> list[str]:
        """Return the claims that are tried again when capacity changes."""
        return [uid for uid, state in self.claims.items() if state.is_held]
