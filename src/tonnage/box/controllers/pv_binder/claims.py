"""PV binder, claims: unbound, pre-bound to a PV, bound (pkg/controller/volume/persistentvolume)."""

from __future__ import annotations

from typing import Any

from tonnage.api import names
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS, VOLUMES
from tonnage.api.matching import class_name, default_class, is_claimed_by, is_delayed, mismatch
from tonnage.api.storage import StorageClass
from tonnage.box.controllers.pv_binder.state import BinderView
from tonnage.claims.bind import change, find_best
from tonnage.errors import ApiNotFound, Precondition
from tonnage.kube.events import NORMAL, WARNING
from tonnage.kube.indexes import PODS_BY_CLAIM

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
        """Reconcile the claim by one step; returns the seconds until the next. Raises ApiError, Unavailable."""
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
        await self._pending(claim)
        if delayed and not selected:
            return self._wait_for_consumer(claim)
        if class_name(claim):
            return await self._provision(claim, storage_class)
        self._view.tell(claim, NORMAL, "FailedBinding", _NO_CLASS)
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
            self._view.tell(claim, NORMAL, "WaitForFirstConsumer", _NO_CONSUMER)
        else:
            pods = f"pod {waiting[0]}" if len(waiting) == 1 else f"pods {','.join(waiting)}"
            self._view.tell(claim, NORMAL, "WaitForPodScheduled", f"waiting for {pods} to be scheduled")
        return None

    async def _provision(self, claim: PersistentVolumeClaim, storage_class: StorageClass | None) -> float | None:
        view = self._view
        if storage_class is None:
            return self._without_class(claim)
        provisioner = storage_class.provisioner
        if provisioner.startswith("kubernetes.io/"):
            view.tell(claim, WARNING, "ProvisioningFailed", f"no volume plugin matched name: {provisioner}")
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
        view.tell(claim, NORMAL, "ExternalProvisioning", message)
        return None

    def _without_class(self, claim: PersistentVolumeClaim) -> float | None:
        """PersistentVolumes need no StorageClass object: one may come with the claim, or be about to be Available."""
        view, name = self._view, class_name(claim)
        if left := view.waits.left(claim.metadata.uid, view.quiet):
            return left
        if any(volume.spec.storage_class_name == name for volume in view.volumes):
            text = f"no persistent volume of class {name} is available for this claim, and no StorageClass makes one"
            view.tell(claim, NORMAL, "FailedBinding", text)
        else:
            view.tell(claim, WARNING, "ProvisioningFailed", f'storageclass.storage.k8s.io "{name}" not found')
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
            await self._pending(claim)
            return None
        if is_claimed_by(volume, claim):
            return await view.bind(claim, volume)
        if volume.spec.claim_ref is None:
            if not (why := mismatch(volume, claim)):
                return await view.bind(claim, volume)
            view.tell(claim, WARNING, "VolumeMismatch", f'Cannot bind to requested volume "{name}": {why}')
        elif names.BOUND_BY_CONTROLLER in claim.metadata.annotations:
            ref = volume.spec.claim_ref
            raise Precondition(
                f'invalid binding of claim "{claim.key}" to volume "{name}": '
                f'volume already claimed by "{ref.namespace}/{ref.name}"'
            )
        else:
            view.tell(claim, WARNING, "FailedBinding", f'volume "{name}" already bound to a different claim.')
        await self._pending(claim)
        return None

    async def _bound(self, claim: PersistentVolumeClaim) -> float | None:
        """The claim was bound once: it still has its volume, or it is lost."""
        name = claim.spec.volume_name
        if not name:
            await self._lose(claim, "ClaimLost", _LOST_REFERENCE)
            return None
        volume = self._view.volumes.get(name)
        if volume is None:
            try:  # the claim may be known before its volume is
                await self._view.client.get(VOLUMES, name)
            except ApiNotFound:
                await self._lose(claim, "ClaimLost", _LOST_VOLUME)
            return None
        if volume.spec.claim_ref is not None and not is_claimed_by(volume, claim):
            await self._lose(claim, "ClaimMisbound", _MISBOUND)
            return None
        return await self._view.bind(claim, volume)

    async def _lose(self, claim: PersistentVolumeClaim, reason: str, message: str) -> None:
        if claim.status.phase == "Lost":
            return
        self._view.tell(claim, WARNING, reason, message)
        await self._set_status(claim, "Lost")

    async def _pending(self, claim: PersistentVolumeClaim) -> None:
        if claim.status.phase != "Pending":
            await self._set_status(claim, "Pending")

    async def _set_status(self, claim: PersistentVolumeClaim, phase: str) -> None:
        def patch(now: PersistentVolumeClaim) -> dict[str, Any] | None:
            same = now.status.phase == phase
            return None if same else {"status": {"phase": phase, "accessModes": None, "capacity": None}}

        await change(self._view.client, CLAIMS, claim, patch, subresource="status")


def _annotate(claim: PersistentVolumeClaim, marks: dict[str, str]) -> dict[str, Any] | None:
    missing = {key: value for key, value in marks.items() if claim.metadata.annotations.get(key) != value}
    return {"metadata": {"annotations": missing}} if missing else None
