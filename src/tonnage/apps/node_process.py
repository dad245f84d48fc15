"""A node of a real cluster: a CSI driver registered with the kubelet, and the agent that serves claims, in one process.

The driver comes first and never waits for the API server: pods that were placed here can be mounted while it is away.
"""

from __future__ import annotations

import logging

from tonnage.aio.backoff import Backoff
from tonnage.aio.clock import Clock, RealClock
from tonnage.aio.tasks import Background, supervise
from tonnage.api.kinds import NAMESPACES
from tonnage.apps.driver import StandaloneDriver
from tonnage.apps.node import NodeAgent
from tonnage.apps.node_config import NodeConfig
from tonnage.errors import TonnageError
from tonnage.kube.client import Client

log = logging.getLogger(__name__)


class NodeProcess:
    """start() serves the kubelet and returns; the agent works as soon as the API server answers. client: to it."""

    def __init__(self, config: NodeConfig, client: Client, *, clock: Clock | None = None) -> None:
        self.config = config
        self.driver = StandaloneDriver(config.driver)
        self.agent: NodeAgent | None = None
        self._client, self._clock = client, clock or RealClock()
        self._tasks = Background("node")

    async def start(self) -> None:
        """Open pools, serve, register. Raises as StandaloneDriver.start."""
        await self.driver.start()
        self._tasks.start(supervise("agent", self._run_agent), "agent")

    async def _run_agent(self) -> None:
        """Find out which cluster it is, then serve it: volumes are marked with its uid. Again if it becomes another."""
        while True:
            await self._serve_cluster()

    async def _serve_cluster(self) -> None:
        config = self.config
        self.agent = NodeAgent(
            self._client,
            node_name=config.driver.node_name,
            cluster_uid=await self._cluster_uid(),
            endpoints=[config.driver.endpoint, *config.endpoints],
            namespace=config.namespace,
            clock=self._clock,
            binding=config.binding,
            watches=config.scope,
            startup_taint=(config.driver.driver_name,),
        )
        self.driver.on_inline = self.agent.refresh
        await self.agent.run()

    async def _cluster_uid(self) -> str:
        backoff = Backoff(initial=0.2, maximum=10.0)
        while True:
            try:
                return (await self._client.get(NAMESPACES, "kube-system")).metadata.uid
            except TonnageError as failure:
                pause = backoff.next("")
                log.warning("API server not ready retry=%.1fs error=%s", pause, failure)
                await self._clock.sleep(pause)

    async def stop(self) -> None:
        """Stop the agent, then the driver; volumes and mounts stay. May be repeated."""
        if self.agent is not None:
            await self.agent.stop()
        await self._tasks.close()
        await self.driver.stop()
        await self._client.close()
