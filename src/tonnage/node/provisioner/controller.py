"""Provisioning controller: creates volumes for claims of this node.

docs/reference/kubernetes/provisioning.md has the rules. Steps of a claim: observed (its size is reserved in published
capacity), claim group complete, group reserved or rescheduled, CreateVolume, PV, bound. Every step is idempotent: the
volume's name contains the claim's uid, so after a kill the same calls find what exists. If the claim is deleted or gets
another node meanwhile, the volume is deleted, since no PV refers to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tonnage.aio.backoff import Backoff
from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES
from tonnage.api.matching import is_bound, requested
from tonnage.api.origin import is_populated
from tonnage.api.storage import StorageClass
from tonnage.capacity.ledger import ClaimReservation, Ledger, Stage
from tonnage.claims.create_request import plan
from tonnage.claims.external_populator import leave_to_populator
from tonnage.claims.node_scope import NodeScope, provisioner_of
from tonnage.errors import Invalid, NotFound, Precondition
from tonnage.kube.client import Client
from tonnage.kube.controller import Controller
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informer, Informers
from tonnage.node.capacity.poller import Readings
from tonnage.node.driver_set import DriverSet
from tonnage.node.provisioner.bind import Delivery
from tonnage.node.provisioner.claim_group import Siblings
from tonnage.node.provisioner.create import Making, Work, failed_text
from tonnage.node.provisioner.data_source import Away, content_of
from tonnage.node.provisioner.existing import ExistingVolumes
from tonnage.node.provisioner.failure_events import Refusals
from tonnage.node.provisioner.group_state import LOOK_EVERY
from tonnage.node.provisioner.precheck import Feasibility
from tonnage.node.provisioner.reschedule import Withdrawal
from tonnage.node.provisioner.reserve import ClaimReserver
from tonnage.node.provisioner.starvation import StarvationGuard
from tonnage.observe import metrics, trace

WORKERS = 100
RETRY_START, RETRY_MAX = 1.0, 60.0
"""Seconds between two CreateVolume calls for one claim.

What the driver lacks may come at any time, such as the end of a use that blocks a clone."""
LONG_WAIT = 60.0
"""Seconds after which `tonnage_claims_waiting` counts a waiting claim."""
SOURCE_WAIT = 5.0
"""Seconds between two checks for a data source that does not exist yet."""
SHORTEST_WAIT = 0.001
"""Minimum wait in seconds.

A shorter rest of a wait may be below the clock's resolution, and would end at its start."""
_BY_UID = "uid"


class Provisioner:
    """Loop over claims.

    binding "agent": complete the binding here; "controller": the PV controller does. starvation_guard: reschedules of a
    pod after which it reserves capacity for it, 0 for never.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder,
        *,
        scope: NodeScope,
        drivers: DriverSet,
        ledger: Ledger,
        readings: Readings,
        clock: Clock,
        binding: str = "agent",
        starvation_guard: int = 0,
    ) -> None:
        self._client, self._events, self._clock = client, events, clock
        self._scope, self._drivers, self._ledger, self._readings = scope, drivers, ledger, readings
        claims = informers.of(CLAIMS, labels=scope.selector)
        volumes = informers.of(VOLUMES, labels=scope.selector)
        classes = informers.of(STORAGE_CLASSES)
        self._informers: tuple[Informer[Any], ...] = (claims, volumes, classes)
        self._claims, self._volumes, self._classes = claims.cache, volumes.cache, classes.cache
        self._claims.add_index(_BY_UID, lambda claim: (claim.metadata.uid,))
        self._works: dict[str, Work] = {}
        self._done_until: dict[str, float] = {}
        self._looked = 0.0  # monotonic time of the last reconcile
        self._blocked: set[str] = set()  # uids whose volume a sweep is deleting now
        self._populated: set[str] = set()  # uids of claims whose Event says that a volume populator provides them
        self._ready = False
        self._controller = Controller(
            "provision", self.reconcile, workers=WORKERS, backoff=Backoff(RETRY_START, RETRY_MAX)
        )
        claims.on_restored(self._controller.hasten)
        siblings = Siblings(client, self._claims, self._classes, drivers, scope)
        kept = StarvationGuard(ledger, drivers, after=starvation_guard)
        withdrawal = Withdrawal(client, events, self._claims, self._classes, ledger, scope, clock, kept, self._is_made)
        self._refusals = Refusals(client, events, clock)
        self._delivery = Delivery(
            client, events, self._works, self._claims, ledger, readings, scope, clock, binds=binding == "agent"
        )
        feasibility = Feasibility(self._classes, drivers, scope)
        self._booking = ClaimReserver(
            self._claims,
            ledger,
            readings,
            siblings,
            withdrawal,
            feasibility,
            self._refusals,
            clock,
            self._look_again,
            self._why_away,
            ExistingVolumes(drivers, clock),
        )
        self._making = Making(
            client,
            events,
            self._works,
            ledger,
            readings,
            self._refusals,
            clock,
            self._delivery.is_here,
            self._booking.exhausted,
        )
        self._claims.on_change(self._claim_changed)
        self._classes.on_change(lambda _, new: self._class_changed(new))
        drivers.on_add(lambda _: self._look_at_all())
        metrics.WAITING.count(self, scope.node, lambda provisioner: provisioner.waiting)

    async def ready(self) -> None:
        """Rebuild the ledger from the claims of this node.

        Capacity may be published afterwards.
        """
        for informer in self._informers:
            await informer.wait_synced()
        self._ready = True
        for claim in self._claims:
            self._ledger.version(_version(claim))
        self._ledger.promised = self._ledger.counted
        self._look_at_all()

    async def run(self) -> None:
        """Work until cancelled; call ready() first."""
        try:
            await self._controller.run()
        finally:
            await self._making.close()

    @property
    def busy(self) -> bool:
        """Return whether a CreateVolume is under way, or its outcome is not known."""
        return bool(self._works)

    @property
    def waiting(self) -> Mapping[str, int]:
        """Count claims that have waited here for over a minute, by reason.

        May be called in another thread.
        """
        since = self._looked - LONG_WAIT  # an event loop's clock cannot be read in other threads
        return Counter(self._why_waits(p) for p in self._ledger.unmade if p.seen < since)

    def _why_waits(self, promise: ClaimReservation) -> str:
        if promise.stage in (Stage.RESERVED, Stage.CREATING):
            return "driver"
        if promise.stage is Stage.GUARDED:
            return "capacity"
        return self._booking.reasons.get(promise.uid, "other")

    def block(self, uid: str) -> bool:
        """Create no volume for the claim of that uid until unblock().

        Returns False if a creation is under way.
        """
        if uid in self._works or uid in self._delivery.done or self._ledger.get(uid) is not None:
            return False
        self._blocked.add(uid)
        return True

    def unblock(self, uid: str) -> None:
        """Undo block(). Idempotent."""
        self._blocked.discard(uid)
        self._controller.enqueue(uid)

    # Events of claims

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """Handle a changed claim.

        Ignored: results of our own writes, and bound claims.
        """
        if not self._ready:
            return
        if new is None:
            assert old is not None
            self._left(old)
            return
        if old is not None and old.metadata.uid != new.metadata.uid:
            self._left(old)
        self._ledger.version(_version(new))
        self._look_at(new)

    def _left(self, claim: PersistentVolumeClaim) -> None:
        """Handle a claim without this node, or deleted.

        A creation under way continues until its outcome is known.
        """
        uid = claim.metadata.uid
        self._ledger.forget(uid)
        self._forget_done(uid)
        self._populated.discard(uid)
        self._making.infeasible.pop(uid, None)
        self._refusals.left(uid)
        self._booking.left(uid)

    def _look_at(self, claim: PersistentVolumeClaim) -> None:
        uid = claim.metadata.uid
        if claim.spec.volume_name:
            if is_bound(claim) and claim.status.phase == "Bound":
                self._forget_done(uid)
                return
        elif claim.metadata.deleting and uid not in self._works:
            self._ledger.forget(uid)
            return
        if uid in self._delivery.done:
            return
        self._promise(claim)
        if uid not in self._works:
            self._controller.enqueue(uid)

    def _promise(self, claim: PersistentVolumeClaim) -> None:
        """Add the claim to the ledger if it is for one of our drivers and has no volume."""
        uid = claim.metadata.uid
        storage_class = self._classes.get(claim.spec.storage_class_name or "")
        if claim.spec.volume_name or storage_class is None or self._volume(claim) is not None or is_populated(claim):
            return
        driver = self._drivers.get(storage_class.provisioner)
        if driver is None or claim.metadata.annotations.get(names.SELECTED_NODE, "") != self._scope.node:
            return
        try:
            size = requested(claim)
        except Invalid:
            return  # reconcile reports it
        attempt = names.annotation(claim.metadata.annotations, names.RESCHEDULES)
        source, now = driver.source(storage_class), self._clock.monotonic()
        self._ledger.see(uid, source, size, attempt=attempt, version=_version(claim), now=now)

    def _class_changed(self, storage_class: StorageClass | None) -> None:
        if self._ready and storage_class is not None:
            name = storage_class.metadata.name
            self._look_at_these(c for c in list(self._claims) if c.spec.storage_class_name == name)

    def _look_at_all(self) -> None:
        if self._ready:
            self._look_at_these(list(self._claims))

    def _look_at_these(self, claims: Iterable[PersistentVolumeClaim]) -> None:
        for claim in claims:
            self._look_at(claim)

    def _look_again(self, uid: str) -> None:
        if uid not in self._works:
            self._controller.enqueue(uid)

    # Reconcile one claim

    async def reconcile(self, uid: str) -> float | None:
        """Reconcile one claim.

        A claim with this node and without a volume always has a next check.
        """
        self._looked = self._clock.monotonic()
        try:
            after = await self._reconcile(uid)
        except Exception:
            if not self._is_booked(uid) and self._waits_here(uid):  # else the back-off is the driver's
                self._controller.enqueue(uid, after=LOOK_EVERY)
            raise
        if self._waits_here(uid):
            return min(LOOK_EVERY, LOOK_EVERY if after is None else after)
        return after

    def _waits_here(self, uid: str) -> bool:
        """Return whether a claim waits for a volume here, and none is being created."""
        claim = next(iter(self._claims.by(_BY_UID, uid)), None)
        if claim is None or uid in self._works or claim.spec.volume_name or claim.metadata.deleting:
            return False
        if is_populated(claim):
            return False
        return self._scope.has_claim(claim.metadata) and self._drivers.get(provisioner_of(claim)) is not None

    def _is_booked(self, uid: str) -> bool:
        promise = self._ledger.get(uid)
        return promise is not None and promise.stage is Stage.RESERVED

    async def _reconcile(self, uid: str) -> float | None:
        if uid in self._blocked:
            return None  # unblock() enqueues it again
        claim = next(iter(self._claims.by(_BY_UID, uid)), None)
        work = self._works.get(uid)
        if work is not None:
            work.claim = claim or work.claim
            await self._make(uid, work)
            return None
        if claim is None or self._is_handed_over(uid):
            return None
        if (volume := self._volume(claim)) is not None:
            await self._delivery.hand_over(claim, volume)
            return None
        try:
            work = self._begin(claim)
            content = await content_of(self._client, claim, work.driver) if work is not None else None
        except Invalid as reason:
            await self._hopeless(claim, claim.spec.storage_class_name or "", str(reason))
            return RETRY_MAX
        except Precondition as reason:
            self._ledger.refuse([uid])  # other claims may have the capacity meanwhile
            self._booking.reasons[uid] = "source"
            await self._refusals.tell(claim, failed_text(claim.spec.storage_class_name or "", reason))
            return SOURCE_WAIT
        if work is None:
            return None
        if isinstance(content, Away):
            self._ledger.refuse([uid])
            self._booking.turn_away(uid, content.reason)
        else:
            work.request = replace(work.request, content=content)
        class_uid, why = self._making.infeasible.get(uid, ("", ""))
        if class_uid == work.storage_class.metadata.uid:
            self._booking.reasons[uid] = "infeasible"
            await self._refusals.tell(claim, why)
            return RETRY_MAX
        if work.driver.publishes_ahead(work.storage_class):
            await self._refusals.tell(claim, failed_text(work.storage_class.metadata.name, names.AHEAD))
            self._booking.turn_away(uid)
        wait = await self._booking.book(claim, work.driver, late=work.storage_class.late)
        if wait is not None:
            return max(wait, SHORTEST_WAIT)
        if self._works.setdefault(uid, work) is work:
            await self._make(uid, work)
            return RETRY_MAX if uid in self._making.infeasible else None
        return None

    def _is_handed_over(self, uid: str) -> bool:
        """Return whether the claim is bound, before the watch shows it.

        True only for a limited time; then the binding is done again.
        """
        if uid not in self._delivery.done:
            return False
        now = self._clock.monotonic()
        if now < self._done_until.setdefault(uid, now + LOOK_EVERY):
            return True
        self._forget_done(uid)
        return False

    def _forget_done(self, uid: str) -> None:
        self._delivery.done.discard(uid)
        self._done_until.pop(uid, None)

    async def _why_away(self, claim: PersistentVolumeClaim) -> str:
        """Return why a clone can only be made on another node, or "".

        "" also where that is not known.
        """
        storage_class = self._classes.get(claim.spec.storage_class_name or "")
        driver = self._drivers.get(storage_class.provisioner) if storage_class is not None else None
        if driver is None:
            return ""
        try:
            content = await content_of(self._client, claim, driver)
        except (Invalid, Precondition):
            return ""
        return content.reason if isinstance(content, Away) else ""

    def _volume(self, claim: PersistentVolumeClaim) -> PersistentVolume | None:
        return self._volumes.get(names.volume_name(claim.metadata.uid))

    def _is_made(self, claim: PersistentVolumeClaim) -> bool:
        """Return whether the claim has a volume here, bound or not, or one is being created."""
        uid = claim.metadata.uid
        return uid in self._delivery.done or uid in self._works or self._volume(claim) is not None

    def _begin(self, claim: PersistentVolumeClaim) -> Work | None:
        """Return the creation of the claim's volume, None if it needs none.

        Raises: NotFound, Invalid.
        """
        if claim.spec.volume_name or claim.metadata.deleting:
            return None
        if claim.metadata.annotations.get(names.SELECTED_NODE, "") != self._scope.node:
            return None
        driver = self._drivers.get(provisioner_of(claim))
        if driver is None:
            return None
        if is_populated(claim):
            if claim.metadata.uid not in self._populated:
                self._populated.add(claim.metadata.uid)
                leave_to_populator(self._events, claim)
            return None
        name = claim.spec.storage_class_name or ""
        storage_class = self._classes.get(name)
        if storage_class is None:
            raise NotFound(f"claim {claim.key}: there is no StorageClass {name!r}")
        if storage_class.provisioner != driver.name:
            return None
        return Work(claim, driver, storage_class, plan(claim, storage_class, driver, self._scope))

    async def _hopeless(self, claim: PersistentVolumeClaim, storage_class: str, reason: str) -> None:
        """Handle a claim that is infeasible for this agent.

        Its reservation is removed. The other claims of its group find the same error when they are reconciled.
        """
        self._ledger.refuse([claim.metadata.uid])
        self._booking.reasons[claim.metadata.uid] = "infeasible"
        await self._refusals.tell(claim, failed_text(storage_class, reason))

    # Creation

    async def _make(self, uid: str, work: Work) -> None:
        claim = work.claim.metadata
        about = {
            "k8s.persistentvolumeclaim.uid": uid,
            "k8s.persistentvolumeclaim.name": claim.name,
            "k8s.namespace.name": claim.namespace,
            "k8s.storageclass.name": work.storage_class.metadata.name,
        }
        with trace.span("provision", about) as span:
            await self._make_and_deliver(uid, work)
            if work.volume is None:
                span.fail("no volume was made; the claim's Events say why")

    async def _make_and_deliver(self, uid: str, work: Work) -> None:
        if work.volume is None:
            work.volume = await self._making.create(uid, work)
        if work.volume is not None:
            await self._delivery.deliver(uid, work, work.volume)


def _version(claim: PersistentVolumeClaim) -> int:
    text = claim.metadata.resource_version
    return int(text) if text.isdecimal() else 0
