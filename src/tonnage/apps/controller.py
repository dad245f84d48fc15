"""`tonnage controller`: the few duties of a cluster that no node can have. Several run, one works; composition only.

Nobody waits for it: without it volumes are made all the same, if every agent watches all claims (claim_scope.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tonnage.aio.clock import Clock, RealClock
from tonnage.aio.tasks import Background, supervise
from tonnage.api import names
from tonnage.controllers.gone_capacity import GoneCapacity
from tonnage.controllers.gone_nodes import GoneNodes
from tonnage.controllers.hand_placed import HandPlaced
from tonnage.controllers.immediate import ImmediateController
from tonnage.controllers.scoping import Scoping
from tonnage.controllers.together import Together
from tonnage.kube.client import Client
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers
from tonnage.kube.lease import LeaderElection
from tonnage.observe import metrics
from tonnage.observe.exporter import Address, Exporter

log = logging.getLogger(__name__)
WAITING_PODS = "status.phase=Pending"
"""Pods that are watched: those that have not started. On a large cluster they are few."""


@dataclass(frozen=True)
class ControllerConfig:
    """identity: this replica's name. namespace: of the Lease and of capacity objects. drivers: the CSI drivers that our
    agents serve -> their topology key. metrics: where to serve them, None for nowhere."""

    identity: str
    namespace: str = names.SYSTEM_NAMESPACE
    drivers: Mapping[str, str] = field(default_factory=lambda: {names.DRIVER: names.TOPOLOGY_NODE})
    metrics: Address | None = None


class ControllerProcess:
    """start() returns at once; the work begins when this replica leads. client: to the API server."""

    def __init__(self, config: ControllerConfig, client: Client, *, clock: Clock | None = None) -> None:
        self.config = config
        self._client, self._clock = client, clock or RealClock()
        self._tasks = Background("controller")
        self._exporter = Exporter(config.metrics, _nothing) if config.metrics is not None else None
        self._election = LeaderElection(
            client, config.namespace, names.CONTROLLER_LEASE, config.identity, clock=self._clock
        )

    @property
    def metrics_url(self) -> str:
        """Where metrics are served, "" for nowhere."""
        return self._exporter.url if self._exporter is not None else ""

    async def start(self) -> None:
        """Serve metrics, stand for election. Raises HostError when the address cannot be had."""
        if self._exporter is not None:
            await self._exporter.start()
            log.info("serving metrics url=%s", self._exporter.url)
        self._tasks.start(supervise("election", lambda: self._election.run(self._lead)), "election")

    async def stop(self) -> None:
        """Give the lead up and end. May be repeated."""
        if self._exporter is not None:
            await self._exporter.stop()
        await self._tasks.close()
        await self._client.close()

    async def _lead(self) -> None:
        """Work until cancelled. What a former leader left half done is found by looking."""
        informers = Informers(self._client)
        events = EventRecorder(self._client, "tonnage-controller", host=self.config.identity, clock=self._clock)
        loops = self._loops(informers, events)
        informers.start()
        metrics.LEADS.set(1)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(supervise("events", events.run))
                for name, loop in loops.items():
                    tasks.create_task(supervise(name, loop.run))
        finally:
            metrics.LEADS.set(0)
            await informers.close()

    def _loops(self, informers: Informers, events: EventRecorder) -> Mapping[str, Any]:
        client, drivers, clock = self._client, self.config.drivers, self._clock
        return {
            "scoping": Scoping(client, informers, drivers=drivers),
            "together": Together(client, informers, provisioners=drivers.keys(), pod_fields=WAITING_PODS),
            "hand-placed pods": HandPlaced(
                client, informers, events, provisioners=drivers.keys(), pod_fields=WAITING_PODS, clock=clock
            ),
            "immediate binding": ImmediateController(
                client, informers, events, provisioners=drivers.keys(), clock=clock
            ),
            "gone nodes": GoneNodes(client, informers, events, drivers=drivers.keys(), clock=clock),
            "gone capacity": GoneCapacity(client, informers, drivers=drivers.keys(), namespace=self.config.namespace),
        }


async def _nothing() -> None:
    """All gauges are always up to date."""
