"""Publishes what is left: one CSIStorageCapacity for each class of each driver of this node (kubernetes-behaviour 5.8).

Decreases go out at once and then at most every 100 ms; increases at most once a second for the node, since each wakes
every waiting pod; nothing is written when nothing changed. The objects belong to the Node, so that they go with it.
`tonnage.dev/counted` tells the scheduler up to which claim the numbers include its promises.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tonnage.aio.backoff import Backoff
from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.api.core import Node
from tonnage.api.kinds import CAPACITIES, NODES
from tonnage.api.quantity import from_bytes, to_bytes
from tonnage.api.storage import CSIStorageCapacity, StorageClass
from tonnage.controllers.drivers import AHEAD, Driver, Drivers, NodeScope
from tonnage.controllers.ledger import Ledger, Room, Source
from tonnage.controllers.readings import Readings
from tonnage.errors import ApiAlreadyExists, ApiNotFound, TonnageError
from tonnage.kube.client import Client
from tonnage.kube.informer import Informers

log = logging.getLogger(__name__)
DECREASE_EVERY = 0.1
INCREASE_EVERY = 1.0


@dataclass(frozen=True)
class _Wish:
    """One object as it should be."""

    name: str
    driver: Driver
    storage_class: StorageClass
    room: Room
    counted: int
    reason: str = ""


class CapacityPublisher:
    """Writes the objects. run() begins when the ledger is rebuilt: the caller says so with ready()."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        drivers: Drivers,
        ledger: Ledger,
        readings: Readings,
        scope: NodeScope,
        clock: Clock,
        *,
        namespace: str,
    ) -> None:
        self._client, self._drivers, self._ledger, self._readings = client, drivers, ledger, readings
        self._scope, self._clock, self._namespace = scope, clock, namespace
        self._managed_by = managed_by(scope.node)
        self._objects: dict[str, CSIStorageCapacity] = {}
        self._wake = asyncio.Event()
        self._written = self._increased = float("-inf")
        self._backoff = Backoff(initial=1.0, maximum=300.0)
        labels = f"{names.CAPACITY_MANAGED_BY}={self._managed_by}"
        self._informer = informers.of(CAPACITIES, namespace=namespace, labels=labels)
        self._informer.cache.on_change(self._seen)
        self._nodes = informers.of(NODES, fields=f"metadata.name={scope.node}")
        self._nodes.cache.on_change(self._node_changed)
        drivers.on_add(lambda _: self.wake())

    def wake(self) -> None:
        """Numbers may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._informer.wait_synced()
        await self._nodes.wait_synced()
        while True:
            try:
                pause = await self.publish()
                self._backoff.forget("")
            except TonnageError as failure:
                pause = self._backoff.next("")
                log.warning("capacity not published retry=%.0fs error=%s", pause, failure)
                await self._clock.sleep(pause)
                continue
            await self._sleep(pause)

    async def publish(self) -> float | None:
        """Write what is due, say in how many seconds more is due (None: nothing is waiting). May be repeated.

        Raises ApiError, Unavailable.
        """
        self._wake.clear()
        wishes = self._wishes()
        await self._remove_obsolete({w.name for w in wishes})
        now = self._clock.monotonic()
        lower = [w for w in wishes if self._is_urgent(w)]
        higher = [w for w in wishes if self._is_higher(w) and w not in lower]
        may_rise = now >= self._increased + INCREASE_EVERY
        if lower and now >= self._written + DECREASE_EVERY:
            self._written = now
            for wish in lower:
                await self._write(wish, rise=may_rise)
            lower = []
        if higher and may_rise:
            self._increased = now
            for wish in higher:
                await self._write(wish, rise=True)
            higher = []
        if lower:
            return self._written + DECREASE_EVERY - now
        return self._increased + INCREASE_EVERY - now if higher else None

    async def _sleep(self, pause: float | None) -> None:
        """Until something changes, or a write's time has come; changes within 100 ms are taken together."""
        if pause is not None and pause <= DECREASE_EVERY:
            await self._clock.sleep(pause)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()

    # What should be there

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Only its coming matters: what belonged to a Node that went is garbage collected."""
        if new is not None and (old is None or old.metadata.uid != new.metadata.uid):
            self._wake.set()

    def _wishes(self) -> list[_Wish]:
        found = []
        for driver in self._drivers:
            for source, storage_class in self._readings.sources(driver).items():
                room = self._ledger.room(source)
                if room is not None:
                    name = self._name(source)
                    reason = self._readings.faults.get(source)
                    if driver.publishes_ahead(storage_class):
                        reason = reason or AHEAD
                    found.append(_Wish(name, driver, storage_class, room, self._ledger.counted, reason))
        return found

    def _name(self, source: Source) -> str:
        return object_name(source.driver, source.storage_class, self._scope.node)

    def _seen(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> None:
        """Somebody, usually this process, wrote or removed one of our objects."""
        if new is None:
            assert old is not None
            self._objects.pop(old.metadata.name, None)
            self._wake.set()
            return
        have = self._objects.get(new.metadata.name)
        if have is None or _version(new) > _version(have):
            self._objects[new.metadata.name] = new
            self._wake.set()

    async def _remove_obsolete(self, wanted: set[str]) -> None:
        """Objects of classes and drivers that are gone. One without a reading is left as it is (5.8)."""
        kept = set(wanted)
        for driver in self._drivers:
            kept |= {self._name(s) for s in self._readings.sources(driver)}
        for name, obj in list(self._objects.items()):
            known = self._drivers.get(obj.metadata.labels.get(names.CAPACITY_DRIVER, "")) is not None
            if name not in kept and (known or self._drivers.complete):
                with suppress(ApiNotFound):
                    await self._client.delete(CAPACITIES, name, self._namespace)
                self._objects.pop(name, None)

    # Comparing

    def _is_urgent(self, wish: _Wish) -> bool:
        have = self._objects.get(wish.name)
        if have is None:
            return False
        available, maximum = _numbers(have)
        lowered = wish.room.available < available or _less(wish.room.maximum, maximum)
        return lowered or _counted(have) < self._ledger.promised or _reason(have) != wish.reason

    def _is_higher(self, wish: _Wish) -> bool:
        have = self._objects.get(wish.name)
        if have is None:  # it will belong to the Node, so there must be one
            return self._nodes.cache.get(self._scope.node) is not None
        available, maximum = _numbers(have)
        return wish.room.available > available or _less(maximum, wish.room.maximum)

    # Writing

    async def _write(self, wish: _Wish, *, rise: bool) -> None:
        have = self._objects.get(wish.name)
        if have is None or not _same_place(have, wish):
            await self._create(wish, have)
            return
        room = wish.room
        if not rise:  # the count must be told now, the larger number later: what was published is still safe
            available, maximum = _numbers(have)
            room = Room(min(room.available, available), _least(room.maximum, maximum))
        body = {
            "metadata": {"annotations": {names.COUNTED: str(wish.counted), names.REASON: wish.reason or None}},
            "capacity": from_bytes(room.available),
            "maximumVolumeSize": None if room.maximum is None else from_bytes(room.maximum),
        }
        try:
            self._keep(await self._client.patch(CAPACITIES, wish.name, body, self._namespace))
        except ApiNotFound:
            self._objects.pop(wish.name, None)
            self._wake.set()

    async def _create(self, wish: _Wish, have: CSIStorageCapacity | None) -> None:
        if have is not None:  # its topology and class cannot be changed
            await self._client.delete(CAPACITIES, wish.name, self._namespace)
            self._objects.pop(wish.name, None)
        node = self._nodes.cache.get(self._scope.node)
        if node is None:
            return
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._scope.node, "uid": node.metadata.uid}
        try:
            self._keep(await self._client.create(CAPACITIES, self._body(wish, owner), self._namespace))
        except ApiAlreadyExists:  # made before a restart, and the watch is behind
            self._keep(await self._client.get(CAPACITIES, wish.name, self._namespace))
            self._wake.set()

    def _body(self, wish: _Wish, owner: dict[str, str]) -> dict[str, Any]:
        labels = {
            names.CAPACITY_DRIVER: wish.driver.name,
            names.CAPACITY_MANAGED_BY: self._managed_by,
            names.NODE_LABEL: self._scope.label,
        }
        pool = wish.driver.pool(wish.storage_class)
        if pool and not wish.reason:  # a class may name any text as its pool, and a label may not hold it
            labels[names.POOL_LABEL] = names.label_value(pool)
        body: dict[str, Any] = {
            "metadata": {
                "name": wish.name,
                "namespace": self._namespace,
                "labels": labels,
                "annotations": {
                    names.COUNTED: str(wish.counted),
                    **({names.REASON: wish.reason} if wish.reason else {}),
                },
                "ownerReferences": [{**owner, "controller": True}],
            },
            "nodeTopology": {"matchLabels": dict(wish.driver.segment)},
            "storageClassName": wish.storage_class.metadata.name,
            "capacity": from_bytes(wish.room.available),
        }
        if wish.room.maximum is not None:
            body["maximumVolumeSize"] = from_bytes(wish.room.maximum)
        return body

    def _keep(self, obj: CSIStorageCapacity) -> None:
        self._objects[obj.metadata.name] = obj


def object_name(driver: str, storage_class: str, node: str) -> str:
    """Name of the capacity object of a driver's class on a node: always the same, so that none is made twice."""
    text = "\0".join((driver, storage_class, node))
    return f"csisc-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def managed_by(node: str) -> str:
    """Value of the label that says whose agent writes the object."""
    return names.label_value(f"tonnage-{node}")


def _numbers(obj: CSIStorageCapacity) -> tuple[int, int | None]:
    maximum = None if obj.maximum_volume_size is None else to_bytes(obj.maximum_volume_size)
    return to_bytes(obj.capacity or "0"), maximum


def _counted(obj: CSIStorageCapacity) -> int:
    text = obj.metadata.annotations.get(names.COUNTED, "0")
    return int(text) if text.isdecimal() else 0


def _reason(obj: CSIStorageCapacity) -> str:
    return obj.metadata.annotations.get(names.REASON, "")


def _version(obj: CSIStorageCapacity) -> int:
    return int(obj.metadata.resource_version or 0)


def _same_place(obj: CSIStorageCapacity, wish: _Wish) -> bool:
    labels = obj.node_topology.match_labels if obj.node_topology else None
    return labels == dict(wish.driver.segment) and obj.storage_class_name == wish.storage_class.metadata.name


def _less(one: int | None, other: int | None) -> bool:
    """Whether the first maximum allows less than the second; None allows everything."""
    return one is not None and (other is None or one < other)


def _least(one: int | None, other: int | None) -> int | None:
    return min((m for m in (one, other) if m is not None), default=None)
