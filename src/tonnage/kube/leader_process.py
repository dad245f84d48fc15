"""A process with several replicas, of which only the elected leader works. All serve metrics.

A replica that is not leader watches nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from prometheus_client import Gauge

from tonnage.aio.clock import Clock, RealClock
from tonnage.aio.tasks import Background, supervise
from tonnage.api import names
from tonnage.kube.client import Client
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers
from tonnage.kube.lease import LeaderElection
from tonnage.observe.exporter import Address, Exporter, parse_address
from tonnage.option import Option

Identity = Annotated[
    str,
    Option(
        "this replica's unique identity in the Lease (default: $POD_NAME, else the host's name and the process)",
        "NAME",
        environ="POD_NAME",
    ),
]
LeaseNamespace = Annotated[
    str,
    Option(
        f"of the Lease and of capacity objects (default: $POD_NAMESPACE, else {names.SYSTEM_NAMESPACE})",
        "NAME",
        environ="POD_NAMESPACE",
    ),
]
MetricsAddress = Annotated[
    Address | None,
    Option("serve Prometheus metrics and /healthz (default address: loopback)", "[ADDRESS:]PORT", parse=parse_address),
]
"""Options of every process with replicas."""


class LeaderLoop(Protocol):
    """A loop that works until it is cancelled."""

    async def run(self) -> None:
        """Run the loop."""


@dataclass(frozen=True)
class Seat:
    """Leader-election settings of the replicas.

    lease: its name, in namespace. identity: this replica's unique name. reporter: component of its Events. leads: the
    gauge that shows whether this one is leader. metrics: where to serve them, None for nowhere.
    """

    lease: str
    namespace: str
    identity: str
    reporter: str
    leads: Gauge
    metrics: Address | None = None


class ElectedProcess:
    """Runs the loops of loops(), created anew for each term, while this replica is leader.

    start() returns at once. client: to the API server.
    """

    def __init__(
        self,
        seat: Seat,
        client: Client,
        loops: Callable[[Informers, EventRecorder], Mapping[str, LeaderLoop]],
        *,
        clock: Clock | None = None,
    ) -> None:
        self._seat, self._client, self._loops = seat, client, loops
        self._clock = clock or RealClock()
        self._tasks = Background(seat.lease)
        self._exporter = Exporter(seat.metrics)
        self._election = LeaderElection(client, seat.namespace, seat.lease, seat.identity, clock=self._clock)

    @property
    def metrics_url(self) -> str:
        """Where metrics are served, "" for nowhere."""
        return self._exporter.url

    async def start(self) -> None:
        """Serve metrics and take part in the election. Raises HostError when the address cannot be bound."""
        await self._exporter.start()
        self._tasks.start(supervise("election", lambda: self._election.run(self._lead)), "election")

    async def stop(self) -> None:
        """Release the Lease and stop. Idempotent."""
        await self._exporter.stop()
        await self._tasks.close()
        await self._client.close()

    async def _lead(self) -> None:
        """Run the loops until cancelled. They recover what a former leader left half done."""
        informers = Informers(self._client)
        events = EventRecorder(self._client, self._seat.reporter, host=self._seat.identity, clock=self._clock)
        loops = self._loops(informers, events)
        informers.start()
        self._seat.leads.set(1)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(supervise("events", events.run))
                for name, loop in loops.items():
                    tasks.create_task(supervise(name, loop.run))
        finally:
            self._seat.leads.set(0)
            await informers.close()
