"""The node agent: composition of the parts, nothing else. It runs the controllers that serve claims."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.aio.tasks import Background, supervise
from tonnage.base.errors import ApiError, UnavailableError, UnsupportedError
from tonnage.base.observe import metrics
from tonnage.csi.client.client import STORAGE_TIMEOUT, CsiClient
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import ATTRIBUTES_CLASSES, CLAIMS, NODES, PODS, STORAGE_CLASSES, VOLUMES
from tonnage.kubernetes.api.meta import ObjectReference
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers, RewoundError
from tonnage.node.attributes import AttributesModifier
from tonnage.node.autogrow import Autogrow
from tonnage.node.capacity.poller import ClassErrorEvents, Readings
from tonnage.node.capacity.pool_condition import PoolCondition, PoolFaults
from tonnage.node.capacity.publisher import CapacityPublisher
from tonnage.node.config.agent import AgentConfig
from tonnage.node.deletions import Deletions
from tonnage.node.growth import VolumeGrowth
from tonnage.node.health import POLLS, VolumeHealth
from tonnage.node.history import ApiHistory
from tonnage.node.orphans import Sweep
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.provisioner.controller import Provisioner
from tonnage.node.provisioner.state import ClaimTable
from tonnage.node.reclaim.finalizers import FinalizerSync
from tonnage.node.reclaim.finished import FinishedReclaimer
from tonnage.node.reclaim.released import Reclaimer
from tonnage.node.snapshots.groups import group_snapshotter
from tonnage.node.snapshots.single import snapshotter
from tonnage.node.startup_taint import StartupTaint
from tonnage.node.static_pvs import Publication
from tonnage.node.watch_scope import ClaimScope
from tonnage.provisioning.capacity.ledger import Ledger
from tonnage.provisioning.claims.attributes import AttributesClasses
from tonnage.provisioning.claims.bind import find
from tonnage.provisioning.claims.node_scope import DriverInfo, DriverSet, attach

log = logging.getLogger(__name__)


class NodeAgent:
    """All controllers of one node, over its drivers' sockets.

    clients: drivers that are reached in another way than by config.endpoints. faults: of the pools in this process,
    for the Node's condition.
    """

    def __init__(
        self,
        client: Client,
        config: AgentConfig,
        *,
        clients: Sequence[CsiClient] = (),
        faults: PoolFaults | None = None,
        clock: Clock | None = None,
        number: Callable[[], int] = lambda: random.randrange(10000),
    ) -> None:
        self._clock = clock or RealClock()
        self._number = number
        self.scope, self._serves_flex = config.node_scope, config.flexvolume
        self.drivers = DriverSet()
        self.ledger = Ledger()
        metrics.RESERVATIONS.count(self.ledger, config.node_name, lambda ledger: ledger.counts)
        self._clients = [*clients, *(CsiClient(path, timeout=STORAGE_TIMEOUT) for path in config.endpoints)]
        self._elsewhere = [CsiClient(path, timeout=STORAGE_TIMEOUT) for path in config.elsewhere]
        self._informers = Informers(client, lambda: self.history.continues())
        self._events = EventRecorder(client, "tonnage-node", host=config.node_name, clock=self._clock)
        self._tasks: asyncio.Task[None] | None = None
        self._background = Background("agent")
        self._build(client, config)
        self.claim_scope = ClaimScope(client, self._informers, config, self._clock)
        self._taint = None
        if config.startup_taint:
            self._taint = StartupTaint(client, self._informers, config, lambda: self.capacity.is_published, self._clock)
        self._pool_faults = faults or PoolFaults(tuple)
        self._condition = PoolCondition(client, self._informers, config.node_name, self._pool_faults, self._clock)

    def _build(self, client: Client, config: AgentConfig) -> None:
        scope, drivers, ledger, clock, informers = self.scope, self.drivers, self.ledger, self._clock, self._informers
        classes = informers.of(STORAGE_CLASSES).cache
        faults = ClassErrorEvents(self._events, scope, clock)
        self.readings = Readings(drivers, classes, ledger, faults, clock, poll=config.poll)
        volumes = informers.of(VOLUMES, labels=scope.selector).cache
        self.history = ApiHistory(client, self._events, clock, scope, volumes, config.state)
        self.context = NodeContext(
            client,
            self._events,
            clock,
            scope,
            drivers,
            ledger,
            self.readings,
            informers.of(CLAIMS, labels=scope.selector).cache,
            volumes,
            classes,
            AttributesClasses(client, informers.of(ATTRIBUTES_CLASSES, optional=True)),
            ClaimTable(),
            Deletions(client, self.history),
            binds=config.binding == "agent",
            guard_after=config.starvation_guard,
        )
        self.provisioner = Provisioner(self.context, informers)
        self.reclaimer = Reclaimer(self.context, informers)
        self.finalizers = FinalizerSync(self.context, informers)
        self.finished = FinishedReclaimer(self.context, informers)
        self.growth = VolumeGrowth(self.context, informers)
        self.autogrow = Autogrow(self.context, informers, config.kubelet)
        self.attributes = AttributesModifier(self.context, informers)
        self.health = VolumeHealth(self.context, POLLS * config.poll)
        self.publication = Publication(self.context, informers)
        self.snapshotter = snapshotter(self.context, informers)
        self.groups = group_snapshotter(self.context, informers)
        self.reclaimer.on_lost = lambda: self.sweep.want()
        self.capacity = CapacityPublisher(client, informers, self._events, config, self.readings, clock)
        self.sweep = Sweep(self.context, config, self.provisioner, self.history)
        ledger.changed = self.capacity.wake

    # What the driver in this process reports (tonnage.csi.driver.hooks).

    def capacity_changed(self) -> None:
        """Call GetCapacity again: an inline volume came or went."""
        self.readings.want_all()

    async def before_stage(self, handle: str) -> None:
        """See ApiHistory.before_use()."""
        await self.history.before_use(handle)

    def unstaged(self, handle: str) -> None:
        """Check whether the pod of a volume that was unstaged has finished."""
        self.finished.unstaged(handle)

    def unfit(self, context: Mapping[str, str], why: str) -> None:
        """Emit an Event on the pod: its inline volume does not fit.

        The controller reads that Event where it may evict such pods.
        """
        keys = (names.CSI_POD_NAMESPACE, names.CSI_POD_NAME, names.CSI_POD_UID)
        pod = ObjectReference(PODS.api_version, PODS.kind, *(context.get(key, "") for key in keys))
        if pod.name and pod.uid:  # other orchestrators do not pass the pod
            self._events.warning(pod, names.UNFIT, f"inline volume on node {self.scope.node}: {why}")

    def pool_fault(self, pool: str, why: str) -> None:
        """Emit an Event on the Node, and change its condition: a pool cannot write, or can again (why "")."""
        self._pool_faults.changed()
        self._background.start(self._tell_pool_fault(pool, why))

    async def _tell_pool_fault(self, pool: str, why: str) -> None:
        with suppress(ApiError, UnavailableError):
            if (node := await find(self.context.client, NODES, self.scope.node)) is None:
                return
            if why:
                text = f"pool {pool} cannot write, it gets no volumes until it can: {why}"
                self._events.warning(refer(NODES, node), "PoolCannotWrite", text)
            else:
                self._events.normal(refer(NODES, node), "PoolCanWrite", f"pool {pool} can write again")

    async def reconsider(self) -> None:
        """Ask all drivers for their pools and capacity again.

        A driver that does not answer keeps its last known state.
        """
        for csi in (*self._clients, *self._elsewhere):
            known = next((driver for driver in self.drivers if driver.client is csi), None)
            if known is None:
                continue  # a query of this driver is under way
            try:
                found = await attach(csi, node=self.scope.node, started_ms=0, number=0)
            except (CsiError, UnavailableError, UnsupportedError) as failure:
                log.warning("pools not read again driver=%s error=%s", known.name, failure)
                continue
            self.drivers.add(replace(found, identity=known.identity, flex=known.flex))
        self.readings.faults.doubt()
        self.readings.want_all()

    def unsynced(self) -> list[str]:
        """As Informers.unsynced."""
        return self._informers.unsynced()

    async def run(self) -> None:
        """Work until stop() or cancellation; volumes stay as they are.

        Returns when the API server has returned to another state than the one seen, or is another cluster. No observed
        object or reservation is valid then, so a new agent must start as after a kill.
        """
        self._tasks = asyncio.current_task()
        try:
            await self.claim_scope.decide()
            self._informers.start()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._informers.end_when_rewound())
                tasks.create_task(self._attach_all())
                for name, part in self._at_once():
                    tasks.create_task(supervise(name, part))
                await self.provisioner.ready()
                for name, part in self._once_reservations_are_known():
                    tasks.create_task(supervise(name, part))
        except* RewoundError:
            log.warning("agent restarts its controllers node=%s", self.scope.node)
        finally:
            await self._background.close()
            await self._informers.close()
            for csi in (*self._clients, *self._elsewhere):
                csi.close()

    def _at_once(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        yield "events", self._events.run
        yield "claim_scope", self.claim_scope.run
        if self._taint is not None:
            yield "startup_taint", self._taint.run
        yield "pool_condition", self._condition.run

    def _once_reservations_are_known(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """Before that, capacity would be published that is promised, and a volume swept that a claim waits for."""
        yield "history", self.history.run
        yield "readings", self.readings.run
        yield "provisioner", self.provisioner.run
        yield "reclaimer", self.reclaimer.run
        yield "finalizers", self.finalizers.run
        yield "finished", self.finished.run
        yield "growth", self.growth.run
        yield "autogrow", self.autogrow.run
        yield "attributes", self.attributes.run
        yield "snapshots", self.snapshotter.run
        yield "group_snapshots", self.groups.run
        yield "health", self.health.run
        yield "publication", self.publication.run
        yield "capacity", self.capacity.run
        yield "sweep", self.sweep.run

    async def stop(self) -> None:
        """End run() and wait for it. Idempotent."""
        task, self._tasks = self._tasks, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    async def _attach_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for csi in self._clients:
                tasks.create_task(self._attach(csi))
        self.drivers.complete = True
        self.capacity.wake()

    async def _attach(self, csi: CsiClient) -> None:
        """Probe a driver until it answers: it may start later than its agent."""
        try:
            self._add(await self._answer(csi))
        except UnsupportedError as failure:
            # It may still serve inline volumes, which only the kubelet handles.
            log.warning("driver not served socket=%s reason=%s", csi.socket, failure)
            async with asyncio.TaskGroup() as tasks:
                for other in self._elsewhere:
                    tasks.create_task(self._attach_elsewhere(other, csi.driver))

    async def _attach_elsewhere(self, csi: CsiClient, name: str) -> None:
        """Make volumes by another node's controller service: one of a driver without topology serves all nodes."""
        with suppress(UnsupportedError):
            driver = await self._answer(csi)
            if driver.name == name and not driver.topology and self.drivers.get(name) is None:
                self._add(driver)

    async def _answer(self, csi: CsiClient) -> DriverInfo:
        """What a driver says once it answers. Raises: UnsupportedError for one that makes no volumes."""
        backoff = Backoff(initial=0.05, maximum=10.0)
        while True:
            try:
                started = int(self._clock.time() * 1000)
                return await attach(csi, node=self.scope.node, started_ms=started, number=self._number())
            except (CsiError, UnavailableError) as failure:
                delay = backoff.next("")
                log.info("driver not ready socket=%s retry=%.2fs error=%s", csi.socket, delay, failure)
                await self._clock.sleep(delay)

    def _add(self, driver: DriverInfo) -> None:
        csi = driver.client
        known = self.drivers.get(driver.name)
        if known is not None and known.client is not csi:
            log.error("two drivers of one name, the second is left out driver=%s socket=%s", driver.name, csi.socket)
            return
        if self._serves_flex and driver.name == names.DRIVER:
            driver = replace(driver, flex=names.FLEX_PROVISIONERS)
        log.info("driver attached driver=%s socket=%s segment=%s", driver.name, csi.socket, dict(driver.segment))
        self.drivers.add(driver)
