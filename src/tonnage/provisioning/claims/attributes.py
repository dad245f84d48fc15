"""VolumeAttributesClass of a claim: found, checked, and how far a change of it has come (KEP-3751).

A change is one call of the driver and two writes, so it can be cut off between them. step() decides from what the claim
and its PV say what is still to be done. Pure, but for the reading of classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tonnage.base.aio.clock import rfc3339
from tonnage.base.errors import InvalidError, PreconditionError
from tonnage.csi.client import types
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import ATTRIBUTES_CLASSES
from tonnage.kubernetes.api.storage import VolumeAttributesClass
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informer
from tonnage.provisioning.claims.bind import find
from tonnage.provisioning.claims.conditions import true, without
from tonnage.provisioning.claims.node_scope import DriverInfo

PENDING, IN_PROGRESS, INFEASIBLE = "Pending", "InProgress", "Infeasible"
MODIFYING, FAILED = "ModifyingVolume", "ModifyVolumeError"
"""Types of the conditions of a claim."""
_OURS = (MODIFYING, FAILED)


class AttributesClasses:
    """The classes of the cluster, cached. Kubernetes serves them from 1.34 on."""

    def __init__(self, client: Client, informer: Informer[VolumeAttributesClass]) -> None:
        self._client, self._informer = client, informer
        self.cache: Cache[VolumeAttributesClass] = informer.cache

    async def find(self, name: str) -> VolumeAttributesClass | None:
        """Return a class, None if there is none. Live where the cache does not have it: it may be new.

        Raises: ApiError, UnavailableError.
        """
        found = self.cache.get(name)
        if found is None and self._informer.is_served:
            found = await find(self._client, ATTRIBUTES_CLASSES, name)
        return found

    async def of_claim(self, claim: PersistentVolumeClaim, driver: DriverInfo) -> VolumeAttributesClass | None:
        """Return the class that a new volume for the claim gets, None if the claim names none.

        Raises: InvalidError for one of another driver, PreconditionError while it does not exist, ApiError,
        UnavailableError.
        """
        if not (name := wanted(claim)):
            return None
        found = await self.find(name)
        if found is None:
            raise PreconditionError(self.missing_text(name))
        if fault := class_fault(found, driver):
            raise InvalidError(fault)
        return found

    def missing_text(self, name: str) -> str:
        """Return why there is no class of that name."""
        if self._informer.is_served:
            return f'VAC "{name}" does not exist.'
        return f'VAC "{name}" does not exist: this API server serves no VolumeAttributesClass (Kubernetes 1.34 does)'


def can_modify(driver: DriverInfo) -> bool:
    """Return whether the driver changes volumes."""
    return types.MODIFY_VOLUME in driver.controller


def class_fault(attributes: VolumeAttributesClass, driver: DriverInfo) -> str:
    """Return why volumes of the driver cannot have the class, or ""."""
    name = attributes.metadata.name
    if attributes.driver_name != driver.name:
        return f'VAC "{name}" is of driver {attributes.driver_name[:63]}, the volume of {driver.name}'
    if not can_modify(driver):
        return f'driver {driver.name} changes no volumes (no MODIFY_VOLUME), so VAC "{name}" cannot be had'
    return ""


@dataclass(frozen=True)
class ModifyFacts:
    """Facts about one bound claim.

    goal: as goal_of(). attributes: the class of that name. fault: why the volume cannot have it. is_asserted: whether
    this process knows that the volume has its present class.
    """

    claim: PersistentVolumeClaim
    volume: PersistentVolume
    goal: str = ""
    attributes: VolumeAttributesClass | None = None
    fault: str = ""
    is_asserted: bool = True


@dataclass(frozen=True)
class NoAction:
    """Do nothing."""


@dataclass(frozen=True)
class Cancel:
    """Forget a change that had no effect: the claim no longer asks for it."""


@dataclass(frozen=True)
class ClassMissing:
    """The class does not exist."""

    name: str


@dataclass(frozen=True)
class RejectChange:
    """The volume cannot have the class; the driver is not asked."""

    name: str
    why: str


@dataclass(frozen=True)
class ReapplyClass:
    """Call the driver with the present class: an earlier agent may have been killed in a call with another one."""

    attributes: VolumeAttributesClass


@dataclass(frozen=True)
class Modify:
    """Call the driver, then write PV and claim. is_recorded: the claim says already that it is in progress."""

    attributes: VolumeAttributesClass
    is_recorded: bool


@dataclass(frozen=True)
class Finish:
    """Write to the claim what its PV says. name: of the class."""

    name: str


ModifyAction = NoAction | Cancel | ClassMissing | RejectChange | ReapplyClass | Modify | Finish


def wanted(claim: PersistentVolumeClaim) -> str:
    """Return the class that the claim asks for, "" for none."""
    return claim.spec.volume_attributes_class_name or ""


def begun(claim: PersistentVolumeClaim) -> str:
    """Return the class of a call that may have had an effect, "" for none.

    It must end before the claim may go back to none. To another class it may go once the driver has answered.
    """
    change = claim.status.modify_volume_status
    if change is None or change.status != IN_PROGRESS:
        return ""
    return "" if wanted(claim) and has_condition(claim, FAILED) else change.target_volume_attributes_class_name


def goal_of(claim: PersistentVolumeClaim, pending: str = "") -> str:
    """Return the class that the volume must get now. pending: that of a call whose outcome is not known."""
    return pending or begun(claim) or wanted(claim)


def is_open(claim: PersistentVolumeClaim) -> bool:
    """Return whether the claim tells of a change."""
    return claim.status.modify_volume_status is not None or any(has_condition(claim, kind) for kind in _OURS)


def has_condition(claim: PersistentVolumeClaim, kind: str) -> bool:
    """Return whether a condition of the claim is true."""
    return any(c.get("type") == kind and c.get("status") == "True" for c in claim.status.conditions)


def step(facts: ModifyFacts) -> ModifyAction:
    """Return what to do with a claim. Changes nothing."""
    claim, volume, goal = facts.claim, facts.volume, facts.goal
    ref = volume.spec.claim_ref
    if claim.metadata.deleting or claim.status.phase != "Bound" or ref is None or ref.uid != claim.metadata.uid:
        return NoAction()
    current = claim.status.current_volume_attributes_class_name or ""
    has = volume.spec.volume_attributes_class_name or ""
    if not goal:
        if has and has != current:  # done, but for the last write; the claim went back to none meanwhile
            return Finish(has)
        return Cancel() if is_open(claim) else NoAction()
    if goal == current == has and not begun(claim):
        if is_open(claim):
            return Cancel()
        return NoAction() if facts.is_asserted or facts.attributes is None else ReapplyClass(facts.attributes)
    if facts.attributes is None:
        return ClassMissing(goal)
    if facts.fault:
        return RejectChange(goal, facts.fault)
    change = claim.status.modify_volume_status
    is_recorded = change is not None and change.status == IN_PROGRESS
    is_recorded = is_recorded and change is not None and change.target_volume_attributes_class_name == goal
    return Modify(facts.attributes, is_recorded)


# Status of the claim


def ended(claim: PersistentVolumeClaim, name: str) -> dict[str, Any] | None:
    """Return the patch of a claim whose volume has the class now; None if it says so."""
    status: dict[str, Any] = {}
    if claim.status.current_volume_attributes_class_name != name:
        status["currentVolumeAttributesClassName"] = name
    return _patch(claim, status | _without_change(claim))


def cancelled(claim: PersistentVolumeClaim) -> dict[str, Any] | None:
    """Return the patch of a claim without a change; None if it has none."""
    return _patch(claim, _without_change(claim))


def changing(
    claim: PersistentVolumeClaim, state: str, target: str, message: str, *, error: tuple[str, str] | None, now: float
) -> dict[str, Any] | None:
    """Return the patch of a claim whose change is in that state; None if it says so.

    message: of the condition ModifyingVolume, "" for none. error: reason and message of the other one. now: wall clock.
    """
    status: dict[str, Any] = {}
    change = claim.status.modify_volume_status
    if change is None or (change.status, change.target_volume_attributes_class_name) != (state, target):
        status["modifyVolumeStatus"] = {"status": state, "targetVolumeAttributesClassName": target}
    conditions, known = without(claim.status.conditions, _OURS), claim.status.conditions
    if message:
        conditions.append(true(MODIFYING, message, rfc3339(now), known=known))
    if error is not None:
        conditions.append(true(FAILED, error[1][:1024], rfc3339(now), reason=error[0], known=known))
    if conditions != claim.status.conditions:
        status["conditions"] = conditions
    return _patch(claim, status)


def _without_change(claim: PersistentVolumeClaim) -> dict[str, Any]:
    status: dict[str, Any] = {}
    if claim.status.modify_volume_status is not None:
        status["modifyVolumeStatus"] = None
    if (others := without(claim.status.conditions, _OURS)) != claim.status.conditions:
        status["conditions"] = others or None
    return status


def _patch(claim: PersistentVolumeClaim, status: dict[str, Any]) -> dict[str, Any] | None:
    return {"status": status} if status else None


# Secrets of a change


def modify_secret(volume: PersistentVolume) -> tuple[str, str] | None:
    """Return name and namespace of the Secret for changes of the volume, or None."""
    notes, csi = volume.metadata.annotations, volume.spec.csi
    name, namespace = notes.get(names.MODIFY_SECRET_NAME, ""), notes.get(names.MODIFY_SECRET_NAMESPACE, "")
    if name and namespace:
        return name, namespace
    ref = csi.controller_expand_secret_ref if csi is not None else None
    return (ref.name, ref.namespace) if ref is not None else None
