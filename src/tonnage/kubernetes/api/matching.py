"""Matching of PersistentVolumes and claims: the pure rules that the binder and the scheduler share.

Source: component-helpers storage/volume (FindMatchingVolume, IsVolumeBoundToClaim) and the PV controller's
checkVolumeSatisfyClaim. Sizes are whole bytes. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.api.selectors import from_label_selector
from tonnage.kubernetes.api.storage import StorageClass

T = TypeVar("T", bound=KubeObject)
FILESYSTEM = "Filesystem"


def requested(claim: PersistentVolumeClaim) -> int:
    """Requested bytes of the claim; 0 when it has none. Raises: InvalidError for text that is not a quantity."""
    return to_bytes(claim.spec.resources.requests.get("storage", "0"))


def capacity(volume: PersistentVolume) -> int:
    """Bytes of the volume; 0 when it has no capacity. Raises: InvalidError for text that is not a quantity."""
    return to_bytes(volume.spec.capacity.get("storage", "0"))


def driver_volume(volume: PersistentVolume) -> tuple[str, str] | None:
    """Driver and handle of the CSI volume that a PV refers to, also as a FlexVolume of ours; None for none."""
    csi, flex = volume.spec.csi, volume.spec.flex_volume
    if csi is not None:
        return csi.driver, csi.volume_handle
    if flex is not None and flex.driver in names.FLEX_DRIVERS and (handle := flex.options.get(names.FLEX_HANDLE)):
        return names.DRIVER, handle
    return None


def is_bound(claim: PersistentVolumeClaim) -> bool:
    """Whether binding is complete: the claim names a volume and is annotated bind-completed."""
    return bool(claim.spec.volume_name) and names.BIND_COMPLETED in claim.metadata.annotations


def is_delayed(claim: PersistentVolumeClaim, storage_class: StorageClass | None) -> bool:
    """Whether the claim waits for the scheduler: it names no volume, and its class has late binding.

    storage_class is the class that the claim names, or None when it does not exist.
    """
    return not claim.spec.volume_name and storage_class is not None and storage_class.late


def class_name(claim: PersistentVolumeClaim) -> str:
    """The claim's class, "" for none."""
    return claim.spec.storage_class_name or ""


def is_provisionable(storage_class: StorageClass | None) -> bool:
    """Whether the class has a provisioner for new volumes."""
    return storage_class is not None and storage_class.provisioner not in ("", names.NO_PROVISIONER)


def default_class(classes: Iterable[T]) -> T | None:
    """The class for claims without one: the newest default class, ties by name; None without any."""
    marked = sorted((c for c in classes if is_default(c)), key=lambda c: c.metadata.name)
    return max(marked, key=lambda c: c.metadata.creation_timestamp or "", default=None)


def is_default(storage_class: KubeObject) -> bool:
    """Whether the class is marked as a default."""
    notes = storage_class.metadata.annotations
    return "true" in (notes.get(names.DEFAULT_CLASS), notes.get(names.BETA_DEFAULT_CLASS))


def is_claimed_by(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether the volume's claimRef points to the claim; without uid (pre-bound by a person) by name."""
    ref = volume.spec.claim_ref
    if ref is None or ref.name != claim.metadata.name or ref.namespace != claim.metadata.namespace:
        return False
    return ref.uid in ("", claim.metadata.uid)


def mismatch(volume: PersistentVolume, claim: PersistentVolumeClaim) -> str:
    """Why the volume does not fit the claim that names it, "" when it does (texts of Event VolumeMismatch).

    The claim's selector is ignored: it applies only to a search.
    """
    if volume.metadata.deleting:
        return f'the volume is marked for deletion "{volume.metadata.name}"'
    if capacity(volume) < requested(claim):
        return "requested PV is too small"
    if volume.spec.storage_class_name != class_name(claim):
        return "storageClassName does not match"
    if (volume.spec.volume_attributes_class_name or "") != (claim.spec.volume_attributes_class_name or ""):
        return "volumeAttributesClassName does not match"
    if (volume.spec.volume_mode or FILESYSTEM) != (claim.spec.volume_mode or FILESYSTEM):
        return "incompatible volumeMode"
    if not set(claim.spec.access_modes) <= set(volume.spec.access_modes):
        return "incompatible accessMode"
    return ""


def selects(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    """Whether the claim's label selector, if any, matches the volume."""
    return claim.spec.selector is None or from_label_selector(claim.spec.selector).matches(volume.metadata.labels)


def is_free_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether the volume is a match in a search: Available, without claimRef, selected, and fitting.

    Node affinity is ignored. A volume that is_claimed_by the claim needs no search and is not free.
    """
    if volume.spec.claim_ref is not None or volume.status.phase != "Available":
        return False
    return selects(claim, volume) and not mismatch(volume, claim)
