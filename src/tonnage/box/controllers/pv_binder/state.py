"""State that the binder's two halves, claims and volumes, share."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS
from tonnage.api.matching import class_name, is_delayed
from tonnage.api.pods import Pod
from tonnage.api.storage import CSIDriver, StorageClass
from tonnage.box.controllers.tombstones import Absent
from tonnage.claims.bind import bind, is_complete
from tonnage.claims.timers import Waits
from tonnage.errors import Precondition
from tonnage.kube.cache import Cache
from tonnage.kube.client import Client, refer
from tonnage.kube.events import EventRecorder
from tonnage.kube.indexes import VOLUMES_BY_CLAIM, candidates

_STALE_SECONDS = 0.05


@dataclass
class BinderView:
    """Caches, granted waits, and own writes that the caches do not show yet."""

    client: Client
    events: EventRecorder
    claims: Cache[PersistentVolumeClaim]
    volumes: Cache[PersistentVolume]
    classes: Cache[StorageClass]
    pods: Cache[Pod]
    drivers: Cache[CSIDriver]
    clock: Clock
    waits: Waits
    grace: float
    quiet: float
    taken: dict[str, int] = field(default_factory=dict)
    """Volumes that we gave away -> the resourceVersion from which the cache knows it."""
    gone: Absent = field(default_factory=Absent)
    """uids of claims whose deletion the watch has reported."""

    def tell(self, claim: PersistentVolumeClaim, type_: str, reason: str, message: str) -> None:
        """Emit an Event on the claim, unless it repeats the last one."""
        if self.waits.news(claim.metadata.uid, f"{reason}: {message}"):
            self.events.record(refer(CLAIMS, claim), type_, reason, message)

    def candidates(self, claim: PersistentVolumeClaim) -> list[PersistentVolume]:
        """PVs that may serve the claim, without those that are bound, as far as the cache shows."""
        found = candidates(self.volumes, claim)
        if not self.taken:
            return found
        return [v for v in found if v.metadata.version >= self.taken.get(v.metadata.name, 0)]

    def patience(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> float:
        """Seconds left in which the agent that made the volume for this claim may bind it itself; 0 for any other
        pair: an agent binds no volume that was there before the claim, or that was made for another claim.
        """
        notes = volume.metadata.annotations
        by_agent = names.NODE_LABEL in volume.metadata.labels and names.PROVISIONED_BY in notes
        if not by_agent or volume.metadata.name != names.volume_name(claim.metadata.uid):
            return 0.0
        return self.waits.left(volume.metadata.uid, self.grace)

    def left_to_agent(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> float:
        """Seconds during which the agent that made the volume may bind the pair; 0: reconcile it now."""
        if volume.spec.claim_ref is None or volume.spec.claim_ref.uid != claim.metadata.uid:
            return 0.0
        if claim.spec.volume_name not in ("", volume.metadata.name) or volume.status.phase in ("Released", "Failed"):
            return 0.0
        return self.patience(claim, volume)

    def only_waits(self, claim: PersistentVolumeClaim) -> float:
        """Seconds until an Event is due on a claim that can only wait; 0: reconcile it now."""
        notes, storage_class = claim.metadata.annotations, self.classes.get(class_name(claim))
        if storage_class is None or not is_delayed(claim, storage_class) or claim.status.phase != "Pending":
            return 0.0
        if names.BIND_COMPLETED in notes or self.volumes.by(VOLUMES_BY_CLAIM, claim.key):
            return 0.0
        sent = names.SELECTED_NODE in notes
        if sent and notes.get(names.STORAGE_PROVISIONER) != storage_class.provisioner:
            return 0.0
        return self.waits.left(claim.metadata.uid, self.quiet)

    async def bind(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> float | None:
        """Bind claim and PV unless they are bound; returns the seconds until the next step. Raises ApiError,
        Unavailable.
        """
        if is_complete(claim, volume):
            self.settled(claim, volume)
            return None
        if left := self.patience(claim, volume):
            return left
        name = volume.metadata.name
        self.taken[name] = sys.maxsize
        try:
            _, bound = await bind(self.client, claim, volume, clock=self.clock)
        except Precondition:  # another writer was faster, and the cache will show it: choose again
            self.taken.pop(name, None)
            return _STALE_SECONDS
        except BaseException:
            self.taken.pop(name, None)
            raise
        self.taken[name] = bound.metadata.version
        self.volume_seen(name, self.volumes.get(name))
        return None

    def settled(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        """Forget the waits of a bound pair. Idempotent."""
        self.waits.over(claim.metadata.uid)
        self.waits.over(volume.metadata.uid)

    def volume_seen(self, name: str, volume: PersistentVolume | None) -> None:
        """The cache has this volume now (None: it has it no more)."""
        if volume is None or volume.metadata.version >= self.taken.get(name, sys.maxsize):
            self.taken.pop(name, None)
