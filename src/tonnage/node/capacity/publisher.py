"""Capacity publisher: CSIStorageCapacity by class and driver (KEP-1472).

It publishes decreases at once, then at most every 100 ms. It publishes increases at most once a second for the node,
since each wakes every waiting pod. It writes nothing when nothing changed. The annotation for the observed claim
version names the newest claim whose reservation the numbers include. Classes that a tier represents have no object of
their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from tonnage.aio.backoff import Backoff
from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.capacity import tier
from tonnage.capacity.desired import Wish
from tonnage.capacity.object import object_name
from tonnage.claims.node_scope import CapacitySource
from tonnage.errors import ApiError, TonnageError
from tonnage.kube.client import Client
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers
from tonnage.node.capacity.poller import Readings
from tonnage.node.capacity.tiers import NodeTiers, TierPlan, TierWant
from tonnage.node.capacity.writer import OwnCapacity
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
