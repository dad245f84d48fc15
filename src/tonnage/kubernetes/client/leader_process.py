"""A process with several replicas, of which only the elected leader works. All serve metrics.

A replica that is not leader watches nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from prometheus_client import Gauge

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.aio.tasks import Background, supervise
from tonnage.base.observe.exporter import Address, Exporter, parse_address
from tonnage.base.option import Option
from tonnage.kubernetes.api import names
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers, RewoundError
from tonnage.kubernetes.client.lease import LeaderElection

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReplicaConfig:
    """Configuration of every process with replicas.

    identity: this replica's name. namespace: of the Lease. metrics: address of the metrics, None for none.
    """

    identity: Annotated[
        str,
        Option(
            "this replica's unique identity in the Lease (default: $POD_NAME, else the host's name and the process)",
            "NAME",
            environ="POD_NAME",
        ),
    ]
    namespace: Annotated[
        str,
        Option(
            f"of the Lease and of capacity objects (default: $POD_NAMESPACE, else {names.SYSTEM_NAMESPACE})",
            "NAME",
            environ="POD_NAMESPACE",
        ),
    ] = names.SYSTEM_NAMESPACE
    metrics: Annotated[
        Address | None,
        Option(
            "serve Prometheus metrics and /healthz (default address: loopback)", "[ADDRESS:]PORT", parse=parse_address
        ),
    ] = None


class LeaderLoop(Protocol):
    """A loop that works until it is cancelled."""

    async def run(self) -> None:
        """Run the loop."""


class ElectedProcess:
    """Runs the loops of loops(), created anew for each term, while this replica is leader.

    start() returns at once. client: to the API server. name: of the Lease, and component of the Events. leads: gauge, 1
    while this replica is leader.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        client: Client,
        loops: Callable[[Informers, EventRecorder], Mapping[str, LeaderLoop]],
        *,
        name: str,
        leads: Gauge,
        clock: Clock | None = None,
    ) -> None:
        self._config, self._client, self._loops, self._name, self._leads = config, client, loops, name, leads
        self._clock = clock or RealClock()
        self._tasks = Background(name)
        self._exporter = Exporter(config.metrics)
        self._election = LeaderElection(client, config.namespace, name, config.identity, clock=self._clock)

    @property
    def metrics_url(self) -> str:
        """Where metrics are served, "" for nowhere."""
        return self._exporter.url

    async def start(self) -> None:
        """Serve metrics and take part in the election. Raises: HostError when the address cannot be bound."""
        await self._exporter.start()
        self._tasks.start(supervise("election", lambda: self._election.run(self._lead)), "election")

    async def stop(self) -> None:
        """Release the Lease and stop. Idempotent."""
        await self._exporter.stop()
        await self._tasks.close()
        await self._client.close()

    async def _lead(self) -> None:
        """Run the loops until cancelled. They recover what a former leader left half done.

        Returns when the API server's state does not continue the one that was seen: the next term sees it anew.
        """
        informers = Informers(self._client, self._election.continues)
        events = EventRecorder(self._client, self._name, host=self._config.identity, clock=self._clock)
        loops = self._loops(informers, events)
        informers.start()
        self._leads.set(1)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(informers.end_when_rewound())
                tasks.create_task(supervise("events", events.run))
                for name, loop in loops.items():
                    tasks.create_task(supervise(name, loop.run))
        except* RewoundError:
            log.warning("leader starts anew lease=%s", self._name)
        finally:
            self._leads.set(0)
            await informers.close()
