"""PV binder, volumes: available, bound, released, failed (pkg/controller/volume/persistentvolume)."""

from __future__ import annotations

from typing import Any

from tonnage.api import names
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS, VOLUMES
from tonnage.box.controllers.pv_binder.state import BinderView
from tonnage.claims.bind import change, set_phase
from tonnage.errors import ApiNotFound
from tonnage.kube.client import refer
from tonnage.kube.events import WARNING

_OVER = ("Released", "Failed")


class VolumeSync:
    """Reconciles one PV."""

    def __init__(self, view: BinderView) -> None:
        self._view = view

    async def sync(self, volume: PersistentVolume) -> float | None:
        """Reconcile the PV by one step; returns the seconds until the next. Raises ApiError, Unavailable."""
        ref = volume.spec.claim_ref
        if ref is None or not ref.uid:
            if not volume.metadata.deleting:
                await self._phase(volume, "Available")
            return None
        claim = await self._claim(volume)
        if claim is None:
            await self._release(volume)
            return None
        if not claim.spec.volume_name:
            return None  # binding is the claim's step, and the volume's event queued the claim
        if claim.spec.volume_name != volume.metadata.name:
            await self._unneeded(volume)
            return None
        if volume.status.phase != "Bound" and (left := self._view.patience(claim, volume)):
            return left
        await self._phase(volume, "Bound")
        return None

    async def _claim(self, volume: PersistentVolume) -> PersistentVolumeClaim | None:
        """The claim that the volume is for: cached, else live; None when it is gone or another has its name."""
        ref = volume.spec.claim_ref
        assert ref is not None
        claim = self._view.claims.get(f"{ref.namespace}/{ref.name}")
        if claim is not None and claim.metadata.uid == ref.uid:
            return claim
        if volume.status.phase in _OVER or ref.uid in self._view.gone:
            return None
        try:
            claim = await self._view.client.get(CLAIMS, ref.name, ref.namespace)
        except ApiNotFound:
            return None
        return claim if claim.metadata.uid == ref.uid else None

    async def _release(self, volume: PersistentVolume) -> None:
        if volume.status.phase not in _OVER:
            await self._phase(volume, "Released")
            return  # that change brings it here again
        match volume.spec.persistent_volume_reclaim_policy:
            case "Retain" | "":
                return
            case "Delete" if _deleted_by_its_driver(volume):
                return  # the provisioner sees that it is Released
            case "Delete":
                message = (
                    f'error getting deleter volume plugin for volume "{volume.metadata.name}": '
                    "no deletable volume plugin matched"
                )
                await self._fail(volume, "VolumeFailedDelete", message)
            case "Recycle":
                await self._fail(volume, "VolumeFailedRecycle", "No recycler plugin found for the volume!")
            case _:
                await self._fail(volume, "VolumeUnknownReclaimPolicy", "Volume has an unrecognized reclaim policy")

    async def _unneeded(self, volume: PersistentVolume) -> None:
        """The claim has another PV: delete a PV that was provisioned for it, free one that was chosen for it."""
        if _deleted_by_its_driver(volume) and volume.spec.persistent_volume_reclaim_policy == "Delete":
            await self._release(volume)
            return
        by_controller = names.BOUND_BY_CONTROLLER in volume.metadata.annotations
        uid = volume.spec.claim_ref.uid if volume.spec.claim_ref else ""

        def unbind(now: PersistentVolume) -> dict[str, Any] | None:
            if now.spec.claim_ref is None or now.spec.claim_ref.uid != uid:
                return None
            if by_controller:
                return {"metadata": {"annotations": {names.BOUND_BY_CONTROLLER: None}}, "spec": {"claimRef": None}}
            return {"spec": {"claimRef": {"uid": None, "resourceVersion": None}}}

        free = await change(self._view.client, VOLUMES, volume, unbind)
        await self._phase(free, "Available")

    async def _fail(self, volume: PersistentVolume, reason: str, message: str) -> None:
        if volume.status.phase != "Failed":
            self._view.events.record(refer(VOLUMES, volume), WARNING, reason, message)
            await self._phase(volume, "Failed", message)

    async def _phase(self, volume: PersistentVolume, phase: str, message: str = "") -> None:
        if volume.status.phase != phase:
            try:
                await set_phase(self._view.client, volume, phase, message, clock=self._view.clock)
            except ApiNotFound:
                self._view.waits.over(volume.metadata.uid)


def _deleted_by_its_driver(volume: PersistentVolume) -> bool:
    provisioner = volume.metadata.annotations.get(names.PROVISIONED_BY, "")
    return bool(provisioner) and not provisioner.startswith("kubernetes.io/")
