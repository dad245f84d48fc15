"""Finalizers of PersistentVolumes: adds external-provisioner's to a PV with policy Delete that lacks it.

Such a PV was made by an earlier version, or had the policy Retain. Without it, a deletion by a person goes unseen, and
its volume becomes an orphan. As external-provisioner does it (sig-storage-lib-external-provisioner,
handleProtectionFinalizer), but one after the other with a pause: after an upgrade, all PVs of a cluster may lack it.
The reclaim controller removes it again where the policy is Retain.
"""

from __future__ import annotations

from tonnage.base.aio.backoff import Backoff
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume
from tonnage.kubernetes.api.kinds import VOLUMES
from tonnage.kubernetes.api.matching import driver_volume
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.provisioner.context import NodeContext
from tonnage.provisioning.claims.bind import change

PAUSE = 1.0
"""Seconds between two writes of one node."""
RETRY_START, RETRY_MAX = 60.0, 3600.0
"""Nothing waits for it, and an installation's policy of before rejects it."""


class FinalizerSync(Reconciler[str]):
    """Loop over this node's PVs."""

    def __init__(self, node: NodeContext, informers: Informers) -> None:
        self._client, self._clock = node.client, node.clock
        self._drivers, self._volumes = node.drivers, node.volumes
        super().__init__("finalizers", workers=1, backoff=Backoff(RETRY_START, RETRY_MAX))
        self.watch(informers.of(VOLUMES, labels=node.scope.selector), _keys, deferred=True)
        self._drivers.on_add(lambda _: self._look_at_all())

    def _look_at_all(self) -> None:
        for volume in self._volumes:
            for key in _keys(None, volume):
                self.enqueue(key)

    async def reconcile(self, key: str) -> None:
        """Add the finalizer to the PV of that name, if it lacks it."""
        cached = self._volumes.get(key)
        found = driver_volume(cached) if cached is not None else None
        driver = self._drivers.get(found[0]) if found is not None else None
        if cached is None or driver is None or not driver.reaches(cached) or not _lacks_finalizer(cached):
            return
        await change(self._client, VOLUMES, cached, _with_finalizer)
        await self._clock.sleep(PAUSE)


def _keys(old: PersistentVolume | None, new: PersistentVolume | None) -> tuple[str, ...]:
    """Return the keys to reconcile. Ignored: PVs that have what they need, as almost all."""
    return (new.key,) if new is not None and _lacks_finalizer(new) else ()


def _lacks_finalizer(volume: PersistentVolume) -> bool:
    return (
        volume.spec.persistent_volume_reclaim_policy == "Delete"
        and volume.status.phase == "Bound"
        and not volume.metadata.deleting
        and names.PROVISIONED_BY in volume.metadata.annotations
        and names.PROVISIONER_FINALIZER not in volume.metadata.finalizers
    )


def _with_finalizer(volume: PersistentVolume) -> dict[str, object] | None:
    if not _lacks_finalizer(volume):
        return None
    return {"metadata": {"finalizers": [*volume.metadata.finalizers, names.PROVISIONER_FINALIZER]}}
