"""Selected-node of a claim, and the binding of a claim and a PV.

The scheduler's patch sets selected-node; the agent counts on the claim how often it was rescheduled.

The writes are the PV controller's (pkg/controller/volume), in its order: the PV's claimRef, its phase, the claim's
volumeName with bind-completed, the claim's status. Each is guarded by resourceVersion and skipped if it is done. If
somebody else makes the same writes, the second writer gets a conflict, reads again and finds them done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tonnage.base.aio.clock import Clock, RealClock, rfc3339
from tonnage.base.errors import ApiConflictError, ApiNotFoundError, PreconditionError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, VOLUMES, Kind
from tonnage.kubernetes.api.matching import capacity, is_bound, is_claimed_by, is_free_for, mismatch
from tonnage.kubernetes.api.meta import KubeObject, to_builtins
from tonnage.kubernetes.api.number import whole
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.client import Client, refer

T = TypeVar("T", bound=KubeObject)
Change = Callable[[T], dict[str, Any] | None]
_ATTEMPTS = 5


async def bind(
    client: Client, claim: PersistentVolumeClaim, volume: PersistentVolume, *, clock: Clock | None = None
) -> tuple[PersistentVolumeClaim, PersistentVolume]:
    """Bind claim and PV; return both as they are then. Idempotent.

    A retry after a crash at any point completes it. For a PV that was created for this claim (complete claimRef) it
    makes 3 writes, else 4; none for what is done. claim and volume may be stale.

    Raises: PreconditionError when the two cannot be bound (the PV has another claim, the claim another PV, one is being
    deleted); ApiNotFoundError when one is gone; ApiConflictError when one was created again under the same name or
    others changed it repeatedly.
    """
    volume = await change(client, VOLUMES, volume, lambda now: _claim_reference(now, claim))
    volume = await change(client, VOLUMES, volume, lambda now: _bound_phase(now, claim, clock), subresource="status")
    claim = await change(client, CLAIMS, claim, lambda now: _completion(now, volume))
    claim = await change(client, CLAIMS, claim, lambda now: _bound_status(now, volume), subresource="status")
    return claim, volume


def is_complete(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    """Return whether bind(claim, volume) has nothing left to do."""
    ref = volume.spec.claim_ref
    return (
        ref is not None
        and ref.uid == claim.metadata.uid
        and volume.status.phase == "Bound"
        and claim.spec.volume_name == volume.metadata.name
        and is_bound(claim)
        and claim.status.phase == "Bound"
        and claim.status.access_modes == volume.spec.access_modes
    )


async def set_phase(
    client: Client, volume: PersistentVolume, phase: str, message: str = "", *, clock: Clock | None = None
) -> PersistentVolume:
    """Set the PV's phase in one write, if it differs. Idempotent.

    Raises: ApiNotFoundError; ApiConflictError when the PV has changed: the phase may be wrong now.
    """
    if volume.status.phase == phase:
        return volume
    status = _phase(phase, clock) | {"message": message or None}
    version = volume.metadata.resource_version
    return await client.patch(
        VOLUMES, volume.metadata.name, {"status": status}, subresource="status", resource_version=version
    )


def _phase(phase: str, clock: Clock | None) -> dict[str, Any]:
    return {"phase": phase, "lastPhaseTransitionTime": rfc3339((clock or RealClock()).time())}


async def change(client: Client, kind: Kind[T], obj: T, patch: Change[T], *, subresource: str = "") -> T:
    """Merge-patch obj by patch(obj), as long as it is the same object.

    patch returns None for nothing to do. If obj was stale, it is read and patch is called again.

    Raises: ApiNotFoundError; ApiConflictError when the object was created again (another uid) or changed under each of
    5 attempts.
    """
    meta = obj.metadata
    for attempt in range(_ATTEMPTS):
        body = patch(obj)
        if body is None:
            return obj
        version = obj.metadata.resource_version
        try:
            return await client.patch(
                kind, meta.name, body, meta.namespace, subresource=subresource, resource_version=version
            )
        except ApiConflictError:
            obj = await client.get(kind, meta.name, meta.namespace)
            if obj.metadata.uid != meta.uid or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


async def find(client: Client, kind: Kind[T], name: str, namespace: str = "") -> T | None:
    """Return an object by a live read, None if it is gone."""
    try:
        return await client.get(kind, name, namespace)
    except ApiNotFoundError:
        return None


def find_best(
    claim: PersistentVolumeClaim, candidates: Iterable[PersistentVolume], *, delayed: bool
) -> PersistentVolume | None:
    """Return the PV for a claim: one claimed for it, else the smallest.

    A late-binding claim gets only a PV claimed for it; the scheduler chooses among free ones.
    """
    volumes = list(candidates)
    for volume in volumes:
        if is_claimed_by(volume, claim) and not mismatch(volume, claim):
            return volume
    free = (volume for volume in volumes if not delayed and is_free_for(volume, claim))
    return min(free, key=lambda volume: (capacity(volume), volume.metadata.name), default=None)


def _claim_reference(volume: PersistentVolume, claim: PersistentVolumeClaim) -> dict[str, Any] | None:
    ref = volume.spec.claim_ref
    if ref is not None:
        _check_reference(volume, claim)
        if ref.uid:
            return None
    _check_alive(volume, claim)
    return claim_reference(volume, claim)


def claim_reference(volume: PersistentVolume, claim: PersistentVolumeClaim) -> dict[str, Any]:
    """Return the merge patch of a PV's claimRef; empty if it is set.

    A PV that a person assigned to the claim gets the missing uid, but not the binder's mark: an unbind may clear that.
    """
    ref = volume.spec.claim_ref
    if ref is not None and ref.uid == claim.metadata.uid:
        return {}
    marks = {"metadata": {"annotations": {names.BOUND_BY_CONTROLLER: "yes"}}} if ref is None else {}
    return {"spec": {"claimRef": to_builtins(refer(CLAIMS, claim))}, **marks}


def _check_reference(volume: PersistentVolume, claim: PersistentVolumeClaim) -> None:
    if not is_claimed_by(volume, claim):
        ref = volume.spec.claim_ref
        owner = f"claim {ref.namespace}/{ref.name} uid {ref.uid}" if ref else "no claim any more"
        raise PreconditionError(
            f"volume {volume.metadata.name} belongs to {owner}, "
            f"it cannot be bound to claim {claim.key} uid {claim.metadata.uid}"
        )


def _bound_phase(volume: PersistentVolume, claim: PersistentVolumeClaim, clock: Clock | None) -> dict[str, Any] | None:
    _check_reference(volume, claim)
    return None if volume.status.phase == "Bound" else {"status": _phase("Bound", clock)}


def _check_alive(volume: PersistentVolume, claim: PersistentVolumeClaim) -> None:
    if volume.metadata.deleting:
        raise PreconditionError(
            f"volume {volume.metadata.name} is being deleted, it cannot be bound to claim {claim.key}"
        )
    if claim.metadata.deleting:
        raise PreconditionError(f"claim {claim.key} is being deleted, it gets no volume any more")


def _completion(claim: PersistentVolumeClaim, volume: PersistentVolume) -> dict[str, Any] | None:
    if claim.spec.volume_name not in ("", volume.metadata.name):
        raise PreconditionError(f"claim {claim.key} has volume {claim.spec.volume_name}, not {volume.metadata.name}")
    notes = claim.metadata.annotations
    marks = {} if names.BIND_COMPLETED in notes else {names.BIND_COMPLETED: "yes"}
    if claim.spec.volume_name:
        return {"metadata": {"annotations": marks}} if marks else None
    _check_alive(volume, claim)
    if names.BOUND_BY_CONTROLLER not in notes:
        marks[names.BOUND_BY_CONTROLLER] = "yes"
    return {"metadata": {"annotations": marks}, "spec": {"volumeName": volume.metadata.name}}


def _bound_status(claim: PersistentVolumeClaim, volume: PersistentVolume) -> dict[str, Any] | None:
    now, wanted = claim.status, volume.spec
    status: dict[str, Any] = {}
    if now.access_modes != wanted.access_modes:
        status["accessModes"] = wanted.access_modes
    if now.phase != "Bound":  # later, the resizer writes the capacity
        status["phase"] = "Bound"
        if to_bytes(now.capacity.get("storage", "-1")) != capacity(volume):
            status["capacity"] = wanted.capacity
        if wanted.volume_attributes_class_name:
            status["currentVolumeAttributesClassName"] = wanted.volume_attributes_class_name
    return {"status": status} if status else None


# Selected-node


async def send(
    client: Client, claim: PersistentVolumeClaim, node: str, storage_class: StorageClass
) -> PersistentVolumeClaim:
    """Write selected-node, node label and provisioner; return the claim.

    Raises: ApiConflictError when the claim has changed since it was read, ApiNotFoundError when it is gone.
    """
    meta, body = claim.metadata, selection(node, storage_class)
    return await client.patch(CLAIMS, meta.name, body, meta.namespace, resource_version=meta.resource_version)


def selection(node: str, storage_class: StorageClass, *, single: str = "") -> dict[str, Any]:
    """Return the patch of a claim's selected-node, label and provisioner.

    single: the claim's uid if it is the only one of its pod, so that its agent need not read the pod.
    """
    notes = {
        names.SELECTED_NODE: node,
        names.STORAGE_PROVISIONER: storage_class.provisioner,
        names.BETA_STORAGE_PROVISIONER: storage_class.provisioner,
    }
    if single:
        notes[names.SINGLE_CLAIM] = single
    return {"metadata": {"annotations": notes, "labels": {names.NODE_LABEL: names.label_value(node)}}}


def reschedules_of(claim: PersistentVolumeClaim) -> int:
    """Return the claim's number of reschedules; 0 for an invalid one.

    Anybody may write that annotation.
    """
    return whole(names.annotation(claim.metadata.annotations, names.RESCHEDULES), digits=9) or 0


def pause(claim: PersistentVolumeClaim, first: float = 0.5, longest: float = 60.0) -> float:
    """Return seconds to wait before selecting a node again.

    None at first, then doubling with each reschedule.
    """
    count = reschedules_of(claim)
    return min(longest, first * 2 ** min(count - 1, 20)) if count > 0 else 0.0


def is_sent(claim: PersistentVolumeClaim) -> bool:
    """Return whether the claim has a selected node."""
    return names.SELECTED_NODE in claim.metadata.annotations
