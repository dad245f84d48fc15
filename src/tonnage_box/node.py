"""One node of the box: pools, driver, agent and kubelet, all in the cluster's process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tonnage.base.aio.clock import Clock
from tonnage.base.aio.tasks import Background, supervise
from tonnage.base.errors import HostError, TonnageError
from tonnage.csi.client.registrar import Registrar
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES, CSI_NODES, NODES, STORAGE_CLASSES, Kind
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.agent import NodeAgent
from tonnage.node.config.agent import AgentConfig
from tonnage.node.flexvolume.service import FlexPlaces, FlexService
from tonnage.node.inline.config import parse_inlines
from tonnage.node.inline.drivers import InlineDrivers, pod_events
from tonnage.node.inline.sources import InlineContext
from tonnage.storage.content.hosts import parse_host
from tonnage.storage.images.store import ImageStore, is_store
from tonnage.storage.pools import config as pool_config
from tonnage_box.certificates import box_issuer
from tonnage_box.data_dir import DataFolder, Settings, short_enough
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime
from tonnage_box.kubelet.containers.paths import Paths
from tonnage_box.kubelet.containers.rootfs import ADDRESS
from tonnage_box.kubelet.containers.runtime import NoneRuntime, Runtime
from tonnage_box.kubelet.images.node_images import NodeImages
from tonnage_box.kubelet.kubelet import Kubelet
from tonnage_box.kubelet.node_status import machine
from tonnage_box.kubelet.volumes.sources import NodeFields
from tonnage_box.node_driver import NodeDriver
from tonnage_box.plan import BoxPlan

log = logging.getLogger(__name__)


def _agent_config(name: str, plan: BoxPlan, clusters: Sequence[str], kubelet: Path) -> AgentConfig:
    *former, cluster = clusters
    return AgentConfig(
        name,
        scope="label",
        capacity=plan.capacity,
        starvation_guard=plan.settings.starvation_guard,
        endpoints=tuple(plan.endpoints.get(name, [])),
        elsewhere=tuple(path for node, paths in plan.endpoints.items() if node != name for path in paths),
        cluster_uid=cluster,
        former_clusters=tuple(former),
        kubelet=kubelet,
        flexvolume=plan.settings.flexvolume,
        state=kubelet / "plugins" / names.DRIVER,
    )


def _runtime(root: Path, settings: Settings, data: DataFolder, clock: Clock) -> Runtime:
    """The node's runtime, with the images of the data folder and of a store that the user names."""
    images = NodeImages([ImageStore(path) for path in _stores(settings, data)], required=settings.require_images)
    return NoneRuntime(clock, images) if settings.runtime == "none" else BubblewrapRuntime(root, clock, images)


def _stores(settings: Settings, data: DataFolder) -> list[Path]:
    return [data.images, *([Path(settings.images)] if settings.images and is_store(Path(settings.images)) else [])]


@dataclass(frozen=True)
class _Parts:
    """What a node is made of: each method makes one of its parts."""

    client: Client
    informers: Informers
    events: EventRecorder
    name: str
    plan: BoxPlan
    data: DataFolder
    clock: Clock

    @property
    def root(self) -> Path:
        return self.data.node(self.name) / "kubelet"

    @property
    def sockets(self) -> Path:
        return self.data.sockets() / self.name

    @property
    def usual_registry(self) -> Path:
        return self.root / "plugins_registry"

    @property
    def registry(self) -> Path:
        return short_enough(self.usual_registry, self.sockets / "registry")

    def driver(self) -> NodeDriver:
        settings = self.plan.settings
        return NodeDriver(
            [pool_config.make(pool, clock=self.clock, disks=self.plan.disks) for pool in self.plan.nodes[self.name]],
            node_name=self.name,
            kubelet=self.root,
            sockets=self.sockets,
            registry=self.registry,
            drivers=self.plan.drivers,
            sources=[Path(text) for text in settings.sources],
            fetch=[parse_host(text) for text in settings.fetch],
            image_stores=_stores(settings, self.data),
            clock=self.clock,
        )

    def agent(self, driver: NodeDriver) -> NodeAgent:
        config = _agent_config(self.name, self.plan, self.data.clusters(), self.root)
        agent = NodeAgent(self.client, config, clients=driver.clients(), faults=driver.faults, clock=self.clock)
        driver.hooks.to = agent
        return agent

    def inline(self, driver: NodeDriver) -> InlineDrivers:
        settings, state = self.plan.settings, self.data.node(self.name) / "inline"
        emit, stores = pod_events(self.events), tuple(_stores(settings, self.data))
        issuer = partial(box_issuer, self.client, self.clock)
        context = InlineContext(
            self.name, self.client, emit, self.clock, stores, driver.layers, state, own_issuer=issuer
        )
        return InlineDrivers(
            parse_inlines(settings.inline), context, kubelet=self.root, registry=self.registry, sockets=self.sockets
        )

    def registrar(self, taken: Sequence[str]) -> Registrar:
        endpoints = self.plan.endpoints.get(self.name, [])
        return Registrar(endpoints, self.registry, taken=taken, clock=self.clock)

    def kubelet(self) -> Kubelet:
        settings = self.plan.settings
        server = None if settings.runtime == "none" else self.plan.server
        return Kubelet(
            self.client,
            self.informers,
            self.events,
            NodeFields(self.name, ADDRESS, machine(self.root, pods=self.plan.max_pods), server),
            Paths(self.root, registry=self.registry),
            runtime=_runtime(self.root, settings, self.data, self.clock),
            clock=self.clock,
        )

    def flexvolume(self, driver: NodeDriver, agent: NodeAgent, kubelet: Kubelet) -> FlexService:
        state = self.root / "plugins" / names.DRIVER
        places = FlexPlaces(Path(kubelet.paths.flexvolume), self.root, state, self.sockets / "flex")
        client = driver.clients()[0]
        return FlexService(client, self.client, self.name, places, clock=self.clock, changed=agent.capacity_changed)


class BoxNode:
    """A node: open() and start() bring it up, published() waits for its capacity, stop() takes everything down."""

    ready_seconds = 30.0
    """Seconds that published() waits."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder,
        name: str,
        plan: BoxPlan,
        data: DataFolder,
        *,
        clock: Clock,
    ) -> None:
        self.name, self._informers, self._data = name, informers, data
        self._pools, self._drivers = plan.nodes[name], plan.drivers
        parts = _Parts(client, informers, events, name, plan, data, clock)
        self._sockets, self._usual_registry, self._registry = parts.sockets, parts.usual_registry, parts.registry
        self.driver = parts.driver()
        self.agent = parts.agent(self.driver)
        self.inline = parts.inline(self.driver)
        self._registrar = parts.registrar([*self._drivers, *self.inline.names])
        self.kubelet = parts.kubelet()
        self._flexvolume = parts.flexvolume(self.driver, self.agent, self.kubelet) if plan.settings.flexvolume else None
        self._tasks = Background(f"node {name}")
        self._running: asyncio.Task[None] | None = None
        self._found: set[tuple[str, str]] | None = None  # the pools' contents when they were opened
        self.has_new_volumes = False
        """Once it was stopped before the cluster was up: whether a volume or snapshot was made since open()."""

    def describe(self) -> str:
        """Its pools, for people."""
        sizes = [(pool, from_bytes(pool.size) if pool.has_size else "whole disks") for pool in self._pools]
        pools = [f"pool {pool.name} ({pool.kind}) of {size}" for pool, size in sizes]
        return ", ".join([*pools, *(f"inline driver {name}" for name in self.inline.names)])

    async def open(self) -> None:
        """Open the pools and serve the driver: from here on they count in what others on the same disk publish."""
        if self._usual_registry.is_symlink():  # the data folder may have been elsewhere
            self._usual_registry.unlink()
        for place in (self._data.node(self.name), self._sockets, self._registry):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._registry != self._usual_registry:
            self._link_registry()
        await self.driver.start()
        await self.inline.start()
        self._found = await self.driver.contents()

    async def start(self) -> None:
        """Run kubelet and agent; returns when the kubelet is ready."""
        self._tasks.start(self._registrar.run(), "registrar")
        if self._flexvolume is not None:
            self._tasks.start(supervise(f"flexvolume {self.name}", self._flexvolume.run), f"flexvolume {self.name}")
        self._running = self._tasks.start(self._run_kubelet(), f"kubelet {self.name}")
        self._tasks.start(supervise(f"agent {self.name}", self.agent.run), f"agent {self.name}")
        ready = asyncio.ensure_future(self.kubelet.ready.wait())
        await asyncio.wait([ready, self._running], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._running.done():
            self._running.result()

    def waits_for(self) -> list[str]:
        """What start() and published() wait for; empty when the node is ready."""
        if self._running is None:
            return [f"node {self.name}: the driver and its pools"]
        if not self.kubelet.ready.is_set():
            return [f"node {self.name}: the kubelet"]
        if lacks := self._lacks():
            return [f"node {self.name}: {what}" for what in (*lacks, *self.agent.unsynced())]
        return []

    async def _run_kubelet(self) -> None:
        """Run the kubelet. start() reports a failure before it is ready; later failures are logged, and it restarts."""
        try:
            await self.kubelet.run()
        except Exception:
            if not self.kubelet.ready.is_set():
                raise
            log.exception("kubelet failed, restarting it node=%s", self.name)
            await supervise(f"kubelet {self.name}", self.kubelet.run)

    def _link_registry(self) -> None:
        """Where the data folder's path is too long for our sockets, others may still put theirs at the usual place."""
        usual = self._usual_registry
        usual.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if usual.is_dir():
            return  # it existed before and may have content
        usual.symlink_to(self._registry)

    async def published(self) -> None:
        """Wait until the scheduler can use the node's drivers and capacity, at most 30 s.

        A pod that came before would be retried only after the scheduler's back-off. A driver that the kubelet rejects
        is logged: a person needs the API server to repair the node's labels. Raises: HostError without capacity.
        """
        await self._wait_published()
        for driver, why in self.kubelet.plugins.rejected.items():
            log.warning("node %s: driver %s is not registered: %s; pods get no volumes of it", self.name, driver, why)

    async def _wait_published(self) -> None:
        if not self._lacks():
            return
        done = asyncio.Event()

        def look(_old: KubeObject | None = None, _new: KubeObject | None = None) -> None:
            if not done.is_set() and not self._lacks():  # the handlers stay, and it reads all capacity
                done.set()

        self.kubelet.plugins.on_rejected = look

        kinds: tuple[Kind[Any], ...] = (CAPACITIES, NODES, CSI_NODES)
        for kind in kinds:
            self._informers.of(kind).cache.on_change(look)
        try:
            await asyncio.wait_for(done.wait(), self.ready_seconds)
        except TimeoutError:
            lacks = f"node {self.name} lacks {' and '.join(self._lacks())}"
            if self._unpublished():
                raise HostError(f"{lacks}: see the log") from None
            log.warning("%s: its pods get no volumes of them", lacks)

    def _lacks(self) -> list[str]:
        """What the scheduler cannot see of this node yet, without drivers that wait for a person."""
        unregistered = self._unregistered() - self.kubelet.plugins.rejected.keys()
        lacks = {"capacity of classes": self._unpublished(), "registration of drivers": unregistered}
        return [f"{what} {', '.join(sorted(missing))}" for what, missing in lacks.items() if missing]

    def _unregistered(self) -> set[str]:
        """Drivers of this node without an entry in CSINode, or without their topology labels."""
        node, entries = (
            self._informers.of(NODES).cache.get(self.name),
            self._informers.of(CSI_NODES).cache.get(self.name),
        )
        labels = node.metadata.labels.keys() if node is not None else set()
        known = entries.spec.drivers if entries is not None else []
        return set(self._drivers) - {entry.name for entry in known if labels >= set(entry.topology_keys)}

    def _unpublished(self) -> set[str]:
        """Classes of this node's drivers for which it has published nothing."""
        label = names.label_value(self.name)
        classes = {c.metadata.name for c in self._informers.of(STORAGE_CLASSES).cache if c.provisioner in self._drivers}
        node = self._informers.of(NODES).cache.get(self.name)
        tiers = node.metadata.labels if node is not None else {}
        for capacity in self._informers.of(CAPACITIES).cache:
            labels, name = capacity.metadata.labels, capacity.storage_class_name
            if labels.get(names.NODE_LABEL) == label or labels.get(names.TIER) == tiers.get(names.tier_label(name), ""):
                classes.discard(name)
        return classes

    async def stop(self, *, seconds: float, is_up: bool = True) -> None:
        """End containers, unmount, close the pools. Idempotent.

        The kubelet has so many seconds; cleanup.clean() removes what is left then. is_up: whether the cluster
        was up; else has_new_volumes is set.
        """
        try:
            if self._running is not None:
                self._running.cancel()
                await asyncio.gather(self._running, return_exceptions=True)
                self._running = None
                async with asyncio.timeout(seconds):
                    await self.kubelet.stop()
        except TimeoutError:
            log.warning("kubelet not stopped in time node=%s seconds=%.0f", self.name, seconds)
        finally:
            await self.agent.stop()
            await self._tasks.close()
            await self._registrar.stop()
            if not is_up and self._found is not None:  # nothing makes volumes any more, and the pools are still open
                self.has_new_volumes = await self._are_new(self._found)
                self._found = None
            await self.inline.stop()
            await self.driver.stop()

    async def _are_new(self, before: Set[tuple[str, str]]) -> bool:
        try:
            return not await self.driver.contents() <= before
        except TonnageError as failure:
            log.warning("node %s: volumes cannot be listed, taken as used: %s", self.name, failure)
            return True
