"""Capacity publisher: CSIStorageCapacity by class and driver (KEP-1472).

It publishes decreases at once, then at most every 100 ms. It publishes increases at most ten times a second for the
node, since each may wake every waiting pod. It writes nothing when nothing changed. The annotation for the observed
claim version names the newest claim whose reservation the numbers include. Classes that a tier represents have no
object of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock
from tonnage.base.errors import ApiAlreadyExistsError, ApiError, ApiNotFoundError, TonnageError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import CAPACITIES, NODES
from tonnage.kubernetes.api.meta import OwnerReference, to_builtins
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.capacity.poller import Readings
from tonnage.node.config.agent import AgentConfig
from tonnage.provisioning.capacity import tier
from tonnage.provisioning.capacity.ledger import PoolCapacity
from tonnage.provisioning.capacity.object import (
    DesiredCapacity,
    counted,
    difference,
    inline,
    least,
    managed_by,
    numbers,
    object_name,
    reason,
)
from tonnage.provisioning.capacity.tier import Notice
from tonnage.provisioning.claims.node_scope import CapacitySource, DriverInfo

log = logging.getLogger(__name__)
DECREASE_EVERY = 0.1
INCREASE_EVERY = 0.1
_FORBIDDEN = 403
REFUSED_PAUSE = 300.0
"""Seconds until an agent that may not label its node retries."""


@dataclass(frozen=True)
class WorkItem:
    """A capacity object of this node that is not as it should be: all of its fields, for one write.

    No event queues an item. Each pass of publish() compares the newest numbers of every class with what the watch or
    our own write returned last: there is an item from the moment that they differ until a write has made them equal.
    wake() only begins the next pass earlier, and the first pass after a kill finds the same items.

    There are no duplicates: a pass makes at most one item for each object's name, with the numbers of that moment. So
    any number of changes before a pass are one write, and a change that was undone is none. An object of the class
    under another name is no item: the pass removes it.

    is_urgent: it publishes too much, lacks a field, or somebody changed it. is_higher: it publishes too little. One
    that is both is written with the lower of both numbers, and is an item again until the node may publish more.
    """

    desired: DesiredCapacity
    is_urgent: bool
    is_higher: bool


@dataclass(frozen=True)
class Batch:
    """Items that are written in one pass.

    may_rise: whether numbers may increase. is_held: whether urgent items wait for a later pass. pause: seconds until
    that, None where nothing waits.
    """

    items: Sequence[WorkItem]
    may_rise: bool
    is_held: bool
    pause: float | None


class Pace:
    """Times of the writes of one node: urgent items every DECREASE_EVERY, higher numbers every INCREASE_EVERY."""

    def __init__(self) -> None:
        self._urgent_at = self._rise_at = float("-inf")

    def batch(self, items: Sequence[WorkItem], now: float) -> Batch:
        """Choose the items to write now, urgent ones first."""
        may_write, may_rise = now >= self._urgent_at, now >= self._rise_at
        due = [item for item in items if item.is_urgent and may_write]
        due += [item for item in items if item.is_higher and not item.is_urgent and may_rise]
        is_held = not may_write and any(item.is_urgent for item in items)
        is_low = not may_rise and any(item.is_higher for item in items)
        if any(item.is_urgent for item in due):
            self._urgent_at = now + DECREASE_EVERY
        if may_rise and any(item.is_higher for item in due):
            self._rise_at = now + INCREASE_EVERY
        pause = self._urgent_at - now if is_held else self._rise_at - now if is_low else None
        return Batch(due, may_rise, is_held, pause)


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
        self._wake = asyncio.Event()
        self._tiers = NodeTiers(client, informers, config, clock, wake=self.wake)
        self._drivers, self._ledger, self._readings = readings.drivers, readings.ledger, readings
        self._node, self._clock = config.node_name, clock
        self._own = OwnCapacity(client, informers, events, config, wake=self.wake)
        self._pace = Pace()
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

        Raises: ApiError, UnavailableError.
        """
        self._wake.clear()
        self._own.restored.clear()
        everything = self._all_desired()
        plan = self._tiers.plan(everything)
        await self._tiers.lower(plan)
        rejected = await self._remove_obsolete(everything)
        items = [self._item(desired) for desired in everything if desired.class_name in plan.own]
        batch = self._pace.batch(items, self._clock.monotonic())
        rejected += await self._own.write_all(batch)
        rejected += await self._settle(plan, everything)
        if rejected:
            raise rejected[0]
        self._note_published(len(everything), waiting=batch.is_held)
        return batch.pause

    def _item(self, desired: DesiredCapacity) -> WorkItem:
        """Compare an object with what is desired; reports a change by others."""
        is_changed, have = self._own.is_changed(desired), self._own.there.get(desired.name)
        if have is None:  # an object that replaces a tier is no increase
            return WorkItem(desired, self._tiers.now(desired.class_name) > 0, self._own.owner() is not None)
        return WorkItem(desired, is_changed or self._own.is_urgent(desired, have), desired.is_higher(have))

    def _note_published(self, classes: int, *, waiting: bool) -> None:
        sources = sum(len(self._readings.sources(driver)) for driver in self._published())
        if self._drivers.complete and classes == sources and not waiting:
            self.is_published = True

    async def _sleep(self, pause: float | None) -> None:
        """Wait for a change or the next due write; batch changes within 100 ms."""
        if pause is not None and pause <= DECREASE_EVERY:
            await self._clock.sleep(pause)
            return
        await _either(self._wake, pause)

    # Desired state

    def _published(self) -> list[DriverInfo]:
        """Drivers whose capacity is this node's: what all nodes share, without topology, the controller publishes."""
        return [driver for driver in self._drivers if driver.topology]

    def _all_desired(self) -> list[DesiredCapacity]:
        found = []
        for driver in self._published():
            for source, storage_class in self._readings.sources(driver).items():
                amount = self._ledger.capacity(source)
                if amount is not None:
                    reason = self._readings.faults.get(source)
                    if driver.publishes_ahead(storage_class):
                        reason = reason or names.AHEAD
                    usual = tier.usual(self._ledger.asked(source))
                    counts = self._ledger.counted, self._ledger.required_version
                    name = self._name(source)
                    found.append(DesiredCapacity(name, source, driver, storage_class, amount, *counts, reason, usual))
        return found

    async def _settle(self, plan: TierPlan, all_desired: Sequence[DesiredCapacity]) -> list[ApiError]:
        """Write labels, then the objects that these labels require.

        Returns the errors of rejected writes.
        """
        published = {o.storage_class_name for o in self._own.there.values()}
        known = [s.storage_class for driver in self._drivers for s in self._readings.sources(driver)]
        await self._tiers.settle(plan, published=published, known=known if self._drivers.complete else None)
        rejected: list[ApiError] = []
        for desired in all_desired:
            if desired.name in self._own.there and self._tiers.is_settled(plan, desired.class_name):
                rejected += await self._own.remove(desired.name)
        return rejected

    def _name(self, source: CapacitySource) -> str:
        return object_name(source.driver, source.storage_class, self._node)

    async def _remove_obsolete(self, all_desired: Sequence[DesiredCapacity]) -> list[ApiError]:
        """Remove objects of classes and drivers that are gone, and duplicates.

        Returns the errors of rejected writes. An object without a GetCapacity result stays as it is.
        """
        rejected: list[ApiError] = []
        current, classes = {w.name for w in all_desired}, {w.class_name for w in all_desired}
        for driver in self._published():
            current |= {self._name(s) for s in self._readings.sources(driver)}
        for name, obj in list(self._own.there.items()):
            known = self._drivers.get(obj.metadata.labels.get(names.CAPACITY_DRIVER, "")) is not None
            if name not in current and (known or self._drivers.complete):
                if known and obj.storage_class_name in classes:
                    self._own.say(f"{name} is a duplicate of the object of class {obj.storage_class_name}: removed")
                rejected += await self._own.remove(name)
        return rejected


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

    def is_changed(self, desired: DesiredCapacity) -> bool:
        """Return whether somebody changed the object after our last write.

        Emits one Event for a change or a removal.
        """
        have, left = self.there.get(desired.name), self._left.get(desired.name)
        if left is None and have is not None and not self.is_urgent(desired, have) and not desired.is_higher(have):
            self._left[desired.name] = have  # already as desired: from before this process started
        if left is None or have is left:
            return False
        del self._left[desired.name]
        if have is None:
            if self.owner() not in left.metadata.owner_references:
                return False  # garbage collected with its Node
            self.say(f"{desired.name} of class {left.storage_class_name} was removed by somebody: made again")
            return False  # what is missing is written anyway
        what = difference(left, have)
        if not what:  # a foreign field
            self._left[desired.name] = have
            return False
        self.say(f"{desired.name} of class {left.storage_class_name} was changed by somebody ({what}): put right")
        return True

    def say(self, text: str) -> None:
        """Report a foreign change in the log and by an Event on the Node."""
        log.warning("capacity object tampered with node=%s object=%s", self._scope.node, text)
        node = self._nodes.cache.get(self._scope.node)
        if node is not None:
            text = f"capacity object {text}; only the agent of the node may write it"
            self._events.warning(refer(NODES, node), "CapacityTampered", text)

    # Comparing

    def is_urgent(self, desired: DesiredCapacity, have: CSIStorageCapacity) -> bool:
        """Return whether the object publishes too much, or lacks a field."""
        is_current = counted(have) >= desired.required_version and reason(have) == desired.reason
        return desired.is_lower(have) or not is_current or not self._is_labelled(have, desired)

    def _is_labelled(self, have: CSIStorageCapacity, desired: DesiredCapacity) -> bool:
        """Return whether the object has our labels and is owned by our Node."""
        owner, labels = self.owner(), have.metadata.labels
        owned = owner is None or have.metadata.owner_references == [owner]
        return owned and desired.labels(self._scope).items() <= labels.items()

    def owner(self) -> OwnerReference | None:
        """Return the owner reference to our Node, None without a Node: no object can be created then."""
        node = self._nodes.cache.get(self._scope.node)
        if node is None:
            return None
        return OwnerReference("v1", NODES.kind, self._scope.node, node.metadata.uid, controller=True)

    # Writing

    async def write_all(self, batch: Batch) -> list[ApiError]:
        """Write all items of a batch. Idempotent.

        Returns the errors of rejected writes; one rejected object does not stop the others. Raises: UnavailableError.
        """
        rejected: list[ApiError] = []
        for item in batch.items:
            try:
                await self._write(item.desired, rise=batch.may_rise)
            except ApiError as failure:
                rejected.append(failure)
        return rejected

    async def remove(self, name: str) -> list[ApiError]:
        """Remove an object; return the errors of rejected writes. Idempotent.

        Raises: UnavailableError.
        """
        try:
            with suppress(ApiNotFoundError):
                await self._client.delete(CAPACITIES, name, self._namespace)
        except ApiError as failure:
            return [failure]
        self._forget(name)
        return []

    async def _write(self, desired: DesiredCapacity, *, rise: bool) -> None:
        have = self.there.get(desired.name)
        if have is None or not desired.is_in_place(have):
            await self._create(desired, have)
            return
        amount = desired.amount
        if not rise:  # publish the observed claim version now, the increase later: the old number is still safe
            available, maximum = numbers(have)
            amount = PoolCapacity(
                min(amount.available, available), least(amount.maximum, maximum), least(amount.inline, inline(have))
            )
        body = desired.patch(amount)
        if not self._is_labelled(have, desired):
            body["metadata"]["labels"] = desired.labels(self._scope)
            if owner := self.owner():
                body["metadata"]["ownerReferences"] = [to_builtins(owner)]
        try:
            self._left.pop(desired.name, None)  # until the outcome is known
            self._keep(await self._client.patch(CAPACITIES, desired.name, body, self._namespace), ours=True)
        except ApiNotFoundError:
            self.there.pop(desired.name, None)
            self._wake()

    async def _create(self, desired: DesiredCapacity, have: CSIStorageCapacity | None) -> None:
        if have is not None:  # its topology and class cannot be changed
            await self._client.delete(CAPACITIES, desired.name, self._namespace)
            self._forget(desired.name)
        owner = self.owner()
        if owner is None:
            return
        body = desired.body(self._scope, self._namespace, owner)
        try:
            self._keep(await self._client.create(CAPACITIES, body, self._namespace), ours=True)
        except ApiAlreadyExistsError:  # made before a restart, and the watch is behind
            self._keep(await self._client.get(CAPACITIES, desired.name, self._namespace))
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


@dataclass(frozen=True)
class TierPlan:
    """Tiers of all classes.

    tiers: class -> its tier, 0 for none. largest: the largest volume that each class could create, in bytes. own:
    classes that are published by own objects.
    """

    tiers: dict[str, int]
    largest: dict[str, int]
    own: frozenset[str]


class NodeTiers:
    """Plans and writes the tier labels of this node.

    plan() returns the desired state, lower() and settle() write labels. wake() is called when the plan may be another.

    The agent writes in this order. At no moment, also after a kill between two writes, is more published than there is,
    and no class is without capacity:

    1. Lower labels that exceed the capacity. 2. Create own objects where no tier suffices: capacity is too small, the
    tier has no object yet, or there is a request for exact capacity. 3. Change labels, each only if the class has an
    own object or the new tier has one. 4. Delete own objects where the label and the tier's object are there.

    No agent depends on the controller: without tier objects it publishes exactly. Classes that share bytes change
    together. Otherwise a scheduler could not see that an exact object and a tier use the same bytes.
    """

    def __init__(
        self, client: Client, informers: Informers, config: AgentConfig, clock: Clock, *, wake: Callable[[], None]
    ) -> None:
        self._wake = wake
        node, mode, namespace = config.node_name, config.capacity, config.namespace
        self._client, self._node, self._clock = client, node, clock
        self._mode, self._namespace = mode, namespace
        self._patched: Node | None = None
        self._rejected_until = float("-inf")
        self._nodes = informers.of(NODES, fields=f"metadata.name={node}")
        self._nodes.cache.on_change(self._node_changed)
        self._tiers = informers.of(CAPACITIES, namespace=namespace, labels=names.TIER) if mode != "exact" else None
        if self._tiers is not None:
            # A tier object came or went, or exact capacity is requested.
            self._tiers.cache.on_change(lambda old, new: self._wake())

    async def wait_synced(self) -> None:
        """Wait until the Node's labels and all tier objects are known."""
        await self._nodes.wait_synced()
        if self._tiers is not None:
            await self._tiers.wait_synced()

    def plan(self, all_desired: Sequence[DesiredCapacity]) -> TierPlan:
        """Return the desired tiers and own objects.

        A topology that several nodes reach, and a class with an error, are always published exactly.
        """
        largest = {desired.class_name: tier.largest(desired.amount) for desired in all_desired}
        pools: dict[tuple[str, str], list[DesiredCapacity]] = {}
        for desired in all_desired:
            if not desired.reason and desired.driver.segment and self._is_on(desired.class_name):
                pools.setdefault((desired.driver.name, desired.source.pool_key), []).append(desired)
        tiers, own = dict.fromkeys(largest, 0), set[str]()
        for sharing in pools.values():
            chosen = {
                w.class_name: tier.choose(largest[w.class_name], self.now(w.class_name), w.usual) for w in sharing
            }
            if all(chosen.values()):
                tiers |= chosen
            if not all(self._will_do(name, largest[name], tiers[name]) for name in chosen):
                own |= chosen.keys()
        return TierPlan(tiers, largest, frozenset(own | {name for name in tiers if not tiers[name]}))

    def _is_on(self, storage_class: str) -> bool:
        """Return whether the class's tiers are in use now."""
        if self._tiers is None or self._clock.monotonic() < self._rejected_until:
            return False
        return self._mode == "tiers" or self._notice(storage_class) is not None

    def _will_do(self, storage_class: str, largest: int, chosen: int) -> bool:
        """Return whether the tier suffices.

        True if the tier has an object and no request for exact capacity names this node.
        """
        if not chosen or self._object(storage_class, tier.as_label(chosen)) is None:
            return False
        notice = self._notice(storage_class) or Notice()
        return self._node not in notice.exact_on or not chosen < notice.exact_from <= largest

    def _object(self, storage_class: str, value: str) -> CSIStorageCapacity | None:
        name = f"{self._namespace}/{tier.object_name(storage_class, value)}"
        return self._tiers.cache.get(name) if self._tiers is not None else None

    def _notice(self, storage_class: str) -> Notice | None:
        obj = self._object(storage_class, names.TIER_NOTICE)
        return None if obj is None else tier.read_notice(obj)

    # Labels

    def now(self, storage_class: str) -> int:
        """Return the tier that the Node's label says, 0 for none."""
        return tier.of_node(self._labels(), storage_class)

    def is_settled(self, plan: TierPlan, storage_class: str) -> bool:
        """Return whether the class needs no own object and its label is written."""
        return storage_class not in plan.own and self.now(storage_class) == plan.tiers[storage_class]

    async def lower(self, plan: TierPlan) -> None:
        """Lower labels that exceed the capacity. Idempotent.

        Raises: ApiError, UnavailableError.
        """
        low = [name for name, most in plan.largest.items() if self.now(name) > most]
        await self._write({names.tier_label(name): plan.tiers[name] for name in low})

    async def settle(self, plan: TierPlan, *, published: Collection[str], known: Sequence[str] | None) -> None:
        """Write the planned labels where no class loses its capacity. Idempotent.

        published: classes that have own objects. known: all classes of this node, whose labels stay; None while that is
        not known.

        Raises: ApiError, UnavailableError.
        """
        wanted = {names.tier_label(name): chosen for name, chosen in plan.tiers.items()}
        ready = [name for name in plan.tiers if name in published or name not in plan.own]
        change = {names.tier_label(name): plan.tiers[name] for name in ready}
        if known is not None:
            keys = {names.tier_label(name) for name in known} | wanted.keys()
            change |= dict.fromkeys(tier.labels_of(self._labels()).keys() - keys, 0)
        await self._write(change)

    async def _write(self, wanted: dict[str, int]) -> None:
        """Write labels that differ; if that is forbidden, publish exactly for a while."""
        labels = self._labels()
        values = {key: tier.as_label(chosen) if chosen else None for key, chosen in wanted.items()}
        change = {key: value for key, value in values.items() if labels.get(key) != value}
        if not change or self._current() is None or self._clock.monotonic() < self._rejected_until:
            return
        try:
            self._patched = await self._client.patch(NODES, self._node, {"metadata": {"labels": change}})
        except ApiNotFoundError:
            return
        except ApiError as failure:
            if failure.code != _FORBIDDEN:
                raise
            self._rejected_until = self._clock.monotonic() + REFUSED_PAUSE
            log.warning("tier label not written, capacity is published exactly node=%s error=%s", self._node, failure)
            self._wake()
            return
        log.info("tier of node=%s labels=%s", self._node, change)

    def _labels(self) -> dict[str, str]:
        node = self._current()
        return node.metadata.labels if node is not None else {}

    def _current(self) -> Node | None:
        """Return the newest known Node, from the watch or our own last write."""
        node, patched = self._nodes.cache.get(self._node), self._patched
        if node is None or patched is None or patched.metadata.uid != node.metadata.uid:
            return node
        return patched if patched.metadata.version > node.metadata.version else node

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Check only our labels: somebody may have changed them."""
        if new is not None and (old is None or _tiers(old) != _tiers(new)):
            self._wake()


def _tiers(node: Node) -> dict[str, str]:
    return tier.labels_of(node.metadata.labels)
