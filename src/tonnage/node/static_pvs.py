"""Publisher of the disks of static pools as pre-provisioned PVs.

The scheduler then sees the size of each disk. Otherwise it might choose, for a claim of 10Gi, a node whose only free
disk has 4Ti. Order: the volume is created, which takes the disk, then its PV. A volume that a kill left without a PV
gets one at the next check, unless it was used. When a PV is released, its volume is deleted as any other; the erased
disk is free and is published again. The rules follow sig-storage-local-static-provisioner (pkg/discovery). There a
directory has one class. Here a pool is published in one class, since two PVs of one disk could both be claimed. Other
classes that name the pool get an Event.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tonnage.base.aio.backoff import Backoff
from tonnage.base.errors import (
    ApiAlreadyExistsError,
    ApiConflictError,
    ApiNotFoundError,
    InvalidError,
    PreconditionError,
)
from tonnage.csi.client import types
from tonnage.csi.client.types import CreatedVolume, VolumeCapability
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume
from tonnage.kubernetes.api.kinds import STORAGE_CLASSES, VOLUMES
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.capacity.poller import fault_of
from tonnage.node.provisioner.context import NodeContext
from tonnage.provisioning.claims import provisioning
from tonnage.provisioning.claims.node_scope import DriverInfo, NodeScope, publishes_ahead
from tonnage.provisioning.claims.provisioning import capacity_parameters, fstype_of, parameters_of
from tonnage.storage.pools.base.parameters import KIND, POOL

log = logging.getLogger(__name__)
RETRY_START, RETRY_MAX = 1.0, 300.0
LOOK_EVERY = 30.0
"""Minimum seconds between two checks of the published disks."""
Key = tuple[str, str]


class Publication(Reconciler[Key]):
    """Loop over this node's static pools. Keys are (driver, pool)."""

    def __init__(self, node: NodeContext, informers: Informers) -> None:
        self._client, self._events, self._clock = node.client, node.events, node.clock
        self._scope, self._drivers, self._readings = node.scope, node.drivers, node.readings
        self._volumes, self._deletions = node.volumes, node.deletions
        self._looked: dict[Key, float] = {}
        self._condition: dict[str, str] = {}
        super().__init__("publication", workers=2, backoff=Backoff(RETRY_START, RETRY_MAX))
        self.watch(informers.of(VOLUMES, labels=node.scope.selector), self._volume_changed)
        self.watch(informers.of(STORAGE_CLASSES), lambda old, new: self._pools())
        node.readings.on_reading(self._look_at_all)
        self._drivers.on_add(lambda _: self._look_at_all())

    def _pools(self) -> Iterator[Key]:
        for driver in self._drivers:
            yield from ((driver.name, pool) for pool, kind in driver.pools.items() if publishes_ahead(kind))

    def _look_at_all(self) -> None:
        for key in self._pools():
            self.enqueue(key)

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[Key]:
        """Return the pool of a deleted PV, whose disk is published again.

        Ignored: which claim a PV is bound to.
        """
        if new is not None:
            return ()
        assert old is not None
        self._condition.pop(old.metadata.uid, None)
        return self._pools() if names.DISK in old.metadata.annotations else ()

    async def reconcile(self, key: Key) -> float | None:
        """Publish the free disks of a pool. Idempotent.

        Raises: ApiError, CsiError, UnavailableError.
        """
        driver = self._drivers.get(key[0])
        if driver is None:
            return None
        chosen = self._choose(driver, key[1])
        await self._unpublish(driver, key[1], chosen)
        if chosen is not None:
            fault = fault_of(chosen) or _secrets_fault(chosen)
            publisher = _Publisher(self._client, self._scope, driver, key[1], chosen, fault)
            try:
                await publisher.publish(self._ours(driver, key[1]))
            finally:
                fault = publisher.fault
                source = driver.source(chosen)
                self._readings.faults.found(source, chosen, fault) if fault else self._readings.faults.clear(source)
        await self._look_at_disks(driver, key)
        return None

    def _ours(self, driver: DriverInfo, pool: str) -> list[PersistentVolume]:
        """Return a pool's pre-provisioned PVs."""
        return [v for v in self._volumes if _is_ahead(v) and _is_in(v, driver, pool)]

    def _choose(self, driver: DriverInfo, pool: str) -> StorageClass | None:
        """Return the class in which a pool is published, or None.

        In this order: classes that name the pool, late binding, the oldest.
        """
        classes = [c for c in self._readings.sources(driver).values() if driver.pool(c) == pool]
        ranked = sorted(classes, key=_rank)
        for other in ranked[1:]:
            reason = (
                f"pool {pool} is published as PersistentVolumes of class {ranked[0].metadata.name}: one class a pool"
            )
            self._readings.faults.found(driver.source(other), other, reason)
        return ranked[0] if ranked else None

    async def _unpublish(self, driver: DriverInfo, pool: str, chosen: StorageClass | None) -> None:
        """Delete unclaimed PVs of a class that no longer has the pool.

        The disk then becomes free. A PV with policy Retain stays, for a person to decide.
        """
        for volume in self._ours(driver, pool):
            if chosen is not None and volume.spec.storage_class_name == chosen.metadata.name:
                continue
            free = volume.spec.claim_ref is None and volume.status.phase == "Available"
            if not free or volume.metadata.deleting or volume.spec.persistent_volume_reclaim_policy != "Delete":
                continue
            with suppress(ApiNotFoundError, ApiConflictError):  # gone, or claimed at this moment
                why = f"no claim has it, and class {volume.spec.storage_class_name} has no such pool any more"
                await self._deletions.delete_persistent_volume(volume, why, unchanged=True)

    async def _look_at_disks(self, driver: DriverInfo, key: Key) -> None:
        """Report published disks that vanished, were swapped, or are back.

        The volumes stay.
        """
        now = self._clock.monotonic()
        if types.GET_VOLUME not in driver.controller or now < self._looked.get(key, -LOOK_EVERY) + LOOK_EVERY:
            return
        self._looked[key] = now
        for volume in self._ours(driver, key[1]):
            assert volume.spec.csi is not None
            try:
                _, health = await driver.client.get_volume(volume.spec.csi.volume_handle)
            except CsiError as failure:
                if failure.code is not Code.NOT_FOUND:
                    raise
                continue  # deleted a moment ago
            self._tell(volume, health)

    def _tell(self, volume: PersistentVolume, health: types.Health) -> None:
        uid, message = volume.metadata.uid, health.message if health.abnormal else ""
        if message == self._condition.get(uid, ""):
            return
        self._condition[uid] = message
        about = refer(VOLUMES, volume)
        if message:
            self._events.warning(about, "VolumeConditionAbnormal", message)
        else:
            self._events.normal(about, "VolumeConditionNormal", health.message)


@dataclass
class _Publisher:
    """Publishes one pool once.

    fault: why the class cannot have volumes, or "".
    """

    _client: Client
    _scope: NodeScope
    _driver: DriverInfo
    _pool: str
    _class: StorageClass
    fault: str

    async def publish(self, known: Sequence[PersistentVolume]) -> None:
        """Create a PV for each free disk, and for each volume without one.

        Raises: as reconcile().
        """
        if self.fault:
            return
        listed = [v for v in await self._driver.client.list_volumes() if self._is_ours(v)]
        handles = {v.spec.csi.volume_handle for v in known if v.spec.csi}
        lacking = [v for v in listed if v.id not in handles]
        if lacking:  # live: a person may have adopted it under another name, or removed our label
            live = (await self._client.list(VOLUMES)).items
            mine = [s for v in live if (s := v.spec.csi) and s.driver == self._driver.name and self._driver.reaches(v)]
            handles = {source.volume_handle for source in mine}
        modes = self._modes()
        for volume in lacking:
            if volume.id not in handles:
                await self._complete(volume, modes)
        taken = {v.context.get(names.CSI_PV_NAME, "") for v in listed} | {v.metadata.name for v in known}
        faults = []
        for mode in modes:
            try:
                while size := await self._largest(mode):
                    await self._make(self._unused(taken), size, mode)
            except CsiError as failure:
                if not failure.infeasible:
                    raise
                faults.append(failure.message)
        self.fault = faults[0] if len(faults) == len(modes) else ""

    def _is_ours(self, volume: CreatedVolume) -> bool:
        record = volume.context
        mine = record.get(names.PARAM_CLUSTER) == self._scope.cluster_uid and names.PARAM_CLASS in record
        return mine and volume.id.startswith(f"{self._pool}/")

    def _modes(self) -> list[VolumeCapability]:
        """Return the capabilities of the class's disks.

        With the file system that the class names, else any.
        """
        fine = types.SINGLE_NODE_MULTI_WRITER in self._driver.controller
        access = types.AccessMode.of(names.READ_WRITE_ONCE, single_node_multi_writer=fine)
        fstype = fstype_of(self._class)
        files = VolumeCapability(access, fstype=fstype, mount_flags=tuple(self._class.mount_options))
        return [files] if fstype else [files, VolumeCapability(access, block=True)]

    async def _largest(self, mode: VolumeCapability) -> int:
        """Return bytes of the largest free disk, 0 for none."""
        topology = self._driver.segment if self._driver.topology else None
        capacity = await self._driver.client.get_capacity(
            capacity_parameters(self._class), topology=topology, capabilities=(mode,)
        )
        return capacity.maximum or 0

    def _unused(self, taken: set[str]) -> str:
        """Return an unused PV name of this node, pool and class, and mark it as used."""
        for number in range(len(taken) + 1):
            text = "\0".join((self._scope.node, self._pool, self._class.metadata.name, str(number)))
            name = f"static-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
            if name not in taken:
                taken.add(name)
                return name
        raise AssertionError("unreachable")

    async def _complete(self, volume: CreatedVolume, modes: Sequence[VolumeCapability]) -> None:
        """Publish a volume that a kill left without a PV.

        A volume that was used before stays for people to check, as the sweep reports; so does one that was created in
        another way.
        """
        name = volume.context.get(names.CSI_PV_NAME, "")
        if volume.context.get(names.PARAM_CLASS) != self._class.metadata.name or not name:
            return
        for mode in modes:
            try:
                await self._make(name, volume.size, mode)
            except CsiError as failure:
                if failure.code is not Code.ALREADY_EXISTS:
                    raise
                continue
            return

    async def _make(self, name: str, size: int, mode: VolumeCapability) -> None:
        """Create a volume on a disk of that size and publish it.

        Idempotent for the same name.
        """
        record = {
            names.CSI_PV_NAME: name,
            names.PARAM_CLUSTER: self._scope.cluster_uid,
            names.PARAM_RECLAIM: self._class.reclaim_policy,
            names.PARAM_CLASS: self._class.metadata.name,
        }
        place = types.CsiTopologyRequirement((self._driver.segment,), (self._driver.segment,))
        made = await self._driver.client.create_volume(
            name,
            size,
            [mode],
            parameters={**parameters_of(self._class), **record, names.PARAM_UNUSED: "true"},
            topology=place if self._driver.topology else None,
        )
        body = provisioning.volume_of_disk(
            name, made, self._class, self._driver, self._scope, fstype=mode.fstype, block=mode.block
        )
        try:
            await self._client.create(VOLUMES, body)
        except ApiAlreadyExistsError:
            there = await self._client.get(VOLUMES, name)
            if there.spec.csi is None or there.spec.csi.volume_handle != made.id or there.metadata.deleting:
                raise PreconditionError(f"PersistentVolume {name} is in the way of volume {made.id}") from None
        log.info("disk published volume=%s disk=%s", name, made.context.get(names.DISK, ""))


def _secrets_fault(storage_class: StorageClass) -> str:
    try:
        provisioning.check_secrets(storage_class)
    except InvalidError as reason:
        return f"{reason}: its volumes are there before their claims"
    return ""


def _is_ahead(volume: PersistentVolume) -> bool:
    return names.DISK in volume.metadata.annotations


def _is_in(volume: PersistentVolume, driver: DriverInfo, pool: str) -> bool:
    source = volume.spec.csi
    return source is not None and source.driver == driver.name and source.volume_handle.startswith(f"{pool}/")


def _rank(storage_class: StorageClass) -> tuple[bool, bool, str, str]:
    chosen = bool({POOL, KIND} & set(storage_class.parameters))
    meta = storage_class.metadata
    return not chosen, not storage_class.late, meta.creation_timestamp or "", meta.name
