"""Errors of a claim or its class that no node can resolve: for `tonnage why`, on any cluster.

Pure. A driver's own checks are known only as far as the claim, its class and its source show; Events of the claim
report the rest. A claim that an existing PersistentVolume can serve has no error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Event, PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.matching import class_name, is_bound, is_claimed_by, is_free_for, is_provisionable
from tonnage.kubernetes.api.origin import Origin, is_content, is_copy, is_populated, is_restore, reference
from tonnage.kubernetes.api.storage import CSIStorageCapacity, StorageClass
from tonnage.node.capacity.poller import fault_of
from tonnage.provisioning.capacity.node_template import published_faults
from tonnage.provisioning.claims.data_source import copy_fault, gone_text, restore_fault
from tonnage.scheduler.plugins.messages import not_there
from tonnage.scheduler.shortfalls import Lack

_SHARED = (names.READ_WRITE_MANY, names.READ_ONLY_MANY)
_FAILED = "ProvisioningFailed"
_PROVISIONING = (_FAILED, "Provisioning", "ProvisioningSucceeded")
"""Reasons of Events with a provisioner's progress; other reasons (ExternalProvisioning) have none."""


class Said(msgspec.Struct, frozen=True, rename="camel"):
    """An Event about a claim or its class. at: RFC 3339, "" if it has no time."""

    about: str
    type: str
    reason: str
    message: str
    at: str = ""


def said(about: str, event: Event) -> Said:
    """Return an Event as it is shown, in one line."""
    return Said(about, event.type, event.reason, " ".join(event.message.split()), _when(event))


@dataclass(frozen=True)
class ClaimObjects:
    """Objects that claims are checked against.

    origin_of: the data source of a claim, None without one. is_registered: whether a node has the CSI driver; drivers:
    names of our own; nodes: all, by name; events: by uid of the object that they are about.
    """

    origin_of: Callable[[PersistentVolumeClaim], Origin | None]
    volumes: Sequence[PersistentVolume]
    classes: Callable[[str], StorageClass | None]
    capacities: Sequence[CSIStorageCapacity]
    is_registered: Callable[[str], bool]
    drivers: Collection[str] = (names.DRIVER,)
    nodes: Collection[str] = ()
    events: Mapping[str, Sequence[Event]] = field(default_factory=dict)


def faults_of(claims: Sequence[PersistentVolumeClaim], objects: ClaimObjects) -> list[Lack]:
    """Errors that keep these claims of one pod from getting volumes on any node; else what Events report."""
    waiting = [c for c in claims if not is_bound(c) and not c.metadata.deleting and not _is_served(c, objects)]
    together = {claim.key for claim in waiting}
    found = [lack for claim in waiting for lack in _faults(claim, objects, together)]
    return found or [lack for claim in waiting for lack in _reported(claim, objects)]


def said_of(claims: Sequence[PersistentVolumeClaim], objects: ClaimObjects) -> list[Said]:
    """Events of the claims without volume and of their classes; the last of each reason."""
    found: dict[tuple[str, str], Said] = {}
    for claim in claims:
        storage_class = objects.classes(class_name(claim))
        abouts = [(f"claim {claim.metadata.name}", claim.metadata.uid)]
        if storage_class is not None:
            abouts.append((f"class {storage_class.metadata.name}", storage_class.metadata.uid))
        for about, uid in abouts if not is_bound(claim) else ():
            for event in sorted(objects.events.get(uid, ()), key=_when):
                found[about, event.reason] = said(about, event)
    return list(found.values())


def _is_served(claim: PersistentVolumeClaim, objects: ClaimObjects) -> bool:
    """Whether a volume that exists may be the claim's."""
    for volume in objects.volumes:
        try:
            if is_claimed_by(volume, claim) or claim.spec.volume_name == volume.metadata.name:
                return True
            if is_free_for(volume, claim):
                return True
        except InvalidError:
            continue
    return False


def _faults(claim: PersistentVolumeClaim, objects: ClaimObjects, together: Collection[str]) -> Iterator[Lack]:
    name, wanted = claim.metadata.name, class_name(claim)
    if is_populated(claim) and (source := reference(claim)) is not None:
        kind = f"{source.kind}.{source.api_group}"
        text = f"claim {name}: a volume populator for {kind} provides its volume, and has not yet"
        yield Lack(text, f"see whether a populator for {kind} runs, and `kubectl describe pvc {name}`")
    storage_class = objects.classes(wanted) if wanted else None
    if storage_class is None:
        if wanted:
            yield _no_class(name, wanted, objects)
        return
    provisioner = storage_class.provisioner
    if not is_provisionable(storage_class):
        return
    if provisioner not in objects.drivers:
        if not objects.is_registered(provisioner):
            text = f"claim {name}: StorageClass {wanted}: {not_there(provisioner)}"
            yield Lack(text, f"start provisioner {provisioner}, or name a class of {names.DRIVER} in a new claim")
        return
    if fault := _class_fault(storage_class, objects):
        todo = f"delete StorageClass {wanted} and make it anew without that mistake"
        yield Lack(f"claim {name}: StorageClass {wanted}: {fault}", todo)
    yield from _spec_faults(claim)
    yield from _source_faults(claim, provisioner, objects, together)


def _no_class(claim: str, wanted: str, objects: ClaimObjects) -> Lack:
    if any(volume.spec.storage_class_name == wanted for volume in objects.volumes):
        text = f"claim {claim}: no PersistentVolume of class {wanted} fits it, and there is no such StorageClass"
        return Lack(text, f"make a PersistentVolume of class {wanted} that fits the claim")
    todo = f"make the StorageClass {wanted}, or name one of `kubectl get storageclasses` in a new claim"
    return Lack(f"claim {claim}: there is no StorageClass {wanted}", todo)


def _class_fault(storage_class: StorageClass, objects: ClaimObjects) -> str:
    """Error of a class wherever its capacity is published, "" for none."""
    if fault := fault_of(storage_class):
        return fault
    published = [c for c in objects.capacities if c.storage_class_name == storage_class.metadata.name]
    return "; ".join(published_faults(published))


def _spec_faults(claim: PersistentVolumeClaim) -> Iterator[Lack]:
    name, spec = claim.metadata.name, claim.spec
    if shared := [mode for mode in spec.access_modes if mode in _SHARED]:
        text = f"claim {name}: access mode {', '.join(shared)} is not possible: local volumes live on one node"
        yield Lack(text, f"make claim {name} anew with {names.READ_WRITE_ONCE} or {names.READ_WRITE_ONCE_POD}")
    if spec.selector is not None:
        yield Lack(f"claim {name}: spec.selector is not supported", f"make claim {name} anew without selector")


def _source_faults(
    claim: PersistentVolumeClaim, driver: str, objects: ClaimObjects, together: Collection[str]
) -> Iterator[Lack]:
    ref, name = reference(claim), claim.metadata.name
    if ref is None or is_populated(claim) or is_content(claim):
        return  # the agent reports what is wrong with a Content
    if not is_copy(claim):
        what = "snapshot" if ref.kind == "VolumeSnapshot" else "claim"
        text = f"claim {name}: its data source, {what} {ref.name}, is in namespace {ref.namespace}"
        yield Lack(text, f"make claim {name} anew: it can be a copy of a {what} of its own namespace")
        return
    origin = objects.origin_of(claim)
    if origin is None:
        return
    if is_restore(claim):
        yield from _restore_faults(claim, driver, origin, objects)
        return
    if origin.volume is None and f"{claim.metadata.namespace}/{ref.name}" in together:
        return  # the scheduler sends both to one node
    if origin.volume is None:
        todo = f"make claim {ref.name}, and a pod that uses it if its class binds late"
        yield Lack(f"claim {name}: it is to be a copy, and {origin.missing}", todo)
    elif fault := copy_fault(claim, origin.volume, driver):
        todo = f"make claim {name} anew: a copy has the size of its source or more, its class's driver and volume mode"
        yield Lack(f"claim {name}: {fault}", todo)


def _restore_faults(claim: PersistentVolumeClaim, driver: str, origin: Origin, objects: ClaimObjects) -> Iterator[Lack]:
    name, ref = claim.metadata.name, reference(claim)
    assert ref is not None
    if origin.node and origin.node not in {names.label_value(node) for node in objects.nodes}:
        text = f"claim {name}: {gone_text(claim, origin)}"
        yield Lack(text, f"bring node {origin.node} back, or make claim {name} anew from another snapshot")
    elif origin.missing:
        todo = f"make VolumeSnapshot {ref.name}, or see why it waits: `kubectl describe volumesnapshot {ref.name}`"
        yield Lack(f"claim {name}: it is to restore a snapshot, and {origin.missing}", todo)
    elif origin.content is not None and (fault := restore_fault(claim, origin.content, driver)):
        todo = f"make claim {name} anew: it has the size of the snapshot or more, its driver and volume mode"
        yield Lack(f"claim {name}: {fault}", todo)


def _reported(claim: PersistentVolumeClaim, objects: ClaimObjects) -> Iterator[Lack]:
    """Return the last Event of a provisioner for a claim.

    Only for a claim with selected-node, or of a class that binds immediately.
    Other claims wait for a scheduler, which decides by the nodes.
    """
    storage_class = objects.classes(class_name(claim))
    if storage_class is None or (storage_class.late and names.SELECTED_NODE not in claim.metadata.annotations):
        return
    events = [event for event in objects.events.get(claim.metadata.uid, ()) if event.reason in _PROVISIONING]
    last = max(events, key=_when, default=None)
    if last is not None and last.reason == _FAILED:
        text = f"claim {claim.metadata.name}: {' '.join(last.message.split())}"
        yield Lack(text, f"correct what that names: `kubectl describe pvc {claim.metadata.name}`")


def _when(event: Event) -> str:
    return event.last_timestamp or event.first_timestamp or event.metadata.creation_timestamp or ""
