"""Capacity of drivers without topology: one CSIStorageCapacity for each class, which every node matches.

Agents publish what their own node has; what all nodes share has no node, so the controller publishes it (KEP-1472, as
external-provisioner with one deployment). Read when a class, a volume or the driver changes, and once a minute.
The CSIDriver owns the objects, so garbage collection removes them with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tonnage.controller.attach.drivers import AttachingDriver, AttachingDrivers
from tonnage.controller.config import LoopContext
from tonnage.csi.client import types
from tonnage.csi.client.types import GetCapacityResult
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume
from tonnage.kubernetes.api.kinds import CAPACITIES, CSI_DRIVERS, STORAGE_CLASSES, VOLUMES
from tonnage.kubernetes.api.meta import OwnerReference, to_builtins
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.kubernetes.api.storage import CSIDriver, CSIStorageCapacity, StorageClass
from tonnage.kubernetes.client.controller import Reconciler, on_difference
from tonnage.kubernetes.client.object_write import delete_object, patch_object
from tonnage.provisioning.capacity.object import numbers, object_name, reason
from tonnage.provisioning.claims.provisioning import capacity_parameters

POLL = 60.0
"""Seconds between two GetCapacity calls for a class that nothing has changed."""
SETTLING = 0.5
"""Seconds after which a changed volume is in the driver's numbers; a burst of volumes costs one call."""
MANAGER = "tonnage"
"""Value of the label managed-by. Those of agents are longer: `tonnage-` and the node."""
_BY_CLASS = "shared capacity: by class"


class SharedCapacity(Reconciler[str]):
    """Keys are names of StorageClasses."""

    def __init__(self, context: LoopContext, drivers: AttachingDrivers) -> None:
        super().__init__("shared_capacity", workers=4)
        self._client, self._namespace, self._drivers = context.client, context.config.namespace, drivers
        informers = context.informers
        self._objects = informers.of(CAPACITIES).cache
        self._objects.add_index(_BY_CLASS, lambda one: (one.storage_class_name,))
        self._csi_drivers = self.watch(informers.of(CSI_DRIVERS), on_difference(_wants_capacity, self._of_driver))
        self._classes = self.watch(informers.of(STORAGE_CLASSES), lambda old, new: _name(new or old))
        self.watch(informers.of(CAPACITIES), self._object_changed)
        self.watch(informers.of(VOLUMES), on_difference(lambda v: v.metadata.uid, self._volume_changed))
        drivers.on_add(lambda driver: self._enqueue_all(driver.name))

    async def reconcile(self, key: str) -> float | None:
        """Publish the capacity of one class, remove what is obsolete. Idempotent.

        Returns seconds until the next look. Raises: ApiError, CsiError.
        """
        storage_class = self._classes.get(key)
        driver = self._served(storage_class)
        name = object_name(driver.name, key, "") if driver is not None else ""
        have: CSIStorageCapacity | None = None
        for obj in self._objects.by(_BY_CLASS, key):
            if not self._is_ours(obj):
                continue
            if obj.metadata.name == name:
                have = obj
            elif self._is_known(storage_class):
                await delete_object(self._client, CAPACITIES, obj)
        if driver is None or storage_class is None:
            return None
        amount, why = await _read(driver, storage_class)
        await self._write(name, have, driver, storage_class, amount, why)
        return POLL

    def _is_known(self, storage_class: StorageClass | None) -> bool:
        """Return whether the class's driver has answered, or is not served here. Until then its objects stay."""
        if storage_class is None or self._drivers.get(storage_class.provisioner) is not None:
            return True
        return self._drivers.is_complete

    def _served(self, storage_class: StorageClass | None) -> AttachingDriver | None:
        """The driver, if its capacity is shared and Kubernetes looks at it."""
        driver = self._drivers.get(storage_class.provisioner) if storage_class is not None else None
        if storage_class is None or driver is None or driver.has_topology or not driver.has(types.GET_CAPACITY):
            return None
        csi = self._csi_drivers.get(driver.name)
        return driver if csi is not None and csi.spec.storage_capacity and storage_class.allows({}) else None

    async def _write(  # the fields of one object
        self,
        name: str,
        have: CSIStorageCapacity | None,
        driver: AttachingDriver,
        storage_class: StorageClass,
        amount: GetCapacityResult,
        why: str,
    ) -> None:
        fields: dict[str, Any] = {
            "capacity": from_bytes(amount.available),
            "maximumVolumeSize": None if amount.maximum is None else from_bytes(amount.maximum),
        }
        if have is None:
            body = {key: value for key, value in fields.items() if value is not None}
            await self._client.create(
                CAPACITIES, {**self._head(name, driver, storage_class, why), **body}, self._namespace
            )
        elif (numbers(have), reason(have)) != ((amount.available, amount.maximum), why):
            notes = {"metadata": {"annotations": {names.REASON: why or None}}}
            await patch_object(self._client, CAPACITIES, have, {**notes, **fields}, guarded=False)

    def _head(self, name: str, driver: AttachingDriver, storage_class: StorageClass, why: str) -> dict[str, Any]:
        csi = self._csi_drivers.get(driver.name)
        assert csi is not None
        owner = OwnerReference(CSI_DRIVERS.api_version, CSI_DRIVERS.kind, driver.name, csi.metadata.uid)
        metadata = {
            "name": name,
            "namespace": self._namespace,
            "labels": {names.CAPACITY_DRIVER: driver.name, names.CAPACITY_MANAGED_BY: MANAGER},
            "annotations": {names.REASON: why} if why else {},
            "ownerReferences": [to_builtins(owner)],
        }
        return {"metadata": metadata, "nodeTopology": {}, "storageClassName": storage_class.metadata.name}

    def _is_ours(self, obj: CSIStorageCapacity) -> bool:
        meta = obj.metadata
        return meta.namespace == self._namespace and meta.labels.get(names.CAPACITY_MANAGED_BY) == MANAGER

    # Events of the watches

    def _enqueue_all(self, driver: str) -> None:
        found = [one.metadata.name for one in self._classes] if self._drivers.is_complete else self._classes_of(driver)
        for name in found:
            self.enqueue(name)

    def _of_driver(self, driver: CSIDriver) -> Iterable[str]:
        return self._classes_of(driver.metadata.name)

    def _classes_of(self, driver: str) -> list[str]:
        return [one.metadata.name for one in self._classes if one.provisioner == driver]

    def _object_changed(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> Iterable[str]:
        """Objects that are removed or changed by others; our own writes find nothing to do."""
        seen = new or old
        assert seen is not None
        return (seen.storage_class_name,) if self._is_ours(seen) and old is not None else ()

    def _volume_changed(self, volume: PersistentVolume) -> Iterable[str]:
        if volume.spec.csi is not None and self._drivers.get(volume.spec.csi.driver) is not None:
            for name in self._classes_of(volume.spec.csi.driver):
                self.enqueue(name, after=SETTLING)
        return ()


async def _read(driver: AttachingDriver, storage_class: StorageClass) -> tuple[GetCapacityResult, str]:
    """The capacity of a class; 0 and why it can have no volumes. Raises: CsiError."""
    try:
        return await driver.client("").get_capacity(capacity_parameters(storage_class)), ""
    except CsiError as failure:
        if not failure.infeasible:
            raise
        return GetCapacityResult(0, 0), failure.message[:240]


def _wants_capacity(driver: CSIDriver) -> object:
    return driver.metadata.uid, driver.spec.storage_capacity


def _name(one: StorageClass | None) -> Iterable[str]:
    return (one.metadata.name,) if one is not None else ()
