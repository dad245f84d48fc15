"""Provisioning controller: creates volumes for claims of this node.

docs/reference/kubernetes/provisioning.md has the rules. Steps of a claim: observed (its size is reserved in published
capacity), claim group complete, group reserved or rescheduled, CreateVolume, PV, bound. Every step is idempotent: the
volume's name contains the claim's uid, so after a kill the same calls find what exists. If the claim is deleted or gets
another node meanwhile, the volume is deleted, since no PV refers to it.

step() decides; this module gathers its facts and runs its actions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tonnage.base.aio.backoff import Backoff
from tonnage.base.errors import InvalidError, NotFoundError, PreconditionError
from tonnage.base.observe import metrics
from tonnage.csi.client.types import ContentSource
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES
from tonnage.kubernetes.api.matching import is_bound, requested
from tonnage.kubernetes.api.number import whole
from tonnage.kubernetes.api.origin import is_content, is_populated, reference
from tonnage.kubernetes.api.storage import VolumeAttributesClass
from tonnage.kubernetes.client.controller import Controller
from tonnage.kubernetes.client.informer import Informer, Informers
from tonnage.node.provisioner import state as machine
from tonnage.node.provisioner.claim_group import GroupReserver
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.provisioner.create import hand_over, provision
from tonnage.node.provisioner.rejection import failed_text, report
from tonnage.node.provisioner.reschedule import finish_rollback
from tonnage.node.provisioner.state import CLAIM_TRANSITIONS, ClaimEvent
from tonnage.provisioning.capacity.ledger import ClaimReservation, Stage
from tonnage.provisioning.claims.data_source import SourceOnOtherNode, content_of, filling_of, leave_to_populator
from tonnage.provisioning.claims.node_scope import DriverInfo, provisioner_of
from tonnage.provisioning.claims.provisioning import filled, planned

WORKERS = 100
RETRY_START = 1.0
"""Minimum seconds between two CreateVolume calls for one claim.

What the driver lacks may come at any time, such as the end of a use that blocks a clone."""
FILL_PAUSE = 1.0
"""Seconds between two CreateVolume calls for a volume that is being filled."""
LONG_WAIT = 60.0
"""Seconds after which `tonnage_claims_waiting` counts a waiting claim."""
SHORTEST_WAIT = 0.001
"""Minimum wait in seconds.

A shorter rest of a wait may be below the clock's resolution, and would end at its start."""
_BY_UID = "uid"


class Provisioner:
    """Loop over claims.

    informers: those of the context's claims, volumes and classes.
    """

    def __init__(self, node: NodeContext, informers: Informers) -> None:
        self._node, self._table, self._ledger = node, node.table, node.ledger
        claims = informers.of(CLAIMS, labels=node.scope.selector)
        volumes = informers.of(VOLUMES, labels=node.scope.selector)
        self._informers: tuple[Informer[Any], ...] = (claims, volumes, informers.of(STORAGE_CLASSES))
        self._looked = 0.0  # monotonic time of the last reconcile
        self._ready = False
        self._controller = Controller(
            "provision", self.reconcile, workers=WORKERS, backoff=Backoff(RETRY_START, machine.RETRY_MAX)
        )
        self._groups = GroupReserver(node)
        claims.on_restored(self._controller.retry_now)
        node.readings.on_reading(self._wake_held)
        node.claims.add_index(_BY_UID, lambda claim: (claim.metadata.uid,))
        node.claims.on_change(self._claim_changed)
        node.classes.on_change(lambda _, new: self._observe_all(new.metadata.name) if new is not None else None)
        node.attributes.cache.on_change(self._attributes_changed)
        node.drivers.on_add(lambda _: self._observe_all())
        metrics.WAITING.count(self, node.scope.node, lambda provisioner: provisioner.waiting)

    async def ready(self) -> None:
        """Rebuild the ledger from the claims of this node.

        Capacity may be published afterwards.
        """
        for informer in self._informers:
            await informer.wait_synced()
        self._ready = True
        for claim in self._node.claims:
            self._ledger.version(_version(claim))
        self._ledger.required_version = self._ledger.counted
        self._observe_all()

    async def run(self) -> None:
        """Work until cancelled; call ready() first."""
        await self._controller.run()

    @property
    def busy(self) -> bool:
        """Whether a CreateVolume is under way, or its outcome is not known."""
        return any(state.is_creating for state in self._table.claims.values())

    @property
    def waiting(self) -> Mapping[str, int]:
        """Count claims that have waited here for over a minute, by reason.

        May be called in another thread.
        """
        since = self._looked - LONG_WAIT  # an event loop's clock cannot be read in other threads
        return Counter(self._why_waits(p) for p in self._ledger.unmade if p.seen < since)

    def _why_waits(self, reservation: ClaimReservation) -> str:
        if reservation.stage in (Stage.RESERVED, Stage.CREATING):
            return "driver"
        if reservation.stage is Stage.GUARDED:
            return "capacity"
        state = self._table.claims.get(reservation.uid)
        return state.phase.reason if state is not None else "other"

    def block(self, uid: str) -> bool:
        """Create no volume for the claim of that uid until unblock().

        Returns False if a creation is under way.
        """
        state = self._table.of(uid)
        if self._ledger.get(uid) is not None or not CLAIM_TRANSITIONS.allows(state.phase, ClaimEvent.BLOCK):
            return False
        state.happened(ClaimEvent.BLOCK)
        return True

    def unblock(self, uid: str) -> None:
        """Undo block(). Idempotent."""
        state = self._table.of(uid)
        if state.phase is machine.Phase.BLOCKED:
            state.happened(ClaimEvent.UNBLOCK)
        self._controller.enqueue(uid)

    # Events of claims

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """Handle a changed claim.

        Ignored: results of our own writes, and bound claims.
        """
        if not self._ready:
            return
        if old is not None and (new is None or old.metadata.uid != new.metadata.uid):
            self._left(old.metadata.uid)
        if new is not None:
            self._ledger.version(_version(new))
            self._observe_claim(new)

    def _left(self, uid: str) -> None:
        """Handle a claim without this node, or deleted. Held claims may fit now.

        A creation under way continues until its outcome is known.
        """
        self._ledger.forget(uid)
        self._table.leave(uid, self._node.clock.monotonic())
        self._wake_held()

    def _observe_claim(self, claim: PersistentVolumeClaim) -> None:
        uid = claim.metadata.uid
        state = self._table.of(uid)
        if machine.is_rolled_back(claim) and not claim.metadata.deleting:
            self._controller.enqueue(uid)
            return
        if _is_done(claim):
            self._table.forget(uid)
            return
        if claim.metadata.deleting and not claim.spec.volume_name and not state.is_creating:
            self._ledger.forget(uid)
            return
        if state.is_bound(self._node.clock.monotonic()):
            return
        self._add_to_ledger(claim)
        if not state.is_creating:
            self._controller.enqueue(uid)

    def _add_to_ledger(self, claim: PersistentVolumeClaim) -> None:
        """Add the claim to the ledger if it is for one of our drivers and has no volume."""
        storage_class = self._node.classes.get(claim.spec.storage_class_name or "")
        if claim.spec.volume_name or storage_class is None or self._volume(claim) is not None or is_populated(claim):
            return
        driver = self._node.drivers.get(storage_class.provisioner)
        if driver is None or not self._node.scope.has_claim(claim.metadata):
            return
        try:
            size = requested(claim)
        except InvalidError:
            return  # reconcile reports it
        attempt = names.annotation(claim.metadata.annotations, names.RESCHEDULES)
        source, now = driver.source(storage_class), self._node.clock.monotonic()
        self._ledger.see(claim.metadata.uid, source, size, attempt=attempt, version=_version(claim), now=now)

    def _observe_all(self, storage_class: str = "") -> None:
        """Handle all claims, or those of one class."""
        for claim in list(self._node.claims) if self._ready else ():
            if storage_class in ("", claim.spec.storage_class_name):
                self._observe_claim(claim)

    def _attributes_changed(self, _: VolumeAttributesClass | None, new: VolumeAttributesClass | None) -> None:
        """Handle a class that claims may wait for."""
        for claim in list(self._node.claims) if self._ready and new is not None else ():
            if new is not None and claim.spec.volume_attributes_class_name == new.metadata.name:
                self._observe_claim(claim)

    def _wake_held(self) -> None:
        self._look_again(self._table.held())

    def _look_again(self, uids: Iterable[str]) -> None:
        for uid in uids:
            if not self._table.of(uid).is_creating:
                self._controller.enqueue(uid)

    # Reconcile one claim

    async def reconcile(self, uid: str) -> float | None:
        """Reconcile one claim.

        A claim with this node and without a volume always has a next check.
        """
        self._looked = self._node.clock.monotonic()
        try:
            with self._table.active(uid) as state:
                after = await self._reconcile(uid, state)
        except Exception:
            reservation = self._ledger.get(uid)
            is_reserved = reservation is not None and reservation.stage is Stage.RESERVED
            if not is_reserved and self._waits_here(uid, state):  # else the back-off is the driver's
                self._controller.enqueue(uid, after=machine.LOOK_EVERY)
            raise
        finally:
            if (claim := self._claim(uid)) is None or _is_done(claim):
                self._table.forget(uid)
        if self._waits_here(uid, state):
            return min(machine.LOOK_EVERY, machine.LOOK_EVERY if after is None else after)
        return after

    async def _reconcile(self, uid: str, state: machine.ClaimState) -> float | None:
        """Gather facts and run the next action; return seconds until the next check, None for an event."""
        state.check_fault()
        claim = self._claim(uid)
        state.update(claim)
        state.expire(self._looked)
        facts = machine.Facts(self._looked, claim, self._volume(claim) if claim is not None else None)
        action = machine.step(state, facts)
        if isinstance(action, machine.Examine):
            action = machine.step(state, replace(facts, plan=await self._examine(action.claim, state)))
        match action:
            case machine.RollBack(claim):
                await finish_rollback(self._node, claim)
            case machine.BindVolume(claim, volume):
                return await self._bind(claim, volume)
            case machine.Reject(claim, event, message, seconds):
                self._ledger.reject([uid])  # other claims may have the capacity meanwhile
                state.happened(event)
                await report(self._node, claim, message)
                return seconds
            case machine.Reschedule(creation, reason, message):
                self._ledger.reject([uid])
                state.go_away(reason)
                if message:
                    await report(self._node, creation.claim, message)
                return await self._reserve(uid, state, creation)
            case machine.ReserveGroup(creation):
                return await self._reserve(uid, state, creation)
            case machine.Create(creation):
                return await self._create(uid, state, creation)
        return None

    async def _bind(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> float | None:
        if left := self._table.bindings.left(claim.metadata.uid, self._looked):
            return left
        await hand_over(self._node, claim, volume)
        return None

    async def _examine(self, claim: PersistentVolumeClaim, state: machine.ClaimState) -> machine.Plan:
        """Plan the claim's request.

        The data source is read live, and checked for this node.

        Raises: NotFoundError without the claim's class, ApiError, UnavailableError.
        """
        driver = self._driver(claim)
        if driver is None:
            return machine.Plan()
        if is_populated(claim):
            if state.phase is not machine.Phase.POPULATED:
                state.happened(ClaimEvent.LEFT_TO_POPULATOR)
                leave_to_populator(self._node.events, claim)
            return machine.Plan()
        name = claim.spec.storage_class_name or ""
        storage_class = self._node.classes.get(name)
        if storage_class is None:
            raise NotFoundError(f"claim {claim.key}: there is no StorageClass {name!r}")
        if not driver.serves(storage_class):
            return machine.Plan()
        try:
            request = await planned(claim, storage_class, driver, self._node.scope, self._node.attributes)
            content = await self._content(claim, driver)
            request = filled(request, await filling_of(self._node.client, claim)) if is_content(claim) else request
        except InvalidError as reason:
            return machine.Plan(fault=failed_text(name, reason))
        except PreconditionError as reason:
            return machine.Plan(not_ready=failed_text(name, reason))
        if isinstance(content, SourceOnOtherNode):
            return machine.Plan(machine.Creation(claim, driver, storage_class, request), away=content.reason)
        creation = machine.Creation(claim, driver, storage_class, replace(request, content=content))
        if driver.publishes_ahead(storage_class):
            return machine.Plan(creation, away="", report=failed_text(name, names.AHEAD))
        return machine.Plan(creation)

    async def _content(
        self, claim: PersistentVolumeClaim, driver: DriverInfo
    ) -> ContentSource | SourceOnOtherNode | None:
        if reference(claim) is None:  # the usual case
            return None
        return await content_of(self._node.client, claim, driver, self._node.scope.label)

    async def _reserve(self, uid: str, state: machine.ClaimState, creation: machine.Creation) -> float | None:
        """Reserve the claim's group, then create the volume."""
        outcome = await self._groups.reserve(creation)
        if isinstance(outcome, machine.Wait):
            return max(outcome.seconds, SHORTEST_WAIT)
        self._look_again(u for u in outcome.uids if u != uid)
        if state.phase is machine.Phase.BLOCKED:  # it left and came back meanwhile; the end of the sweep enqueues it
            return None
        state.begin(creation)
        return await self._create(uid, state, creation)

    async def _create(self, uid: str, state: machine.ClaimState, creation: machine.Creation) -> float | None:
        await provision(self._node, uid, creation)
        if state.phase is machine.Phase.FILLING:
            return FILL_PAUSE
        if state.hold is not None:  # the driver had insufficient storage: the group is rescheduled
            self._controller.enqueue(uid)
        return machine.RETRY_MAX if state.infeasible is not None else None

    def _driver(self, claim: PersistentVolumeClaim) -> DriverInfo | None:
        """Return the driver that shall provision the claim, None if the claim does not wait for this node."""
        if claim.spec.volume_name or claim.metadata.deleting or not self._node.scope.has_claim(claim.metadata):
            return None
        return self._node.drivers.get(provisioner_of(claim))

    def _waits_here(self, uid: str, state: machine.ClaimState) -> bool:
        """Return whether a claim waits for a volume here, and none is being created."""
        claim = self._claim(uid)
        if claim is None or state.is_creating or is_populated(claim):
            return False
        return self._driver(claim) is not None

    def _claim(self, uid: str) -> PersistentVolumeClaim | None:
        return next(iter(self._node.claims.by(_BY_UID, uid)), None)

    def _volume(self, claim: PersistentVolumeClaim) -> PersistentVolume | None:
        return self._node.volumes.get(names.volume_name(claim.metadata.uid))


def _is_done(claim: PersistentVolumeClaim) -> bool:
    """Return whether the binding is complete."""
    return bool(claim.spec.volume_name) and is_bound(claim) and claim.status.phase == "Bound"


def _version(claim: PersistentVolumeClaim) -> int:
    return whole(claim.metadata.resource_version) or 0
