"""Who is on which node, and what of its storage comes back when a pod goes. Sans-I/O."""

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
"""A pool's label, or the class where a node's offers have none."""
_DELETE = "Delete"


class Residents:
    """The pods that are counted on nodes. An assumed pod is one of them."""

    def __init__(self) -> None:
        self._on: dict[str, dict[str, Pod]] = {}
        self._where: dict[str, tuple[str, int]] = {}
        self._priorities: Counter[int] = Counter()
        self.generation = 0
        """Changes with every pod that comes."""

    def put(self, pod: Pod, node: str) -> None:
        """A pod is on a node, or changed there."""
        uid = pod.metadata.uid
        self.generation += uid not in self._where
        self.drop(uid)
        self._on.setdefault(node, {})[uid] = pod
        self._where[uid] = node, pod.spec.priority or 0
        self._priorities[pod.spec.priority or 0] += 1

    def drop(self, uid: str) -> None:
        """A pod is on no node. An unknown one is ignored."""
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
        """Whether the pod is being deleted."""
        pod = self._on.get(self._where[uid][0], {}).get(uid) if uid in self._where else None
        return pod is not None and pod.metadata.deleting

    def on(self, node: str) -> Collection[Pod]:
        """The pods of a node."""
        return self._on.get(node, {}).values()

    def below(self, priority: int) -> bool:
        """Whether any node has a pod of lower priority."""
        return any(other < priority for other in self._priorities)


@dataclass(frozen=True, slots=True)
class Back:
    """Bytes that come back to a room. inline: of an inline volume; where some is kept for those, claims get none."""

    room: Room
    size: int
    inline: bool = False


def given_back(pod: Pod, offers: Offers, objects: StorageObjects) -> Iterator[Back]:
    """What of its node's room comes back when the pod goes: of volumes that go with it.

    Those are of claims that belong to the pod, with reclaim policy Delete, and inline volumes once it has started
    (until then nothing published counts them). Where it cannot be told in which room a volume is, none is given back.
    """
    for claim in own_claims(pod, objects):
        size, storage_class = _takes(claim, objects)
        if size and (room := _room(offers, storage_class)):
            yield Back(room, size)
    for volume in pod.spec.volumes if not inline_uses(pod) else ():
        if volume.csi is not None and (found := _inline(volume.csi, offers)) is not None:
            yield found


def own_claims(pod: Pod, objects: StorageObjects) -> Iterator[PersistentVolumeClaim]:
    """Claims that go with the pod (generic ephemeral volumes)."""
    for use in claim_uses(pod):
        claim = objects.claims.get(use.key)
        if claim is not None and use.ephemeral and claim.metadata.controller_uid() == pod.metadata.uid:
            yield claim


def _takes(claim: PersistentVolumeClaim, objects: StorageObjects) -> tuple[int, str]:
    """Bytes that come back with the claim, and its class; 0 for a volume that stays."""
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
    """The room that volumes of a class are in; "" where there is none, or more than one."""
    rooms = {offer.pool or offer.storage_class for offer in offers.get(storage_class, ())}
    return rooms.pop() if len(rooms) == 1 else ""


def _inline(source: CSIVolumeSource, offers: Offers) -> Back | None:
    """What an inline volume of ours takes: of the pool it names, of the default one, or of the only one."""
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
