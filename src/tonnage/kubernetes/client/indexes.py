"""Indexes that several controllers use on the shared caches: one name for one indexer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, PODS, VOLUMES
from tonnage.kubernetes.api.matching import class_name, is_bound
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.informer import Informer, Informers

BY_HANDLE = "driver and volume handle"
PODS_BY_CLAIM = "controllers: pods by claim"
PODS_BY_NODE = "controllers: pods by node"
CLAIMS_UNBOUND = "controllers: unbound claims by class"
CLAIMS_BY_VOLUME = "controllers: claims by volume"
VOLUMES_BY_CLAIM = "controllers: volumes by claim"
CLAIMS_BY_ATTRIBUTES = "controllers: claims by VolumeAttributesClass"
VOLUMES_BY_ATTRIBUTES = "controllers: volumes by VolumeAttributesClass"
VOLUMES_AVAILABLE = "controllers: available volumes by class"


def pods_by_claim(informers: Informers, *, fields: str = "") -> Informer[Pod]:
    """The pods (of that field selector), indexed by `namespace/name` of each claim that they use."""
    informer = informers.of(PODS, fields=fields)
    informer.cache.add_index(PODS_BY_CLAIM, claim_keys)
    return informer


def pods_by_node(informers: Informers) -> Informer[Pod]:
    """All pods, indexed by the name of their node; those without one are not in the index."""
    informer = informers.of(PODS)
    informer.cache.add_index(PODS_BY_NODE, lambda pod: filter(None, (pod.spec.node_name,)))
    return informer


def claim_keys(pod: Pod) -> Iterable[str]:
    """Keys of all claims that a pod uses, those of ephemeral volumes included."""
    return [f"{pod.metadata.namespace}/{name}" for name in pod.claim_names()]


def claims_of(pod: Pod, cache: Cache[PersistentVolumeClaim]) -> Iterator[PersistentVolumeClaim]:
    """Existing claims that a pod uses, those of ephemeral volumes included; each is looked up when it is next."""
    return (claim for key in claim_keys(pod) if (claim := cache.get(key)) is not None)


def claims(informers: Informers) -> Informer[PersistentVolumeClaim]:
    """All claims, indexed by the volume that they name; unbound ones by their class ("" for none)."""
    informer = informers.of(CLAIMS)
    informer.cache.add_index(CLAIMS_UNBOUND, lambda claim: () if is_bound(claim) else (class_name(claim),))
    informer.cache.add_index(CLAIMS_BY_VOLUME, lambda claim: filter(None, (claim.spec.volume_name,)))
    informer.cache.add_index(CLAIMS_BY_ATTRIBUTES, attributes_of)
    return informer


def volumes(informers: Informers) -> Informer[PersistentVolume]:
    """All volumes, indexed by the key of their claim, and available ones by their class."""
    informer = informers.of(VOLUMES)
    informer.cache.add_index(VOLUMES_BY_CLAIM, claimed)
    informer.cache.add_index(VOLUMES_AVAILABLE, _available)
    informer.cache.add_index(VOLUMES_BY_ATTRIBUTES, lambda v: filter(None, (v.spec.volume_attributes_class_name,)))
    return informer


def handle_of(volume: PersistentVolume) -> Iterable[str]:
    """Driver and handle of a volume of CSI: the index BY_HANDLE."""
    return (f"{volume.spec.csi.driver} {volume.spec.csi.volume_handle}",) if volume.spec.csi is not None else ()


def candidates(cache: Cache[PersistentVolume], claim: PersistentVolumeClaim) -> list[PersistentVolume]:
    """The volumes that may match the claim: claimed for it, or available in its class."""
    return cache.by(VOLUMES_BY_CLAIM, claim.key) + cache.by(VOLUMES_AVAILABLE, class_name(claim))


def attributes_of(claim: PersistentVolumeClaim) -> set[str]:
    """Names of the VolumeAttributesClasses that a claim wants, has and is on the way to."""
    change, spec, status = claim.status.modify_volume_status, claim.spec, claim.status
    target = change.target_volume_attributes_class_name if change is not None else ""
    named = {spec.volume_attributes_class_name, status.current_volume_attributes_class_name, target}
    return {name for name in named if name}


def claimed(volume: PersistentVolume) -> Iterable[str]:
    """Key of the claim that a PV is for, none for an unclaimed one."""
    ref = volume.spec.claim_ref
    return () if ref is None else (f"{ref.namespace}/{ref.name}",)


def _available(volume: PersistentVolume) -> Iterable[str]:
    free = volume.spec.claim_ref is None and volume.status.phase == "Available"
    return (volume.spec.storage_class_name,) if free else ()
