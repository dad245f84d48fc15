"""Publishes what is left: one CSIStorageCapacity for each class of each driver of this node (kubernetes-behaviour 5.8).

Decreases go out at once and then at most every 100 ms; increases at most once a second for the node, since each wakes
every waiting pod; nothing is written when nothing changed. The objects belong to the Node, so that they go with it.
`tonnage.dev/counted` tells the scheduler up to which claim the numbers include its promises. Classes that a tier stands
for have no object here (node_tiers.py tells which, and in which order).

The objects are this agent's alone. What somebody else does to them is put right at once, and said on the Node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tonnage.aio.backoff import Backoff
from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.api.core import Node
from tonnage.api.kinds import CAPACITIES, NODES
from tonnage.api.meta import OwnerReference, to_builtins
from tonnage.api.quantity import from_bytes
from tonnage.api.storage import CSIStorageCapacity, StorageClass
from tonnage.controllers import tier
from tonnage.controllers.capacity_object import (
    counted,
    difference,
    inline,
    least,
    less,
    managed_by,
    numbers,
    object_name,
    reason,
    version,
)
from tonnage.controllers.drivers import AHEAD, Driver, Drivers, NodeScope
from tonnage.controllers.ledger import Ledger, Room, Source
from tonnage.controllers.node_tiers import NodeTiers, Plan, Want
from tonnage.controllers.readings import Readings
from tonnage.errors import ApiAlreadyExists, ApiError, ApiNotFound, TonnageError
from tonnage.kube.client import Client, refer
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers

log = logging.getLogger(__name__)
DECREASE_EVERY = 0.1
INCREASE_EVERY = 1.0


@dataclass(frozen=True)
class _Wish:
    """One object as it should be."""

    name: str
    source: Source
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
        events: EventRecorder,
        drivers: Drivers,
        ledger: Ledger,
        readings: Readings,
        scope: NodeScope,
        clock: Clock,
        *,
        namespace: str,
        tiers: NodeTiers,
    ) -> None:
        self._tiers = tiers
        tiers.wake = self.wake
        self._client, self._events, self._drivers = client, events, drivers
        self._ledger, self._readings = ledger, readings
        self._scope, self._clock, self._namespace = scope, clock, namespace
        self._managed_by = managed_by(scope.node)
        self._objects: dict[str, CSIStorageCapacity] = {}
        self._left: dict[str, CSIStorageCapacity] = {}  # as our last write left them
        self._wake = asyncio.Event()
        self._written = self._increased = float("-inf")
        self._backoff = Backoff(initial=1.0, maximum=300.0)
        self.is_published = False
        """Whether all classes of all drivers have been published once, as objects or as tiers."""
        labels = f"{names.CAPACITY_MANAGED_BY}={self._managed_by}"
        self._informer = informers.of(CAPACITIES, namespace=namespace, labels=labels)
        self._informer.cache.on_change(self._seen)
        self._nodes = informers.of(NODES, fields=f"metadata.name={scope.node}")
        self._nodes.cache.on_change(self._node_changed)
        self._restored = asyncio.Event()
        self._informer.on_restored(self._restored.set)
        drivers.on_add(lambda _: self.wake())

    def wake(self) -> None:
        """Numbers may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._informer.wait_synced()
        await self._tiers.wait_synced()
        while True:
            try:
                pause = await self.publish()
                self._backoff.forget("")
            except TonnageError as failure:
                pause = self._backoff.next("")
                log.warning("capacity not published retry=%.0fs error=%s", pause, failure)
                await _either(self._restored, pause)
                continue
            await self._sleep(pause)

    async def publish(self) -> float | None:
        """Write what is due, say in how many seconds more is due (None: nothing is waiting). May be repeated.

        Raises ApiError, Unavailable.
        """
        self._wake.clear()
        self._restored.clear()
        everything = self._wishes()
        plan = self._tiers.plan(self._want(wish) for wish in everything)
        await self._tiers.lower(plan)
        wishes = [wish for wish in everything if wish.storage_class.metadata.name in plan.own]
        now = self._clock.monotonic()
        changed = {w.name for w in wishes if self._is_changed(w)}
        refused = await self._remove_obsolete(everything)
        lower = [w for w in wishes if w.name in changed or self._is_urgent(w)]
        higher = [w for w in wishes if self._is_higher(w) and w not in lower]
        may_rise = now >= self._increased + INCREASE_EVERY
        if lower and now >= self._written + DECREASE_EVERY:
            self._written = now
            if may_rise and any(self._is_higher(w) for w in lower):
                self._increased = now
            refused += await self._write_all(lower, rise=may_rise)
            higher += [] if may_rise else [w for w in lower if self._is_higher(w)]  # written as low as it was
            lower = []
        if higher and may_rise:
            self._increased = now
            refused += await self._write_all(higher, rise=True)
            higher = []
        refused += await self._settle(plan, everything)
        if refused:
            raise refused[0]
        self._note_published(len(everything), waiting=bool(lower))
        if lower:
            return self._written + DECREASE_EVERY - now
        return self._increased + INCREASE_EVERY - now if higher else None

    def _note_published(self, classes: int, *, waiting: bool) -> None:
        sources = sum(len(self._readings.sources(driver)) for driver in self._drivers)
        if self._drivers.complete and classes == sources and not waiting:
            self.is_published = True

    async def _sleep(self, pause: float | None) -> None:
        """Until something changes, or a write's time has come; changes within 100 ms are taken together."""
        if pause is not None and pause <= DECREASE_EVERY:
            await self._clock.sleep(pause)
            return
        await _either(self._wake, pause)

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
                    found.append(_Wish(name, source, driver, storage_class, room, self._ledger.counted, reason))
        return found

    def _want(self, wish: _Wish) -> Want:
        """What its tier depends on. A place that several nodes reach, and a class with a fault, are told exactly."""
        usual = tier.usual(self._ledger.asked(wish.source))
        tierable = not wish.reason and bool(wish.driver.segment)
        name = wish.storage_class.metadata.name
        return Want(name, f"{wish.driver.name}/{wish.source.room}", tier.largest(wish.room), usual, tierable)

    async def _settle(self, plan: Plan, wishes: Sequence[_Wish]) -> list[ApiError]:
        """Labels, then the objects for which they stand now; what was refused."""
        published = {o.storage_class_name for o in self._objects.values()}
        known = [s.storage_class for driver in self._drivers for s in self._readings.sources(driver)]
        await self._tiers.settle(plan, published=published, known=known if self._drivers.complete else None)
        refused: list[ApiError] = []
        for wish in wishes:
            if wish.name in self._objects and self._tiers.is_settled(plan, wish.storage_class.metadata.name):
                refused += await self._remove(wish.name)
        return refused

    def _name(self, source: Source) -> str:
        return object_name(source.driver, source.storage_class, self._scope.node)

    def _seen(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> None:
        """Somebody, usually this process, wrote or removed one of our objects."""
        if new is None:
            assert old is not None
            self._objects.pop(old.metadata.name, None)
            self._wake.set()
            return  # _is_changed() sees that it is missing
        have = self._objects.get(new.metadata.name)
        if have is None or version(new) > version(have):
            self._objects[new.metadata.name] = new
            self._wake.set()

    async def _remove_obsolete(self, wishes: Sequence[_Wish]) -> list[ApiError]:
        """Objects of classes and drivers that are gone, and doubles; what was refused. One without a reading is left
        as it is (5.8)."""
        refused: list[ApiError] = []
        kept, classes = {w.name for w in wishes}, {w.storage_class.metadata.name for w in wishes}
        for driver in self._drivers:
            kept |= {self._name(s) for s in self._readings.sources(driver)}
        for name, obj in list(self._objects.items()):
            known = self._drivers.get(obj.metadata.labels.get(names.CAPACITY_DRIVER, "")) is not None
            if name not in kept and (known or self._drivers.complete):
                if known and obj.storage_class_name in classes:
                    self._say(f"{name} was made by somebody beside the one of class {obj.storage_class_name}: removed")
                refused += await self._remove(name)
        return refused

    async def _remove(self, name: str) -> list[ApiError]:
        """Remove an object; what was refused."""
        try:
            with suppress(ApiNotFound):
                await self._client.delete(CAPACITIES, name, self._namespace)
        except ApiError as failure:
            return [failure]
        self._objects.pop(name, None)
        self._left.pop(name, None)
        return []

    # What others did

    def _is_changed(self, wish: _Wish) -> bool:
        """Whether somebody has changed or removed the object since we wrote it; said once."""
        have, left = self._objects.get(wish.name), self._left.get(wish.name)
        if left is None and have is not None and not self._is_urgent(wish) and not self._is_higher(wish):
            self._left[wish.name] = have  # found as it should be: from a time before this process
        if left is None or have is left:
            return False
        del self._left[wish.name]
        if have is None:
            if self._owner() not in left.metadata.owner_references:
                return False  # it went with its Node
            self._say(f"{wish.name} of class {left.storage_class_name} was removed by somebody: made again")
            return False  # what is missing is written anyway
        what = difference(left, have)
        if not what:  # what is not ours
            self._left[wish.name] = have
            return False
        self._say(f"{wish.name} of class {left.storage_class_name} was changed by somebody ({what}): put right")
        return True

    def _say(self, text: str) -> None:
        log.warning("capacity object tampered with node=%s object=%s", self._scope.node, text)
        node = self._nodes.cache.get(self._scope.node)
        if node is not None:
            text = f"capacity object {text}; only the agent of the node may write it"
            self._events.warning(refer(NODES, node), "CapacityTampered", text)

    # Comparing

    def _is_urgent(self, wish: _Wish) -> bool:
        have = self._objects.get(wish.name)
        if have is None:  # no rise where it comes in the place of a tier
            return self._tiers.now(wish.storage_class.metadata.name) > 0
        available, maximum = numbers(have)
        lowered = wish.room.available < available or less(wish.room.maximum, maximum)
        lowered = lowered or _is_lower(wish.room.inline, inline(have))
        told = counted(have) >= self._ledger.promised and reason(have) == wish.reason
        return lowered or not told or not self._is_labelled(have, wish)

    def _is_labelled(self, have: CSIStorageCapacity, wish: _Wish) -> bool:
        """Whether it says whose it is, and belongs to our Node."""
        owner, labels = self._owner(), have.metadata.labels
        owned = owner is None or have.metadata.owner_references == [owner]
        return owned and self._labels(wish).items() <= labels.items()

    def _is_higher(self, wish: _Wish) -> bool:
        have = self._objects.get(wish.name)
        if have is None:  # it will belong to the Node, so there must be one
            return self._nodes.cache.get(self._scope.node) is not None
        available, maximum = numbers(have)
        risen = wish.room.inline is not None and (inline(have) or 0) < wish.room.inline
        return wish.room.available > available or less(maximum, wish.room.maximum) or risen

    # Writing

    async def _write_all(self, wishes: Sequence[_Wish], *, rise: bool) -> list[ApiError]:
        """What was refused: one object that is, does not keep the others from being written."""
        refused: list[ApiError] = []
        for wish in wishes:
            try:
                await self._write(wish, rise=rise)
            except ApiError as failure:
                refused.append(failure)
        return refused

    async def _write(self, wish: _Wish, *, rise: bool) -> None:
        have = self._objects.get(wish.name)
        if have is None or not self._is_in_place(have, wish):
            await self._create(wish, have)
            return
        room = wish.room
        if not rise:  # the count must be told now, the larger number later: what was published is still safe
            available, maximum = numbers(have)
            room = Room(min(room.available, available), least(room.maximum, maximum), least(room.inline, inline(have)))
        notes = {names.REASON: wish.reason or None, names.INLINE_ROOM: _text(room.inline)}
        metadata: dict[str, Any] = {"annotations": {names.COUNTED: str(wish.counted), **notes}}
        if not self._is_labelled(have, wish):
            metadata["labels"] = self._labels(wish)
            if owner := self._owner():
                metadata["ownerReferences"] = [to_builtins(owner)]
        body = {
            "metadata": metadata,
            "capacity": from_bytes(room.available),
            "maximumVolumeSize": _text(room.maximum),
        }
        try:
            self._left.pop(wish.name, None)  # until we know what became of it
            self._keep(await self._client.patch(CAPACITIES, wish.name, body, self._namespace), ours=True)
        except ApiNotFound:
            self._objects.pop(wish.name, None)
            self._wake.set()

    async def _create(self, wish: _Wish, have: CSIStorageCapacity | None) -> None:
        if have is not None:  # its topology and class cannot be changed
            await self._client.delete(CAPACITIES, wish.name, self._namespace)
            self._objects.pop(wish.name, None)
            self._left.pop(wish.name, None)
        owner = self._owner()
        if owner is None:
            return
        try:
            self._keep(await self._client.create(CAPACITIES, self._body(wish, owner), self._namespace), ours=True)
        except ApiAlreadyExists:  # made before a restart, and the watch is behind
            self._keep(await self._client.get(CAPACITIES, wish.name, self._namespace))
            self._wake.set()

    def _is_in_place(self, have: CSIStorageCapacity, wish: _Wish) -> bool:
        labels = have.node_topology.match_labels if have.node_topology else None
        return labels == dict(wish.driver.segment) and have.storage_class_name == wish.storage_class.metadata.name

    def _owner(self) -> OwnerReference | None:
        """Our Node as the owner of its objects; None while it is not there."""
        node = self._nodes.cache.get(self._scope.node)
        if node is None:
            return None
        return OwnerReference("v1", NODES.kind, self._scope.node, node.metadata.uid, controller=True)

    def _labels(self, wish: _Wish) -> dict[str, str]:
        labels = {
            names.CAPACITY_DRIVER: wish.driver.name,
            names.CAPACITY_MANAGED_BY: self._managed_by,
            names.NODE_LABEL: self._scope.label,
        }
        pool = wish.driver.pool(wish.storage_class)
        if pool and not wish.reason:  # a class may name any text as its pool, and a label may not hold it
            labels[names.POOL_LABEL] = names.label_value(pool)
            if pool == wish.driver.default_pool and len(wish.driver.pools) > 1:
                labels[names.DEFAULT_POOL] = "true"
        return labels

    def _body(self, wish: _Wish, owner: OwnerReference) -> dict[str, Any]:
        body: dict[str, Any] = {
            "metadata": {
                "name": wish.name,
                "namespace": self._namespace,
                "labels": self._labels(wish),
                "annotations": {
                    names.COUNTED: str(wish.counted),
                    **({names.REASON: wish.reason} if wish.reason else {}),
                    **({names.INLINE_ROOM: text} if (text := _text(wish.room.inline)) else {}),
                },
                "ownerReferences": [to_builtins(owner)],
            },
            "nodeTopology": {"matchLabels": dict(wish.driver.segment)},
            "storageClassName": wish.storage_class.metadata.name,
            "capacity": from_bytes(wish.room.available),
        }
        if wish.room.maximum is not None:
            body["maximumVolumeSize"] = from_bytes(wish.room.maximum)
        return body

    def _keep(self, obj: CSIStorageCapacity, *, ours: bool = False) -> None:
        """ours: we have written it just now. The watch may already have told of what somebody made of it since."""
        have = self._objects.get(obj.metadata.name)
        if have is None or version(obj) >= version(have):
            self._objects[obj.metadata.name] = obj
        if ours:
            self._left[obj.metadata.name] = obj


def _is_lower(wanted: int | None, told: int | None) -> bool:
    """Whether less is to be told of inline volumes; nothing at all counts as less than a number."""
    return told is not None and (wanted is None or wanted < told)


def _text(number: int | None) -> str | None:
    return None if number is None else from_bytes(number)


async def _either(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for the event, or so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
