"""Capacity publisher: CSIStorageCapacity by class and driver (KEP-1472).

It publishes decreases at once, then at most every 100 ms. It publishes increases at most once a second for the node,
since each wakes every waiting pod. It writes nothing when nothing changed. The annotation for the observed claim
version names the newest claim whose reservation the numbers include. Classes that a tier represents have no object of
their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from tonnage.aio.backoff import Backoff
from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.api.core import Node
from tonnage.api.kinds import CAPACITIES, NODES
from tonnage.api.meta import OwnerReference, to_builtins
from tonnage.api.storage import CSIStorageCapacity
from tonnage.capacity import tier
from tonnage.capacity.ledger import PoolCapacity
from tonnage.capacity.object import Wish, counted, difference, inline, least, managed_by, numbers, object_name, reason
from tonnage.claims.node_scope import CapacitySource
from tonnage.errors import ApiAlreadyExistsError, ApiError, ApiNotFoundError, TonnageError
from tonnage.kube.client import Client, refer
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers
from tonnage.node.capacity.poller import Readings
from tonnage.node.capacity.tiers import NodeTiers, TierPlan, TierWant
from tonnage.node.config.agent import AgentConfig

log = logging.getLogger(__name__)
DECREASE_EVERY = 0.1
INCREASE_EVERY = 1.0


class CapacityPublisher:
    """Writes capacity objects.

    run() waits for ready(): the caller has rebuilt the ledger.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder,
        config: AgentConfig,
        readings: Readings,
        clock: Clock,
    ) -> None:
        self._tiers = NodeTiers(client, informers, config, clock)
        self._tiers.wake = self.wake
        self._drivers, self._ledger, self._readings = readings.drivers, readings.ledger, readings
        self._node, self._clock = config.node_name, clock
        self._wake = asyncio.Event()
        self._own = OwnCapacity(client, informers, events, config, wake=self.wake)
        self._written = self._increased = float("-inf")
        self._backoff = Backoff(initial=1.0, maximum=300.0)
        self.is_published = False
        """Whether all classes of all drivers were published once, as objects or tiers."""
        self._drivers.on_add(lambda _: self.wake())

    def wake(self) -> None:
        """Report that numbers may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._own.wait_synced()
        await self._tiers.wait_synced()
        while True:
            try:
                pause = await self.publish()
                self._backoff.forget("")
            except TonnageError as failure:
                pause = self._backoff.next("")
                log.warning("capacity not published retry=%.0fs error=%s", pause, failure)
                await _either(self._own.restored, pause)
                continue
            await self._sleep(pause)

    async def publish(self) -> float | None:
        """Write what is due. Idempotent.

        Returns the seconds until more is due, None for nothing.

        Raises: ApiError, Unavailable.
        """
        self._wake.clear()
        self._own.restored.clear()
        everything = self._wishes()
        plan = self._tiers.plan(self._want(wish) for wish in everything)
        await self._tiers.lower(plan)
        wishes = [wish for wish in everything if wish.class_name in plan.own]
        now = self._clock.monotonic()
        changed = {w.name for w in wishes if self._own.is_changed(w)}
        refused = await self._remove_obsolete(everything)
        lower = [w for w in wishes if w.name in changed or self._is_urgent(w)]
        higher = [w for w in wishes if self._is_higher(w) and w not in lower]
        may_rise = now >= self._increased + INCREASE_EVERY
        if lower and now >= self._written + DECREASE_EVERY:
            self._written = now
            if may_rise and any(self._is_higher(w) for w in lower):
                self._increased = now
            refused += await self._own.write_all(lower, rise=may_rise)
            higher += [] if may_rise else [w for w in lower if self._is_higher(w)]  # rewritten with the lower number
            lower = []
        if higher and may_rise:
            self._increased = now
            refused += await self._own.write_all(higher, rise=True)
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
        """Wait for a change or the next due write; batch changes within 100 ms."""
        if pause is not None and pause <= DECREASE_EVERY:
            await self._clock.sleep(pause)
            return
        await _either(self._wake, pause)

    # Desired state

    def _wishes(self) -> list[Wish]:
        found = []
        for driver in self._drivers:
            for source, storage_class in self._readings.sources(driver).items():
                room = self._ledger.room(source)
                if room is not None:
                    reason = self._readings.faults.get(source)
                    if driver.publishes_ahead(storage_class):
                        reason = reason or names.AHEAD
                    counts = self._ledger.counted, self._ledger.promised
                    found.append(Wish(self._name(source), source, driver, storage_class, room, *counts, reason))
        return found

    def _want(self, wish: Wish) -> TierWant:
        """Return the inputs of the tier of an object.

        A topology that several nodes reach, and a class with an error, are always published exactly.
        """
        usual = tier.usual(self._ledger.asked(wish.source))
        tierable = not wish.reason and bool(wish.driver.segment)
        name = wish.class_name
        return TierWant(name, f"{wish.driver.name}/{wish.source.room}", tier.largest(wish.room), usual, tierable)

    async def _settle(self, plan: TierPlan, wishes: Sequence[Wish]) -> list[ApiError]:
        """Write labels, then the objects that these labels require.

        Returns the errors of rejected writes.
        """
        published = {o.storage_class_name for o in self._own.there.values()}
        known = [s.storage_class for driver in self._drivers for s in self._readings.sources(driver)]
        await self._tiers.settle(plan, published=published, known=known if self._drivers.complete else None)
        refused: list[ApiError] = []
        for wish in wishes:
            if wish.name in self._own.there and self._tiers.is_settled(plan, wish.class_name):
                refused += await self._own.remove(wish.name)
        return refused

    def _name(self, source: CapacitySource) -> str:
        return object_name(source.driver, source.storage_class, self._node)

    async def _remove_obsolete(self, wishes: Sequence[Wish]) -> list[ApiError]:
        """Remove objects of classes and drivers that are gone, and duplicates.

        Returns the errors of rejected writes. An object without a GetCapacity result stays as it is.
        """
        refused: list[ApiError] = []
        kept, classes = {w.name for w in wishes}, {w.class_name for w in wishes}
        for driver in self._drivers:
            kept |= {self._name(s) for s in self._readings.sources(driver)}
        for name, obj in list(self._own.there.items()):
            known = self._drivers.get(obj.metadata.labels.get(names.CAPACITY_DRIVER, "")) is not None
            if name not in kept and (known or self._drivers.complete):
                if known and obj.storage_class_name in classes:
                    self._own.say(f"{name} is a duplicate of the object of class {obj.storage_class_name}: removed")
                refused += await self._own.remove(name)
        return refused

    # Comparing

    def _is_urgent(self, wish: Wish) -> bool:
        have = self._own.there.get(wish.name)
        if have is None:  # an object that replaces a tier is no increase
            return self._tiers.now(wish.class_name) > 0
        return self._own.is_urgent(wish, have)

    def _is_higher(self, wish: Wish) -> bool:
        have = self._own.there.get(wish.name)
        return self._own.can_create() if have is None else wish.is_higher(have)


async def _either(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for the event, or for so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class OwnCapacity:
    """The node's own capacity objects, and the writes to them.

    The objects are owned by the Node, so garbage collection deletes them with it. Only this agent writes them. It
    repairs a foreign change at once and emits an Event on the Node. wake() is called when they have changed.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder,
        config: AgentConfig,
        *,
        wake: Callable[[], None],
    ) -> None:
        namespace, scope = config.namespace, config.node_scope
        self._client, self._events, self._scope, self._namespace = client, events, scope, namespace
        self._wake = wake
        self.there: dict[str, CSIStorageCapacity] = {}
        """Objects by name, as the watch or our own writes returned last."""
        self._left: dict[str, CSIStorageCapacity] = {}  # as our last write left them
        labels = f"{names.CAPACITY_MANAGED_BY}={managed_by(scope.node)}"
        self._informer = informers.of(CAPACITIES, namespace=namespace, labels=labels)
        self._informer.cache.on_change(self._seen)
        self._nodes = informers.of(NODES, fields=f"metadata.name={scope.node}")
        self._nodes.cache.on_change(self._node_changed)
        self.restored = asyncio.Event()
        """Set when the API server is reachable again."""
        self._informer.on_restored(self.restored.set)

    async def wait_synced(self) -> None:
        """Wait until all existing objects are known."""
        await self._informer.wait_synced()

    # Changes by others

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Handle a new Node: objects of a deleted Node are garbage collected."""
        if new is not None and (old is None or old.metadata.uid != new.metadata.uid):
            self._wake()

    def _seen(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> None:
        """Handle a write or deletion of one of our objects, usually by this process."""
        if new is None:
            assert old is not None
            self.there.pop(old.metadata.name, None)
            self._wake()
            return  # is_changed() sees that it is missing
        have = self.there.get(new.metadata.name)
        if have is None or new.metadata.version > have.metadata.version:
            self.there[new.metadata.name] = new
            self._wake()

    def is_changed(self, wish: Wish) -> bool:
        """Return whether somebody changed the object after our last write.

        Emits one Event for a change or a removal.
        """
        have, left = self.there.get(wish.name), self._left.get(wish.name)
        if left is None and have is not None and not self.is_urgent(wish, have) and not wish.is_higher(have):
            self._left[wish.name] = have  # already as desired: from before this process started
        if left is None or have is left:
            return False
        del self._left[wish.name]
        if have is None:
            if self._owner() not in left.metadata.owner_references:
                return False  # garbage collected with its Node
            self.say(f"{wish.name} of class {left.storage_class_name} was removed by somebody: made again")
            return False  # what is missing is written anyway
        what = difference(left, have)
        if not what:  # a foreign field
            self._left[wish.name] = have
            return False
        self.say(f"{wish.name} of class {left.storage_class_name} was changed by somebody ({what}): put right")
        return True

    def say(self, text: str) -> None:
        """Report a foreign change in the log and by an Event on the Node."""
        log.warning("capacity object tampered with node=%s object=%s", self._scope.node, text)
        node = self._nodes.cache.get(self._scope.node)
        if node is not None:
            text = f"capacity object {text}; only the agent of the node may write it"
            self._events.warning(refer(NODES, node), "CapacityTampered", text)

    # Comparing

    def is_urgent(self, wish: Wish, have: CSIStorageCapacity) -> bool:
        """Return whether the object publishes too much, or lacks a field."""
        told = counted(have) >= wish.promised and reason(have) == wish.reason
        return wish.is_lower(have) or not told or not self._is_labelled(have, wish)

    def can_create(self) -> bool:
        """Return whether the Node exists, which owns new objects."""
        return self._owner() is not None

    def _is_labelled(self, have: CSIStorageCapacity, wish: Wish) -> bool:
        """Return whether the object has our labels and is owned by our Node."""
        owner, labels = self._owner(), have.metadata.labels
        owned = owner is None or have.metadata.owner_references == [owner]
        return owned and wish.labels(self._scope).items() <= labels.items()

    def _owner(self) -> OwnerReference | None:
        """Return the owner reference to our Node, or None without a Node."""
        node = self._nodes.cache.get(self._scope.node)
        if node is None:
            return None
        return OwnerReference("v1", NODES.kind, self._scope.node, node.metadata.uid, controller=True)

    # Writing

    async def write_all(self, wishes: Sequence[Wish], *, rise: bool) -> list[ApiError]:
        """Write all desired objects. Idempotent.

        rise: whether numbers may increase.

        Returns the errors of rejected writes; one rejected object does not stop the others. Raises: UnavailableError.
        """
        refused: list[ApiError] = []
        for wish in wishes:
            try:
                await self._write(wish, rise=rise)
            except ApiError as failure:
                refused.append(failure)
        return refused

    async def remove(self, name: str) -> list[ApiError]:
        """Remove an object; return the errors of rejected writes. Idempotent.

        Raises: Unavailable.
        """
        try:
            with suppress(ApiNotFoundError):
                await self._client.delete(CAPACITIES, name, self._namespace)
        except ApiError as failure:
            return [failure]
        self._forget(name)
        return []

    async def _write(self, wish: Wish, *, rise: bool) -> None:
        have = self.there.get(wish.name)
        if have is None or not wish.is_in_place(have):
            await self._create(wish, have)
            return
        room = wish.room
        if not rise:  # publish the observed claim version now, the increase later: the old number is still safe
            available, maximum = numbers(have)
            room = PoolCapacity(
                min(room.available, available), least(room.maximum, maximum), least(room.inline, inline(have))
            )
        body = wish.patch(room)
        if not self._is_labelled(have, wish):
            body["metadata"]["labels"] = wish.labels(self._scope)
            if owner := self._owner():
                body["metadata"]["ownerReferences"] = [to_builtins(owner)]
        try:
            self._left.pop(wish.name, None)  # until the outcome is known
            self._keep(await self._client.patch(CAPACITIES, wish.name, body, self._namespace), ours=True)
        except ApiNotFoundError:
            self.there.pop(wish.name, None)
            self._wake()

    async def _create(self, wish: Wish, have: CSIStorageCapacity | None) -> None:
        if have is not None:  # its topology and class cannot be changed
            await self._client.delete(CAPACITIES, wish.name, self._namespace)
            self._forget(wish.name)
        owner = self._owner()
        if owner is None:
            return
        body = wish.body(self._scope, self._namespace, owner)
        try:
            self._keep(await self._client.create(CAPACITIES, body, self._namespace), ours=True)
        except ApiAlreadyExistsError:  # made before a restart, and the watch is behind
            self._keep(await self._client.get(CAPACITIES, wish.name, self._namespace))
            self._wake()

    def _keep(self, obj: CSIStorageCapacity, *, ours: bool = False) -> None:
        """Remember an object.

        ours: we have just written it; the watch may already have returned a later foreign change.
        """
        have = self.there.get(obj.metadata.name)
        if have is None or obj.metadata.version >= have.metadata.version:
            self.there[obj.metadata.name] = obj
        if ours:
            self._left[obj.metadata.name] = obj

    def _forget(self, name: str) -> None:
        self.there.pop(name, None)
        self._left.pop(name, None)
