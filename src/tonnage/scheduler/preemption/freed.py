"""Pods on each node, and the storage that is freed when a pod goes. Sans-I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tonnage.api import matching
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.pods import CSIVolumeSource, Pod
from tonnage.api.quantity import to_bytes
from tonnage.capacity.published import Offers
from tonnage.errors import Invalid
from tonnage.scheduler.framework.pod_info import claim_uses, inline_uses
from tonnage.scheduler.framework.storage_objects import StorageObjects

Room = str
"""A pool's label, or the class if a node's capacity objects have no such label."""
_DELETE = "Delete"


@dataclass(frozen=True, slots=True)
class Back:
    """Bytes that are freed in a pool.

    inline: of an inline volume; inline capacity is not free for claims.
    """

    room: Room
    size: int
    inline: bool = False


def given_back(pod: Pod, offers: Offers, objects: StorageObjects) -> Iterator[Back]:
    """Return the storage that is freed when the pod goes.

    That of its ephemeral claims with reclaim policy Delete, and of its inline volumes once it has started; published
    capacity does not include these before. A volume whose pool is not known frees nothing.
    """
    for claim in own_claims(pod, objects):
        size, storage_class = _takes(claim, objects)
        if size and (room := _room(offers, storage_class)):
            yield Back(room, size)
    for volume in pod.spec.volumes if not inline_uses(pod) else ():
        if volume.csi is not None and (found := _inline(volume.csi, offers)) is not None:
            yield found


def own_claims(pod: Pod, objects: StorageObjects) -> Iterator[PersistentVolumeClaim]:
    """Return the ephemeral claims of the pod."""
    for use in claim_uses(pod):
        claim = objects.claims.get(use.key)
        if claim is not None and use.ephemeral and claim.metadata.controller_uid() == pod.metadata.uid:
            yield claim


def _takes(claim: PersistentVolumeClaim, objects: StorageObjects) -> tuple[int, str]:
    """Return bytes that the claim frees, and its class; 0 for a volume that stays."""
    name = matching.class_name(claim)
    volume = objects.volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
    storage_class = objects.classes.get(name)
    if volume is not None:
        policy = volume.spec.persistent_volume_reclaim_policy
    else:
        policy = storage_class.reclaim_policy if storage_class is not None else ""
    if policy != _DELETE:
        return 0, name
    return (matching.capacity(volume) if volume is not None else matching.requested(claim)), name


def _room(offers: Offers, storage_class: str) -> Room:
    """Return the pool of a class's volumes, "" for none or several."""
    rooms = {offer.pool or offer.storage_class for offer in offers.get(storage_class, ())}
    return rooms.pop() if len(rooms) == 1 else ""


def _inline(source: CSIVolumeSource, offers: Offers) -> Back | None:
    """Return what an inline volume of ours uses.

    Of the pool that it names, else the default or the only one.
    """
    ours = [offer for some in offers.values() for offer in some if offer.driver == source.driver and offer.pool]
    pools = {offer.pool for offer in ours}
    pool = source.volume_attributes.get("pool", "")
    if not pool and not source.volume_attributes.get("kind"):
        default = {offer.pool for offer in ours if offer.is_default} or pools
        pool = next(iter(default)) if len(default) == 1 else ""
    try:
        size = to_bytes(source.volume_attributes.get("size", "0"))
    except Invalid:
        return None
    return Back(pool, size, inline=True) if pool in pools and size else None
