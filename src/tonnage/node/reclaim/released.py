"""Reclaim controller: deletes volumes of Released PVs (KEP-2644).

Only with reclaim policy Delete.

It deletes the volume first, then the PV, then removes our finalizer. While a PV exists, its volume exists or was
certainly deleted. A call without an answer is no deletion. A PV that vanishes is no order: what the cache has of it may
be older than a person's change of its policy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from tonnage.base.aio.backoff import Backoff
from tonnage.base.errors import ApiConflictError, ApiNotFoundError, InvalidError, PreconditionError, TonnageError
from tonnage.base.observe import metrics
from tonnage.csi.client import types
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume
from tonnage.kubernetes.api.kinds import ATTACHMENTS, VOLUMES
from tonnage.kubernetes.api.matching import driver_volume
from tonnage.kubernetes.api.selectors import node_matcher
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.object_write import without_finalizers
from tonnage.node.provisioner.context import NodeContext
from tonnage.provisioning.claims.bind import change, find
from tonnage.provisioning.claims.node_scope import DriverInfo
from tonnage.provisioning.claims.provisioning import SecretRef, read_secret, secret_of

log = logging.getLogger(__name__)
WORKERS = 100
RETRY_START, RETRY_MAX = 1.0, 300.0


class Reclaimer(Reconciler[str]):
    """Loop over this node's PVs."""

    def __init__(self, node: NodeContext, informers: Informers) -> None:
        self._client, self._events, self._node = node.client, node.events, node.scope.node
        self._drivers, self._readings, self._clock = node.drivers, node.readings, node.clock
        self._volumes, self._classes, self._deletions = node.volumes, node.classes, node.deletions
        self.on_lost: Callable[[], None] = lambda: None
        """Called when a PV vanished whose volume we have not deleted."""
        self._deleted: set[str] = set()  # uids of PVs whose volume is deleted; the watch may still show them
        super().__init__("reclaim", workers=WORKERS, backoff=Backoff(RETRY_START, RETRY_MAX))
        self.watch(informers.of(VOLUMES, labels=node.scope.selector), self._keys)
        self._drivers.on_add(lambda _: self._look_at_all())

    def _keys(self, old: PersistentVolume | None, new: PersistentVolume | None) -> tuple[str, ...]:
        """Return the keys to reconcile.

        Ignored: volumes in use, and those that we have just deleted.
        """
        if new is None:
            assert old is not None
            uid = old.metadata.uid
            if uid in self._deleted:
                self._deleted.discard(uid)
                return ()
            self.on_lost()
            return ()
        if _is_due(new) or _keeps_needlessly(new):
            return () if new.metadata.uid in self._deleted and not _ours(new) else (new.key,)
        return ()

    def _look_at_all(self) -> None:
        for volume in self._volumes:
            for key in self._keys(None, volume):
                self.enqueue(key)

    async def reconcile(self, key: str) -> None:
        """Delete the volume of the PV of that name, if it is due."""
        cached = self._volumes.get(key)
        if cached is None:
            return
        driver = self._driver(cached)
        if driver is None or not self._is_here(cached, driver):
            return
        if _keeps_needlessly(cached):
            await self._let_go(cached)
            return
        volume = await find(self._client, VOLUMES, key)  # live: the deletion destroys data of a user
        if volume is not None and volume.metadata.uid == cached.metadata.uid and _is_due(volume):
            await self._delete(volume, driver)

    def _driver(self, volume: PersistentVolume) -> DriverInfo | None:
        found = driver_volume(volume)
        if found is None and _is_written_flex(volume):
            return self._drivers.get(names.DRIVER)
        return self._drivers.get(found[0]) if found is not None else None

    async def _handles(self, volume: PersistentVolume, driver: DriverInfo) -> list[str]:
        """Return the handles of the PV's volume; that of a FlexVolume that a person wrote has its uid in the name.

        Its pool may be the default one of another day, so all are searched.
        """
        if (found := driver_volume(volume)) is not None:
            return [found[1]]
        uid = volume.metadata.uid
        return [one.id for one in await driver.client.list_volumes() if names.flex_uid(one.id) == uid]

    def _is_here(self, volume: PersistentVolume, driver: DriverInfo) -> bool:
        """Return whether this node's driver has the volume.

        Any other driver would answer that it is unknown, which counts as deleted.
        """
        affinity = volume.spec.node_affinity
        if affinity is None or affinity.required is None:
            return True  # reachable from every node: the label says which agent made it
        return node_matcher(affinity.required)({names.HOSTNAME_LABEL: self._node, **driver.segment}, self._node)

    async def _delete(self, volume: PersistentVolume, driver: DriverInfo) -> None:
        uid, storage_class = volume.metadata.uid, volume.spec.storage_class_name
        if uid not in self._deleted:
            # Metrics as external-provisioner's: each failed attempt counts, and only successes have a duration
            # (sig-storage-lib-external-provisioner, controller/metrics).
            began = self._clock.monotonic()
            try:
                await self._check_detached(volume, driver)
                await self._delete_volume(volume, driver)
            except TonnageError as failure:
                metrics.DELETE_FAILED.labels(storage_class).inc()
                self._events.warning(refer(VOLUMES, volume), "VolumeFailedDelete", str(failure))
                raise
            metrics.DELETED.labels(storage_class).inc()
            metrics.DELETE_SECONDS.labels(storage_class).observe(self._clock.monotonic() - began)
            self._deleted.add(uid)
        if not volume.metadata.deleting:
            try:
                await self._deletions.delete_persistent_volume(volume, "its volume is deleted")
            except (ApiNotFoundError, ApiConflictError):  # gone, or created again by somebody
                return
        if _ours(volume):
            await self._let_go(volume)

    async def _delete_volume(self, volume: PersistentVolume, driver: DriverInfo) -> None:
        for handle in await self._handles(volume, driver):
            await self._deletions.delete_released(driver, handle, volume, await self._secrets(volume))
        self._readings.want(driver.name, freed=True)

    async def _secrets(self, volume: PersistentVolume) -> dict[str, str]:
        """Return the secrets that the PV names, else those of its class.

        A secret that cannot be read is left out.
        """
        try:
            return await read_secret(self._client, self._secret(volume))
        except (ApiNotFoundError, InvalidError) as failure:
            log.warning("secret for deletion not read volume=%s error=%s", volume.metadata.name, failure)
            return {}

    def _secret(self, volume: PersistentVolume) -> SecretRef | None:
        notes = volume.metadata.annotations
        if names.DELETION_SECRET_NAME in notes:
            name, namespace = notes[names.DELETION_SECRET_NAME], notes.get(names.DELETION_SECRET_NAMESPACE, "")
            return SecretRef(name, namespace) if name and namespace else None
        storage_class: StorageClass | None = self._classes.get(volume.spec.storage_class_name)
        if storage_class is None:
            return None
        return secret_of(storage_class.parameters, "provisioner-", None, volume.metadata.name)

    async def _check_detached(self, volume: PersistentVolume, driver: DriverInfo) -> None:
        if types.PUBLISH_UNPUBLISH_VOLUME not in driver.controller:
            return
        for attachment in (await self._client.list(ATTACHMENTS)).items:
            source = attachment.spec.get("source") or {}
            if source.get("persistentVolumeName") == volume.metadata.name:
                node = attachment.spec.get("nodeName", "")
                raise PreconditionError(f"persistentvolume {volume.metadata.name} is still attached to node {node}")

    async def _let_go(self, volume: PersistentVolume) -> None:
        """Remove our finalizer."""
        # The deletion has just changed it: read it again to avoid a conflict.
        now = await find(self._client, VOLUMES, volume.metadata.name)
        if now is not None and now.metadata.uid == volume.metadata.uid:
            with suppress(ApiNotFoundError, ApiConflictError):
                await change(
                    self._client, VOLUMES, now, lambda live: without_finalizers(live, names.PROVISIONER_FINALIZER)
                )


def _ours(volume: PersistentVolume) -> bool:
    return names.PROVISIONER_FINALIZER in volume.metadata.finalizers


def _is_due(volume: PersistentVolume) -> bool:
    policy = volume.spec.persistent_volume_reclaim_policy
    provisioned = names.PROVISIONED_BY in volume.metadata.annotations
    return (volume.status.phase == "Released" or _is_unwanted(volume)) and policy == "Delete" and provisioned


def _is_unwanted(volume: PersistentVolume) -> bool:
    """Return whether a PV that was not made for a claim was deleted while it has none."""
    ahead = names.DISK in volume.metadata.annotations or _is_written_flex(volume)
    return ahead and volume.spec.claim_ref is None and volume.metadata.deleting


def _is_written_flex(volume: PersistentVolume) -> bool:
    """Return whether a person wrote the PV, with a FlexVolume of ours."""
    flex = volume.spec.flex_volume
    return flex is not None and flex.driver in names.FLEX_DRIVERS and driver_volume(volume) is None


def _keeps_needlessly(volume: PersistentVolume) -> bool:
    """Return whether the PV no longer needs our finalizer.

    Its policy was changed to Retain, so we never delete its volume.
    """
    return volume.spec.persistent_volume_reclaim_policy == "Retain" and _ours(volume)
