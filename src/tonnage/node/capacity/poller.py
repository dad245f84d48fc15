"""GetCapacity poller: calls drivers when capacity may have changed.

It calls after volumes were deleted or created, after CreateVolume ran out of space, and for a new class. It also calls
every `poll` seconds to see what others do to the disk; 0 is never, so an idle process does nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock
from tonnage.base.errors import InvalidError
from tonnage.csi.client.types import GetCapacityResult, VolumeCapability
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import STORAGE_CLASSES
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.provisioning.capacity.ledger import Ledger
from tonnage.provisioning.claims.node_scope import CapacitySource, DriverInfo, DriverSet, NodeScope
from tonnage.provisioning.claims.provisioning import capacity_parameters, fstype_of, parameters_of

log = logging.getLogger(__name__)
EVERY = 0.1
"""Minimum seconds between two GetCapacity rounds of a driver."""
QUIET = 1.0
"""Seconds to wait for creations under way, so that the result is exact; freed bytes do not wait, as a pod may."""
LONGEST = 240
"""Maximum length of a reason: a pod's condition holds it together with others."""
MAX_AGE = 60.0
"""Seconds until the driver is asked again about a class that it rejected.

Capacity changes often; an error of a class seldom does."""
_LOOK = 0.02
_NONE = GetCapacityResult(0, 0)


class Readings:
    """Refreshes the ledger's GetCapacity results.

    run() serves all drivers, also those that attach later.
    """

    def __init__(
        self,
        drivers: DriverSet,
        classes: Cache[StorageClass],
        ledger: Ledger,
        faults: ClassErrorEvents,
        clock: Clock,
        *,
        poll: float = 60.0,
    ) -> None:
        self.faults = faults
        self.drivers, self.ledger = drivers, ledger
        self._classes, self._clock = classes, clock
        self._poll = poll
        self._wanted: dict[str, asyncio.Event] = {}
        self._freed: set[str] = set()
        self._tried: dict[str, asyncio.Event] = {}
        self._listeners: list[Callable[[], None]] = []
        self._new = asyncio.Event()
        self._backoff = Backoff(initial=1.0, maximum=300.0)
        classes.on_change(lambda old, new: self._class_changed(old, new))
        drivers.on_add(lambda driver: self._added(driver))

    def want(self, driver: str, *, freed: bool = False) -> None:
        """Schedule GetCapacity for a driver, and for drivers that share its pools.

        freed: bytes became free, so that it does not wait for creations under way.
        """
        for name in (driver, *self.drivers.sharing_pools_with(driver)):
            if name in self._wanted:
                self._wanted[name].set()
                if freed:
                    self._freed.add(name)

    def want_all(self) -> None:
        """Schedule GetCapacity for all drivers."""
        for event in self._wanted.values():
            event.set()

    def on_reading(self, listener: Callable[[], None]) -> None:
        """Call listener after each GetCapacity round."""
        self._listeners.append(listener)

    async def first(self, driver: DriverInfo) -> None:
        """Wait until the driver was asked once, whatever it answered.

        Returns at once for drivers without GetCapacity.
        """
        if driver.lists_capacity and driver.name in self._tried:
            await self._tried[driver.name].wait()

    def sources(self, driver: DriverInfo) -> dict[CapacitySource, StorageClass]:
        """Return the classes that this driver serves here."""
        found = [c for c in self._classes if driver.serves(c) and c.allows(driver.segment)]
        return {driver.source(c): c for c in found}

    async def run(self) -> None:
        """Work until cancelled. Start when the classes are known."""
        served: set[str] = set()
        async with asyncio.TaskGroup() as tasks:
            while True:
                for name in self._wanted.keys() - served:
                    served.add(name)
                    tasks.create_task(self._serve(name))
                await self._new.wait()
                self._new.clear()

    def _added(self, driver: DriverInfo) -> None:
        if driver.lists_capacity and driver.name not in self._wanted:
            self._wanted[driver.name], self._tried[driver.name] = asyncio.Event(), asyncio.Event()
            self._new.set()
        self.want(driver.name)

    def _class_changed(self, old: StorageClass | None, new: StorageClass | None) -> None:
        for storage_class in filter(None, (old, new)):
            driver = self.drivers.get(storage_class.provisioner)
            if driver is None:
                continue
            if new is None:
                self.ledger.unread(driver.source(storage_class))
                self.faults.clear(driver.source(storage_class))
                self.ledger.changed()
            self.want(driver.name)

    async def _serve(self, name: str) -> None:
        wanted = self._wanted[name]
        wanted.set()
        while True:
            await self._until_wanted(wanted)
            await self._until_quiet(name)
            wanted.clear()
            self._freed.discard(name)
            driver = self.drivers.get(name)
            assert driver is not None
            try:
                await self._read(driver)
                self._backoff.forget(name)
                pause = EVERY
            except CsiError as failure:
                pause = self._backoff.next(name)
                log.warning("capacity not known driver=%s retry=%.0fs error=%s", name, pause, failure)
                wanted.set()
            self._tried[name].set()
            for listener in self._listeners:
                listener()
            await self._clock.sleep(pause)

    async def _until_wanted(self, wanted: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._poll if self._poll > 0 else None):
                await wanted.wait()

    async def _until_quiet(self, name: str) -> None:
        end = self._clock.monotonic() + QUIET
        while name not in self._freed and self.ledger.creating(name) and self._clock.monotonic() < end:
            await self._clock.sleep(_LOOK)

    async def _read(self, driver: DriverInfo) -> None:
        """Call GetCapacity once for each set of parameters. Raises: CsiError."""
        served = self.sources(driver)
        for source in [source for source, storage_class in served.items() if driver.publishes_ahead(storage_class)]:
            # The scheduler finds such volumes as PVs; capacity would make it choose nodes without one.
            self.ledger.read(source, self.ledger.begin(), 0, 0)
            del served[source]
        for sources in _alike(served):
            begun = self.ledger.begin()
            fault = all(self.faults.fresh(*item) for item in sources) and self.faults.get(sources[0][0])
            amount, fault = (_NONE, fault) if fault else await ask_capacity(driver, sources[0][1])
            inline_reserved = None if fault else await _inline_reserved(driver, sources[0][1], amount)
            for source, storage_class in sources:
                if self._classes.get(storage_class.key) is not storage_class:
                    continue  # replaced or gone during the calls; its change asked for another round
                if fault:
                    self.faults.found(source, storage_class, fault)
                else:
                    self.faults.clear(source)
                self.ledger.read(source, begun, amount.available, amount.maximum, inline_reserved=inline_reserved)


async def ask_capacity(driver: DriverInfo, storage_class: StorageClass) -> tuple[GetCapacityResult, str]:
    """Return a class's capacity, or 0 and why it can never have any.

    Raises: CsiError.
    """
    if fault := fault_of(storage_class):
        return _NONE, fault
    topology = driver.segment if driver.topology else None
    # Only our own driver gets capabilities: it checks the mount options. Other drivers may not expect any in this call.
    options = storage_class.mount_options if driver.default_pool else ()
    capabilities = (VolumeCapability(mount_flags=tuple(options)),) if options else ()
    parameters = capacity_parameters(storage_class)
    try:
        return await driver.client.get_capacity(parameters, topology=topology, capabilities=capabilities), ""
    except CsiError as failure:
        if not failure.infeasible:
            raise
        return _NONE, failure.message


async def _inline_reserved(driver: DriverInfo, storage_class: StorageClass, amount: GetCapacityResult) -> int | None:
    """Return bytes that only inline volumes may use, None if there is none.

    If a volume comes or goes between the two calls, another round follows.

    Raises: CsiError.
    """
    pool = driver.pool(storage_class)
    if pool not in driver.inline:
        return None
    found = await driver.client.get_capacity({"pool": pool, names.PARAM_INLINE: "true"})
    return max(0, found.available - amount.available)


def _alike(sources: dict[CapacitySource, StorageClass]) -> Sequence[Sequence[tuple[CapacitySource, StorageClass]]]:
    groups: dict[object, list[tuple[CapacitySource, StorageClass]]] = {}
    for source, storage_class in sources.items():
        key = (tuple(sorted(capacity_parameters(storage_class).items())), tuple(storage_class.mount_options))
        groups.setdefault(key, []).append((source, storage_class))
    return list(groups.values())


def fault_of(storage_class: StorageClass) -> str:
    """Return an error of the class that does not depend on the driver, or ""."""
    try:
        parameters_of(storage_class)
        fstype_of(storage_class)
    except InvalidError as reason:
        return str(reason)
    return ""


class ClassErrorEvents:
    """Errors of StorageClasses that this node cannot serve, by source, valid while the class object is the same.

    Each is published as the reason in a capacity object of capacity 0, and emitted once as an Event on the class.
    Otherwise a pod would only report that there is not enough storage. The error belongs to the node, not to the class:
    nodes may have different pools.
    """

    def __init__(self, events: EventRecorder, scope: NodeScope, clock: Clock) -> None:
        self._events, self._scope, self._clock = events, scope, clock
        self._faults: dict[CapacitySource, tuple[str, str, float]] = {}  # uid of the class, reason, when

    def get(self, source: CapacitySource) -> str:
        """Return why the source cannot have volumes, or ""."""
        return self._faults.get(source, ("", "", 0.0))[1]

    def fresh(self, source: CapacitySource, storage_class: StorageClass) -> str:
        """Return the class's error if it was found recently for this class object."""
        uid, reason, at = self._faults.get(source, ("", "", 0.0))
        same = uid == storage_class.metadata.uid and self._clock.monotonic() < at + MAX_AGE
        return reason if same else ""

    def doubt(self) -> None:
        """Forget when errors were found, so that the driver is asked again."""
        self._faults = {source: (uid, reason, float("-inf")) for source, (uid, reason, _) in self._faults.items()}

    def found(self, source: CapacitySource, storage_class: StorageClass, reason: str) -> None:
        """Record an error of the class on this node. Idempotent."""
        reason = shorten(reason)
        uid = storage_class.metadata.uid
        if self._faults.get(source, ("", ""))[:2] != (uid, reason):
            text = f"driver {source.driver} on node {self._scope.node} can make no volumes of this class: {reason}"
            self._events.warning(
                refer(STORAGE_CLASSES, storage_class), "InvalidParameters", text, once=f"{uid}\0{reason}"
            )
        self._faults[source] = (uid, reason, self._clock.monotonic())

    def clear(self, source: CapacitySource) -> None:
        """Remove the error: the class is valid here, or gone."""
        self._faults.pop(source, None)


def shorten(reason: str) -> str:
    """Shorten a reason to one line of at most LONGEST characters."""
    line = " ".join(reason.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3].rstrip()}..."
