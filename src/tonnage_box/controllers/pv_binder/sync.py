"""PV binder, one step: of a claim (unbound, pre-bound to a PV, bound) or of a PV (available, bound, released, failed).

Source: pkg/controller/volume/persistentvolume. Steps read caches, and the server where the cache may be behind.
"""

from __future__ import annotations

import sys
from typing import Any

from tonnage.base.aio.backoff import Rewrites
from tonnage.base.aio.clock import Clock
from tonnage.base.errors import ApiNotFoundError, PreconditionError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, CSI_DRIVERS, STORAGE_CLASSES, VOLUMES
from tonnage.kubernetes.api.matching import class_name, default_class, is_claimed_by, is_delayed, mismatch
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.events import NORMAL, WARNING, EventRecorder
from tonnage.kubernetes.client.indexes import (
    PODS_BY_CLAIM,
    VOLUMES_BY_CLAIM,
    candidates,
    claims,
    pods_by_claim,
    volumes,
)
from tonnage.kubernetes.client.informer import Informers
from tonnage.provisioning.claims.bind import bind, change, find, find_best, is_complete, set_phase
from tonnage.provisioning.claims.timers import Waits
from tonnage_box.controllers.tombstones import Tombstones

_STALE_SECONDS = 0.05


class BinderView:
    """Caches, granted waits, and own writes that the caches do not show yet. grace, quiet: seconds."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder,
        clock: Clock,
        *,
        grace: float,
        quiet: float,
    ) -> None:
        self.client, self.events, self.clock, self.waits = client, events, clock, Waits(clock)
        self.claims, self.volumes = claims(informers).cache, volumes(informers).cache
        self.pods, self.drivers = pods_by_claim(informers).cache, informers.of(CSI_DRIVERS).cache
        self.classes = informers.of(STORAGE_CLASSES).cache
        self.grace, self.quiet = grace, quiet
        self.taken: dict[str, int] = {}
        """Volumes that we gave away -> the resourceVersion from which the cache knows it."""
        self.rewrites = Rewrites()
        """Phases and bindings that we wrote: an agent that sees another state may undo them."""
        self.gone = Tombstones()
        """uids of claims whose deletion the watch has reported."""

    def emit_once(self, claim: PersistentVolumeClaim, type_: str, reason: str, message: str) -> None:
        """Emit an Event on the claim, unless it repeats the last one."""
        if self.waits.news(claim.metadata.uid, f"{reason}: {message}"):
            self.events.record(refer(CLAIMS, claim), type_, reason, message)

    def candidates(self, claim: PersistentVolumeClaim) -> list[PersistentVolume]:
        """PVs that may serve the claim, without those that are bound, as far as the cache shows."""
        found = candidates(self.volumes, claim)
        if not self.taken:
            return found
        return [v for v in found if v.metadata.version >= self.taken.get(v.metadata.name, 0)]

    def time_left_to_agent(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> float:
        """Seconds left in which the agent that made the volume for this claim may bind it itself.

        0 for any other pair: an agent binds no volume that was there before the claim, or made for another claim.
        """
        notes = volume.metadata.annotations
        by_agent = names.NODE_LABEL in volume.metadata.labels and names.PROVISIONED_BY in notes
        if not by_agent or volume.metadata.name != names.volume_name(claim.metadata.uid):
            return 0.0
        return self.waits.left(volume.metadata.uid, self.grace)

    def left_to_agent(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> float:
        """Seconds during which the agent that made the volume may bind the pair; 0: reconcile it now."""
        if volume.spec.claim_ref is None or volume.spec.claim_ref.uid != claim.metadata.uid:
            return 0.0
        if claim.spec.volume_name not in ("", volume.metadata.name) or volume.status.phase in ("Released", "Failed"):
            return 0.0
        return self.time_left_to_agent(claim, volume)

    def only_waits(self, claim: PersistentVolumeClaim) -> float:
        """Seconds until an Event is due on a claim that can only wait; 0: reconcile it now."""
        notes, storage_class = claim.metadata.annotations, self.classes.get(class_name(claim))
        if storage_class is None or not is_delayed(claim, storage_class) or claim.status.phase != "Pending":
            return 0.0
        if names.BIND_COMPLETED in notes or self.volumes.by(VOLUMES_BY_CLAIM, claim.key):
            return 0.0
        sent = names.SELECTED_NODE in notes
        if sent and notes.get(names.STORAGE_PROVISIONER) != storage_class.provisioner:
            return 0.0
        return self.waits.left(claim.metadata.uid, self.quiet)

    async def bind(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> float | None:
        """Bind claim and PV unless they are bound; returns the seconds until the next step.

        Raises: ApiError, UnavailableError.
        """
        if is_complete(claim, volume):
            self.settled(claim, volume)
            return None
        if left := self.time_left_to_agent(claim, volume):
            return left
        name = volume.metadata.name
        pair, now = (claim.metadata.uid, name), self.clock.monotonic()
        if left := self.rewrites.left(pair, now):
            return left
        self.taken[name] = sys.maxsize
        try:
            _, bound = await bind(self.client, claim, volume, clock=self.clock)
        except PreconditionError:  # another writer was faster, and the cache will show it: choose again
            self.taken.pop(name, None)
            return _STALE_SECONDS
        except BaseException:
            self.taken.pop(name, None)
            raise
        self.rewrites.made(pair, now)
        self.taken[name] = bound.metadata.version
        self.volume_seen(name, self.volumes.get(name))
        return None

    def settled(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        """Forget the waits of a bound pair. Idempotent."""
        self.waits.over(claim.metadata.uid)
        self.waits.over(volume.metadata.uid)

    def volume_seen(self, name: str, volume: PersistentVolume | None) -> None:
        """The cache has this volume now (None: it has it no more)."""
        if volume is None or volume.metadata.version >= self.taken.get(name, sys.maxsize):
            self.taken.pop(name, None)


_LOST_REFERENCE = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"
_LOST_VOLUME = "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
_MISBOUND = "Two claims are bound to the same volume, this one is bound incorrectly"
_NO_CLASS = "no persistent volumes available for this claim and no storage class is set"
_NO_CONSUMER = "waiting for first consumer to be created before binding"


class ClaimSync:
    """Reconciles one claim."""

    def __init__(self, view: BinderView) -> None:
        self._view = view

    async def sync(self, claim: PersistentVolumeClaim) -> float | None:
        """Reconcile the claim by one step; returns the seconds until the next. Raises: ApiError, UnavailableError."""
        if names.BIND_COMPLETED in claim.metadata.annotations:
            return await self._bound(claim)
        if claim.metadata.deleting:
            return None
        return await (self._named(claim) if claim.spec.volume_name else self._unbound(claim))

    async def _unbound(self, claim: PersistentVolumeClaim) -> float | None:
        storage_class = self._view.classes.get(class_name(claim)) if class_name(claim) else None
        selected = names.SELECTED_NODE in claim.metadata.annotations
        delayed = is_delayed(claim, storage_class)
        # A claim that was sent to a node gets its volume there: taking a free one too would leave one over.
        best = find_best(claim, self._view.candidates(claim), delayed=delayed or selected)
        if best is not None:
            return await self._view.bind(claim, best)
        if claim.spec.storage_class_name is None and await self._give_class(claim):
            return None
        if left := await self._set_status(claim, "Pending"):
            return left
        if delayed and not selected:
            return self._wait_for_consumer(claim)
        if class_name(claim):
            return await self._provision(claim, storage_class)
        self._view.emit_once(claim, NORMAL, "FailedBinding", _NO_CLASS)
        return None

    async def _give_class(self, claim: PersistentVolumeClaim) -> bool:
        chosen = default_class(self._view.classes)
        if chosen is None:
            return False

        def patch(now: PersistentVolumeClaim) -> dict[str, Any] | None:
            taken = now.spec.storage_class_name is not None
            return None if taken else {"spec": {"storageClassName": chosen.metadata.name}}

        await change(self._view.client, CLAIMS, claim, patch)
        return True

    def _wait_for_consumer(self, claim: PersistentVolumeClaim) -> float | None:
        if left := self._view.waits.left(claim.metadata.uid, self._view.quiet):
            return left
        users = self._view.pods.by(PODS_BY_CLAIM, claim.key)
        waiting = [p.metadata.name for p in users if not p.spec.node_name and not p.terminated]
        if not waiting:
            self._view.emit_once(claim, NORMAL, "WaitForFirstConsumer", _NO_CONSUMER)
        else:
            pods = f"pod {waiting[0]}" if len(waiting) == 1 else f"pods {','.join(waiting)}"
            self._view.emit_once(claim, NORMAL, "WaitForPodScheduled", f"waiting for {pods} to be scheduled")
        return None

    async def _provision(self, claim: PersistentVolumeClaim, storage_class: StorageClass | None) -> float | None:
        view = self._view
        if storage_class is None:
            return self._without_class(claim)
        provisioner = storage_class.provisioner
        if provisioner.startswith("kubernetes.io/"):
            view.emit_once(claim, WARNING, "ProvisioningFailed", f"no volume plugin matched name: {provisioner}")
            return None
        left = view.waits.left(claim.metadata.uid, view.quiet)
        if left and self._placed_by_capacity(claim, storage_class):
            return left  # the scheduler writes these annotations in the same patch as the node
        marks = {names.STORAGE_PROVISIONER: provisioner, names.BETA_STORAGE_PROVISIONER: provisioner}
        await change(view.client, CLAIMS, claim, lambda now: _annotate(now, marks))
        if left:
            return left
        message = (
            f"Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by "
            "the system administrator. If volume creation is delayed, please verify that the provisioner is running "
            "and correctly registered."
        )
        view.emit_once(claim, NORMAL, "ExternalProvisioning", message)
        return None

    def _without_class(self, claim: PersistentVolumeClaim) -> float | None:
        """PersistentVolumes need no StorageClass object: one may come with the claim, or be about to be Available."""
        view, name = self._view, class_name(claim)
        if left := view.waits.left(claim.metadata.uid, view.quiet):
            return left
        if any(volume.spec.storage_class_name == name for volume in view.volumes):
            text = f"no persistent volume of class {name} is available for this claim, and no StorageClass makes one"
            view.emit_once(claim, NORMAL, "FailedBinding", text)
        else:
            view.emit_once(claim, WARNING, "ProvisioningFailed", f'storageclass.storage.k8s.io "{name}" not found')
        return None

    def _placed_by_capacity(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> bool:
        if names.SELECTED_NODE in claim.metadata.annotations:
            return False
        driver = self._view.drivers.get(storage_class.provisioner)
        return driver is not None and driver.spec.storage_capacity

    async def _named(self, claim: PersistentVolumeClaim) -> float | None:
        """The claim says which volume it wants."""
        view, name = self._view, claim.spec.volume_name
        volume = view.volumes.get(name)
        if volume is None:
            return await self._set_status(claim, "Pending")
        if is_claimed_by(volume, claim):
            return await view.bind(claim, volume)
        if volume.spec.claim_ref is None:
            if not (why := mismatch(volume, claim)):
                return await view.bind(claim, volume)
            view.emit_once(claim, WARNING, "VolumeMismatch", f'Cannot bind to requested volume "{name}": {why}')
        elif names.BOUND_BY_CONTROLLER in claim.metadata.annotations:
            ref = volume.spec.claim_ref
            raise PreconditionError(
                f'invalid binding of claim "{claim.key}" to volume "{name}": '
                f'volume already claimed by "{ref.namespace}/{ref.name}"'
            )
        else:
            view.emit_once(claim, WARNING, "FailedBinding", f'volume "{name}" already bound to a different claim.')
        return await self._set_status(claim, "Pending")

    async def _bound(self, claim: PersistentVolumeClaim) -> float | None:
        """The claim was bound once: it still has its volume, or it is lost."""
        name = claim.spec.volume_name
        if not name:
            return await self._lose(claim, "ClaimLost", _LOST_REFERENCE)
        volume = self._view.volumes.get(name)
        if volume is None:
            if await find(self._view.client, VOLUMES, name) is None:  # the claim may be known before its volume is
                return await self._lose(claim, "ClaimLost", _LOST_VOLUME)
            return None
        if volume.spec.claim_ref is not None and not is_claimed_by(volume, claim):
            return await self._lose(claim, "ClaimMisbound", _MISBOUND)
        return await self._view.bind(claim, volume)

    async def _lose(self, claim: PersistentVolumeClaim, reason: str, message: str) -> float | None:
        if claim.status.phase == "Lost":
            return None
        self._view.emit_once(claim, WARNING, reason, message)
        return await self._set_status(claim, "Lost")

    async def _set_status(self, claim: PersistentVolumeClaim, phase: str) -> float | None:
        """Set the phase, or return the seconds until then: it was set, and somebody undid that."""
        if claim.status.phase == phase:
            return None
        wanted, moment = (claim.metadata.uid, phase), self._view.clock.monotonic()
        if left := self._view.rewrites.left(wanted, moment):
            return left

        def patch(now: PersistentVolumeClaim) -> dict[str, Any] | None:
            same = now.status.phase == phase
            return None if same else {"status": {"phase": phase, "accessModes": None, "capacity": None}}

        await change(self._view.client, CLAIMS, claim, patch, subresource="status")
        self._view.rewrites.made(wanted, moment)
        return None


def _annotate(claim: PersistentVolumeClaim, marks: dict[str, str]) -> dict[str, Any] | None:
    missing = {key: value for key, value in marks.items() if claim.metadata.annotations.get(key) != value}
    return {"metadata": {"annotations": missing}} if missing else None


_OVER = ("Released", "Failed")


class VolumeSync:
    """Reconciles one PV."""

    def __init__(self, view: BinderView) -> None:
        self._view = view

    async def sync(self, volume: PersistentVolume) -> float | None:
        """Reconcile the PV by one step; returns the seconds until the next. Raises: ApiError, UnavailableError."""
        ref = volume.spec.claim_ref
        if ref is None or not ref.uid:
            return None if volume.metadata.deleting else await self._phase(volume, "Available")
        claim = await self._claim(volume)
        if claim is None:
            return await self._release(volume)
        if not claim.spec.volume_name:
            return None  # binding is the claim's step, and the volume's event queued the claim
        if claim.spec.volume_name != volume.metadata.name:
            return await self._unneeded(volume)
        if volume.status.phase != "Bound" and (left := self._view.time_left_to_agent(claim, volume)):
            return left
        return await self._phase(volume, "Bound")

    async def _claim(self, volume: PersistentVolume) -> PersistentVolumeClaim | None:
        """The claim that the volume is for: cached, else live; None when it is gone or another has its name."""
        ref = volume.spec.claim_ref
        assert ref is not None
        claim = self._view.claims.get(f"{ref.namespace}/{ref.name}")
        if claim is not None and claim.metadata.uid == ref.uid:
            return claim
        if volume.status.phase in _OVER or ref.uid in self._view.gone:
            return None
        claim = await find(self._view.client, CLAIMS, ref.name, ref.namespace)
        return claim if claim is not None and claim.metadata.uid == ref.uid else None

    async def _release(self, volume: PersistentVolume) -> float | None:
        if volume.status.phase not in _OVER:
            return await self._phase(volume, "Released")  # that change brings it here again
        match volume.spec.persistent_volume_reclaim_policy:
            case "Retain" | "":
                return None
            case "Delete" if _deleted_by_its_driver(volume):
                return None  # the provisioner sees that it is Released
            case "Delete":
                message = (
                    f'error getting deleter volume plugin for volume "{volume.metadata.name}": '
                    "no deletable volume plugin matched"
                )
                return await self._fail(volume, "VolumeFailedDelete", message)
            case "Recycle":
                return await self._fail(volume, "VolumeFailedRecycle", "No recycler plugin found for the volume!")
        return await self._fail(volume, "VolumeUnknownReclaimPolicy", "Volume has an unrecognized reclaim policy")

    async def _unneeded(self, volume: PersistentVolume) -> float | None:
        """The claim has another PV: delete a PV that was provisioned for it, free one that was chosen for it."""
        if _deleted_by_its_driver(volume) and volume.spec.persistent_volume_reclaim_policy == "Delete":
            return await self._release(volume)
        by_controller = names.BOUND_BY_CONTROLLER in volume.metadata.annotations
        uid = volume.spec.claim_ref.uid if volume.spec.claim_ref else ""

        def unbind(now: PersistentVolume) -> dict[str, Any] | None:
            if now.spec.claim_ref is None or now.spec.claim_ref.uid != uid:
                return None
            if by_controller:
                return {"metadata": {"annotations": {names.BOUND_BY_CONTROLLER: None}}, "spec": {"claimRef": None}}
            return {"spec": {"claimRef": {"uid": None, "resourceVersion": None}}}

        free = await change(self._view.client, VOLUMES, volume, unbind)
        return await self._phase(free, "Available")

    async def _fail(self, volume: PersistentVolume, reason: str, message: str) -> float | None:
        if volume.status.phase == "Failed":
            return None
        self._view.events.record(refer(VOLUMES, volume), WARNING, reason, message)
        return await self._phase(volume, "Failed", message)

    async def _phase(self, volume: PersistentVolume, phase: str, message: str = "") -> float | None:
        """Set the phase, or return the seconds until then: it was set, and somebody undid that."""
        if volume.status.phase == phase:
            return None
        wanted, moment = (volume.metadata.uid, phase), self._view.clock.monotonic()
        if left := self._view.rewrites.left(wanted, moment):
            return left
        try:
            await set_phase(self._view.client, volume, phase, message, clock=self._view.clock)
            self._view.rewrites.made(wanted, moment)
        except ApiNotFoundError:
            self._view.waits.over(volume.metadata.uid)
        return None


def _deleted_by_its_driver(volume: PersistentVolume) -> bool:
    provisioner = volume.metadata.annotations.get(names.PROVISIONED_BY, "")
    return bool(provisioner) and not provisioner.startswith("kubernetes.io/")
