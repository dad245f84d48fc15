"""Storage objects: their caches, and which free PV fits a claim on a node.

The smallest that fits is taken, by the binder's rules. A node checks only PVs that reach it. A PV that was assumed for
one pod is not used for the next, before the API server shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tonnage.kubernetes.api import matching
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.origin import Origin, origin_of
from tonnage.kubernetes.api.snapshot import VolumeSnapshot, VolumeSnapshotContent
from tonnage.kubernetes.api.storage import CSIDriver, StorageClass
from tonnage.kubernetes.client.cache import Cache
from tonnage.provisioning.capacity.topology_index import EVERYWHERE, ByTopology, Labels, Reach, reach_of_nodes
from tonnage.scheduler.framework.pod_info import UsedVolume


@dataclass(frozen=True, slots=True)
class StorageObjects:
    """Caches of claims, PVs, classes and drivers; of snapshots and their contents, empty where they are not served."""

    claims: Cache[PersistentVolumeClaim]
    volumes: Cache[PersistentVolume]
    classes: Cache[StorageClass]
    drivers: Cache[CSIDriver]
    snapshots: Cache[VolumeSnapshot] = field(default_factory=Cache)
    contents: Cache[VolumeSnapshotContent] = field(default_factory=Cache)

    def origin_of(self, claim: PersistentVolumeClaim) -> Origin | None:
        """Return the location of a claim's data source, None without one."""
        return origin_of(claim, self.claims.get, self.volumes.get, self.snapshots.get, self.contents.get)

    def used_by(self, claims: Iterable[str]) -> tuple[UsedVolume, ...]:
        """Return volumes that count against a node's limits; unresolved ones are left out."""
        found = []
        for key in claims:
            claim = self.claims.get(key)
            if claim is not None and (driver := self._driver(claim)):
                found.append((driver, key))
        return tuple(found)

    def _driver(self, claim: PersistentVolumeClaim) -> str:
        volume = self.volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None:
            return volume.spec.csi.driver if volume.spec.csi is not None else ""
        storage_class = self.classes.get(matching.class_name(claim))
        if storage_class is None or not matching.is_provisionable(storage_class):
            return ""
        return storage_class.provisioner


@dataclass(frozen=True, slots=True, eq=False)
class StaticCandidate:
    """A PV and the nodes that reach it."""

    volume: PersistentVolume
    size: int
    reach: Reach


def reach_of(volume: PersistentVolume) -> Reach:
    """Return the nodes that reach a PV. Raises: InvalidError."""
    affinity = volume.spec.node_affinity
    return reach_of_nodes(affinity.required) if affinity is not None else EVERYWHERE


def claim_key(volume: PersistentVolume) -> str:
    """Return `namespace/name` of the PV's claimRef, "" for none."""
    ref = volume.spec.claim_ref
    return f"{ref.namespace}/{ref.name}" if ref is not None else ""


class StaticVolumes:
    """Free PVs by class and topology, PVs by claimRef, and assumed ones."""

    def __init__(self) -> None:
        self._free: dict[str, ByTopology[StaticCandidate]] = {}
        self._candidates: dict[str, StaticCandidate] = {}
        self._claimed: dict[str, dict[str, PersistentVolume]] = {}
        self._assumed: dict[str, str] = {}  # volume -> claim uid
        self._assumed_for: dict[str, str] = {}  # claim uid -> volume

    def put(self, old: PersistentVolume | None, new: PersistentVolume | None) -> bool:
        """Handle a changed PV; return whether it became free.

        Raises: InvalidError for an invalid affinity or size.
        """
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
        candidate = StaticCandidate(new, matching.capacity(new), reach_of(new))
        self._candidates[new.metadata.name] = candidate
        in_class = self._free.setdefault(new.spec.storage_class_name, ByTopology(_order))
        in_class.add(candidate, candidate.reach)
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
        in_class = self._free[storage_class]
        in_class.remove(candidate, candidate.reach)
        if not in_class:
            del self._free[storage_class]
        return True

    def may_serve(self, claim: PersistentVolumeClaim) -> bool:
        """Return whether any node may have a PV for the claim."""
        return matching.class_name(claim) in self._free or claim.key in self._claimed

    def find(
        self, claim: PersistentVolumeClaim, size: int, labels: Labels, node: str, chosen: Collection[str]
    ) -> PersistentVolume | None:
        """Return the PV for a claim on a node, or None.

        One with a claimRef to the claim, else the smallest that fits. chosen: names of PVs for other claims of the pod.
        If the PV with the claimRef does not reach the node, the claim gets none there (FindMatchingVolume).
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
        best: StaticCandidate | None = None
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
        """Assume the PV for the claim."""
        self._assumed[volume] = claim_uid
        self._assumed_for[claim_uid] = volume

    def release(self, volume: str, claim_uid: str) -> None:
        """Forget the assumption: it was written, or will not be. Idempotent."""
        if self._assumed.get(volume) == claim_uid:
            del self._assumed[volume]
        if self._assumed_for.get(claim_uid) == volume:
            del self._assumed_for[claim_uid]


def _order(candidate: StaticCandidate) -> tuple[int, str]:
    return candidate.size, candidate.volume.metadata.name
