"""Pods on each node, and the storage that is freed when a pod goes. Sans-I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tonnage.api import matching
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.pods import CSIVolumeSource, Pod
from tonnage.api.quantity import to_bytes
from tonnage.errors import Invalid
from tonnage.scheduler.framework.pod_info import claim_uses, inline_uses
from tonnage.scheduler.framework.storage_capacity import Offers
from tonnage.scheduler.framework.storage_objects import StorageObjects

Room = str
"""A pool's label, or the class if a node's capacity objects have no such label."""
_DELETE = "Delete"


class Residents:
    """Pods that are counted on nodes, also assumed ones."""

    def __init__(self) -> None:
        self._on: dict[str, dict[str, Pod]] = {}
        self._where: dict[str, tuple[str, int]] = {}
        self._priorities: Counter[int] = Counter()
        self.generation = 0
        """Incremented with every pod that comes."""

    def put(self, pod: Pod, node: str) -> None:
        """Add or update a pod on a node."""
        uid = pod.metadata.uid
        self.generation += uid not in self._where
        self.drop(uid)
        self._on.setdefault(node, {})[uid] = pod
        self._where[uid] = node, pod.spec.priority or 0
        self._priorities[pod.spec.priority or 0] += 1

    def drop(self, uid: str) -> None:
        """Remove a pod. An unknown one is ignored."""
        node, priority = self._where.pop(uid, ("", 0))
        if not node:
            return
        del self._on[node][uid]
        if not self._on[node]:
            del self._on[node]
        self._priorities[priority] -= 1
        if not self._priorities[priority]:
            del self._priorities[priority]

    def __contains__(self, uid: object) -> bool:
        return uid in self._where

    def is_going(self, uid: str) -> bool:
        """Return whether the pod is being deleted."""
        pod = self._on.get(self._where[uid][0], {}).get(uid) if uid in self._where else None
        return pod is not None and pod.metadata.deleting

    def on(self, node: str) -> Collection[Pod]:
        """Return the pods of a node."""
        return self._on.get(node, {}).values()

    def below(self, priority: int) -> bool:
        """Return whether any node has a pod of lower priority."""
        return any(other < priority for other in self._priorities)


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
