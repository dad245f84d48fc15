"""Node process of a real cluster: CSI driver and node agent.

The driver starts first and never waits for the API server: the kubelet can mount volumes of pods on this node while the
API server is away.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.aio.tasks import Background, supervise
from tonnage.base.errors import TonnageError
from tonnage.csi.client.registrar import Registrar
from tonnage.kubernetes.api.kinds import NAMESPACES, NODES
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.events import WARNING, EventRecorder
from tonnage.node.agent import NodeAgent
from tonnage.node.config.node import NodeConfig
from tonnage.node.flexvolume.service import FlexPlaces, FlexService
from tonnage.node.inline.drivers import InlineDrivers, pod_events
from tonnage.node.inline.sources import InlineContext
from tonnage.node.plain_driver import StandaloneDriver
from tonnage.node.reload import Reconfigure

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class NodeProcess:
    """CSI driver that is registered with the kubelet, and its agent.

    start() serves the kubelet and returns. The agent works as soon as the API server answers. client: of the API
    server. live: the configuration file to follow, and the function that reads it with the command line over it.
    """

    def __init__(
        self,
        config: NodeConfig,
        client: Client,
        *,
        live: tuple[Path, Callable[[], NodeConfig]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self.driver = StandaloneDriver(config.driver)
        self.agent: NodeAgent | None = None
        self._client, self._clock = client, clock or RealClock()
        self._tasks = Background("node")
        self._events = EventRecorder(client, "tonnage-node", host=config.driver.node_name, clock=self._clock)
        self._live = live
        self.inline = InlineDrivers(
            config.inline, self._context(), kubelet=config.kubelet, registry=config.driver.registry
        )
        self.driver.on_measure = self.inline.measure
        registry = config.driver.registry
        self._registrar = (
            Registrar(config.agent.endpoints, registry, clock=self._clock) if registry is not None else None
        )

    async def start(self) -> None:
        """Open pools, serve, register.

        Raises: as StandaloneDriver.start.
        """
        await self.driver.start()
        await self.inline.start()
        self._tasks.start(supervise("agent", self._run_agent), "agent")
        if self._registrar is not None:
            self._tasks.start(supervise("registrar", self._registrar.run), "registrar")
        self._tasks.start(supervise("events", self._events.run), "events")
        if self.config.flexvolume is not None:
            self._tasks.start(supervise("flexvolume", self._flexvolume(self.config.flexvolume).run), "flexvolume")
        if self._live is not None:
            file, read = self._live
            change = Reconfigure(self.config, self.driver, tell=self._tell, after=self._reconsider)
            follow = partial(change.follow, file, read, self._clock)
            self._tasks.start(supervise("configuration", follow), "configuration")

    def _context(self) -> InlineContext:
        driver, emit = self.config.driver, pod_events(self._events)
        stores = tuple(driver.image_stores)
        return InlineContext(
            *(driver.node_name, self._client, emit, self._clock, stores, self.driver.layers, driver.state),
            namespace=self.config.agent.namespace,
        )

    def _flexvolume(self, plugins: Path) -> FlexService:
        config = self.config
        return FlexService(
            self.driver.client(),
            self._client,
            config.driver.node_name,
            FlexPlaces(plugins, config.kubelet, config.driver.state),
            clock=self._clock,
            changed=self.driver.hooks.capacity_changed,
        )

    async def _reconsider(self) -> None:
        if self.agent is not None:
            await self.agent.reconsider()

    def _tell(self, type_: str, reason: str, message: str) -> None:
        """Log a message, and emit it on the Node when the API server answers."""
        log.log(logging.WARNING if type_ == WARNING else logging.INFO, "%s message=%s", reason, message)
        self._tasks.start(self._record(type_, reason, message), "event")

    async def _record(self, type_: str, reason: str, message: str) -> None:
        node = await self._insist(lambda: self._client.get(NODES, self.config.driver.node_name))
        self._events.record(refer(NODES, node), type_, reason, message)

    async def _run_agent(self) -> None:
        """Read the cluster's uid, then run the agent; again for another cluster.

        Volumes' records hold that uid.
        """
        while True:
            system = await self._insist(lambda: self._client.get(NAMESPACES, "kube-system"))
            config = replace(self.config.agent, cluster_uid=system.metadata.uid)
            clients, faults = [self.driver.client()], self.driver.faults
            self.agent = NodeAgent(self._client, config, clients=clients, faults=faults, clock=self._clock)
            self.driver.hooks.to = self.agent
            await self.agent.run()

    async def _insist(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        backoff = Backoff(initial=0.2, maximum=10.0)
        while True:
            try:
                return await ask()
            except TonnageError as failure:
                pause = backoff.next("")
                log.warning("API server not ready retry=%.1fs error=%s", pause, failure)
                await self._clock.sleep(pause)

    async def stop(self) -> None:
        """Stop the agent, then the driver; volumes and mounts stay. Idempotent."""
        if self.agent is not None:
            await self.agent.stop()
        await self._tasks.close()
        if self._registrar is not None:
            await self._registrar.stop()
        await self.inline.stop()
        await self.driver.stop()
        await self._client.close()
