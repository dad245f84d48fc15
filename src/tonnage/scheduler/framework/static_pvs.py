"""PersistentVolumes that are there and wait for a claim: which of them is the smallest that fits, on a node.

Rules of matching in api/matching.py; what is added here is that a node looks at its own volumes only, and that a
volume chosen for one pod is not offered to the next before the API server says so.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tonnage.api import matching
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.scheduler.framework.topology_index import EVERYWHERE, ByTopology, Labels, Reach, reach_of_nodes


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A volume and the nodes that reach it."""

    volume: PersistentVolume
    size: int
    reach: Reach


def reach_of(volume: PersistentVolume) -> Reach:
    """The nodes that reach a volume. Raises Invalid."""
    affinity = volume.spec.node_affinity
    return reach_of_nodes(affinity.required) if affinity is not None else EVERYWHERE


def claim_key(volume: PersistentVolume) -> str:
    """`namespace/name` of the claim that the volume points to, "" for none."""
    ref = volume.spec.claim_ref
    return f"{ref.namespace}/{ref.name}" if ref is not None else ""


class StaticVolumes:
    """Free volumes by class and topology, volumes by the claim they point to, and what was assumed."""

    def __init__(self) -> None:
        self._free: dict[str, ByTopology[Candidate]] = {}
        self._in_class: dict[str, int] = {}
        self._candidates: dict[str, Candidate] = {}
        self._claimed: dict[str, dict[str, PersistentVolume]] = {}
        self._assumed: dict[str, str] = {}  # volume -> claim uid
        self._assumed_for: dict[str, str] = {}  # claim uid -> volume

    def put(self, old: PersistentVolume | None, new: PersistentVolume | None) -> bool:
        """Take in a change; whether a volume became free. Raises Invalid for affinity or size that cannot be read."""
        was_free = False
        if old is not None:
            was_free = self._discard(old)
        if new is None or new.metadata.deleting:
            return False
        if new.spec.claim_ref is not None:
            self._claimed.setdefault(claim_key(new), {})[new.metadata.name] = new
            return False
        if new.status.phase != "Available":
            return False
        candidate = Candidate(new, matching.capacity(new), reach_of(new))
        self._candidates[new.metadata.name] = candidate
        in_class = self._free.setdefault(new.spec.storage_class_name, ByTopology(_order))
        in_class.add(candidate, candidate.reach)
        self._count(new.spec.storage_class_name, 1)
        return not was_free

    def _discard(self, volume: PersistentVolume) -> bool:
        name = volume.metadata.name
        key = claim_key(volume)
        if (claimed := self._claimed.get(key)) is not None:
            claimed.pop(name, None)
            if not claimed:
                del self._claimed[key]
        candidate = self._candidates.pop(name, None)
        if candidate is None:
            return False
        storage_class = candidate.volume.spec.storage_class_name
        self._free[storage_class].remove(candidate, candidate.reach)
        self._count(storage_class, -1)
        return True

    def _count(self, storage_class: str, change: int) -> None:
        left = self._in_class.get(storage_class, 0) + change
        self._in_class[storage_class] = left
        if not left:
            del self._in_class[storage_class], self._free[storage_class]

    def may_serve(self, claim: PersistentVolumeClaim) -> bool:
        """Whether looking for a volume for the claim can find anything, on any node."""
        return matching.class_name(claim) in self._in_class or claim.key in self._claimed

    def find(
        self, claim: PersistentVolumeClaim, size: int, labels: Labels, node: str, chosen: Collection[str]
    ) -> PersistentVolume | None:
        """The volume for the claim on a node: one that points to it, else the smallest that fits; None for none.

        chosen: names of volumes that siblings of the claim take. A volume that points to the claim but is not
        reached from the node leaves the claim without one there (FindMatchingVolume).
        """
        for volume in self._claimed.get(claim.key, {}).values():
            if matching.is_claimed_by(volume, claim) and not matching.mismatch(volume, claim):
                return volume if reach_of(volume).matches(labels, node) else None
        if (assumed := self._assumed_for.get(claim.metadata.uid)) is not None:
            candidate = self._candidates.get(assumed)
            return candidate.volume if candidate is not None and candidate.reach.matches(labels, node) else None
        return self._smallest(claim, size, labels, node, chosen)

    def _smallest(
        self, claim: PersistentVolumeClaim, size: int, labels: Labels, node: str, chosen: Collection[str]
    ) -> PersistentVolume | None:
        in_class = self._free.get(matching.class_name(claim))
        best: Candidate | None = None
        for bucket in in_class.near(labels) if in_class is not None else ():
            for candidate in bucket:
                if best is not None and _order(candidate) >= _order(best):
                    break
                name = candidate.volume.metadata.name
                if candidate.size < size or name in chosen or name in self._assumed:
                    continue
                if candidate.reach.matches(labels, node) and matching.is_free_for(candidate.volume, claim):
                    best = candidate
                    break
        return best.volume if best is not None else None

    def assume(self, volume: str, claim_uid: str) -> None:
        """The volume will be the claim's."""
        self._assumed[volume] = claim_uid
        self._assumed_for[claim_uid] = volume

    def release(self, volume: str, claim_uid: str) -> None:
        """The volume was written to be the claim's, or will not be. May be repeated."""
        if self._assumed.get(volume) == claim_uid:
            del self._assumed[volume]
        if self._assumed_for.get(claim_uid) == volume:
            del self._assumed_for[claim_uid]


def _order(candidate: Candidate) -> tuple[int, str]:
    return candidate.size, candidate.volume.metadata.name
