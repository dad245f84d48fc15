"""PV controller: binds claims to PVs, maintains phases, reclaims PVs (pkg/controller/volume).

It is level-based and works from caches: a finished step costs no write. A node's agent usually binds the PV that it
made, and has `grace` seconds for that. Events about waiting come only after `quiet` seconds, so that a claim that is
served at once has none.

Watched: claims, PVs, classes. Pods are read for the Events only; a new pod changes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CSI_DRIVERS, STORAGE_CLASSES
from tonnage.kubernetes.api.matching import is_default
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.indexes import (
    CLAIMS_BY_VOLUME,
    CLAIMS_UNBOUND,
    VOLUMES_BY_CLAIM,
    claim_keys,
    claims,
    pods_by_claim,
    volumes,
)
from tonnage.kubernetes.client.informer import Informers
from tonnage.provisioning.claims.bind import is_complete
from tonnage_box.controllers.pv_binder.sync import BinderView, ClaimSync, VolumeSync

NAME = "persistentvolume-controller"
CLAIM, VOLUME, CLASS = "claim", "volume", "class"


class BinderKey(NamedTuple):
    """Key of one reconcile: a claim, a PV, or all unbound claims of a class."""

    what: str
    key: str


class Binder(Reconciler[BinderKey]):
    """Moves claims to Pending, Bound or Lost and PVs to Available, Bound, Released or Failed. Times in seconds."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder,
        *,
        clock: Clock | None = None,
        grace: float = 10.0,
        quiet: float = 3.0,
    ) -> None:
        self._view = BinderView(client, informers, events, clock or RealClock(), grace=grace, quiet=quiet)
        self._claims, self._volumes = self._view.claims, self._view.volumes
        self._claim_sync, self._volume_sync = ClaimSync(self._view), VolumeSync(self._view)
        super().__init__(NAME, workers=16)
        self.watch(informers.of(STORAGE_CLASSES), _class_changed)
        self.watch(informers.of(CSI_DRIVERS), lambda old, new: ())
        self.watch(volumes(informers), self._volume_changed)
        self.watch(claims(informers), self._claim_changed)
        self.watch(pods_by_claim(informers), self._pod_changed)

    async def reconcile(self, key: tuple[str, str]) -> float | None:
        """Reconcile a claim, a PV, or a class's unbound claims by one step. Idempotent."""
        what, name = key
        if what == CLASS:
            for waiting in self._claims.by(CLAIMS_UNBOUND, name):
                self.enqueue(BinderKey(CLAIM, waiting.key))
            return None
        if what == CLAIM:
            claim = self._claims.get(name)
            return None if claim is None else await self._claim_sync.sync(claim)
        volume = self._volumes.get(name)
        return None if volume is None else await self._volume_sync.sync(volume)

    def _claim_changed(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterable[BinderKey]:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            keys = self._claim_gone(old)
            return keys if new is None else [*keys, *self._claim_changed(None, new)]
        assert new is not None
        if not new.spec.volume_name:
            return self._later([BinderKey(CLAIM, new.key)], self._view.only_waits(new))
        keys = [BinderKey(CLAIM, new.key), BinderKey(VOLUME, new.spec.volume_name)]
        volume = self._volumes.get(new.spec.volume_name)
        return keys if volume is None else self._pair_changed(keys, new, volume)

    def _pair_changed(
        self, keys: list[BinderKey], claim: PersistentVolumeClaim, volume: PersistentVolume
    ) -> Iterable[BinderKey]:
        if is_complete(claim, volume):
            self._view.settled(claim, volume)
            return ()
        return self._later(keys, self._view.left_to_agent(claim, volume))

    def _later(self, keys: list[BinderKey], seconds: float) -> Iterable[BinderKey]:
        """Enqueue keys after a wait; without one they are for now."""
        if not seconds:
            return keys
        for key in keys:
            self.enqueue(key, after=seconds)
        return ()

    def _claim_gone(self, claim: PersistentVolumeClaim) -> Iterable[BinderKey]:
        self._view.waits.over(claim.metadata.uid)
        self._view.gone.add(claim.metadata.uid)
        return [BinderKey(VOLUME, volume.key) for volume in self._volumes.by(VOLUMES_BY_CLAIM, claim.key)]

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[BinderKey]:
        volume = new or old
        assert volume is not None
        name, ref = volume.metadata.name, volume.spec.claim_ref
        self._view.volume_seen(name, new)
        keys = [BinderKey(CLAIM, claim.key) for claim in self._claims.by(CLAIMS_BY_VOLUME, name)]
        if ref is not None:
            keys.append(BinderKey(CLAIM, f"{ref.namespace}/{ref.name}"))
        if new is None:
            self._view.waits.over(volume.metadata.uid)
            return keys
        keys.append(BinderKey(VOLUME, name))
        if ref is not None:
            claim = self._claims.get(f"{ref.namespace}/{ref.name}")
            return keys if claim is None else self._pair_changed(keys, claim, new)
        if new.status.phase == "Available":
            keys.append(BinderKey(CLASS, new.spec.storage_class_name))
        return keys

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> Iterable[BinderKey]:
        """A consumer has come: what the claim's Event says of it may differ; that has time."""
        if old is None and new is not None and not new.spec.node_name:
            for key in claim_keys(new):
                if (claim := self._claims.get(key)) is not None and not claim.spec.volume_name:
                    self.enqueue(BinderKey(CLAIM, key), after=self._view.quiet)
        return ()


def _class_changed(old: StorageClass | None, new: StorageClass | None) -> Iterable[BinderKey]:
    if new is None:
        return ()
    keys = [BinderKey(CLASS, new.metadata.name)]
    if is_default(new):
        keys.append(BinderKey(CLASS, ""))
    return keys
