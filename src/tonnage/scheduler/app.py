"""`tonnage scheduler`: places the pods that name it, beside a cluster's own scheduler. Several run, one works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.kube.client import Client
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers
from tonnage.kube.leader_process import ElectedProcess, Loop, Seat
from tonnage.observe import metrics
from tonnage.observe.exporter import Address
from tonnage.observe.process import keep_trimmed, settle
from tonnage.scheduler.plugins.storage_scoring import Strategy
from tonnage.scheduler.scheduler import Scheduler

RUNNING_PODS = "status.phase!=Succeeded,status.phase!=Failed"
"""Pods that are watched: those that take something. One that ends is told as deleted."""


@dataclass(frozen=True)
class SchedulerConfig:
    """identity: this replica's name. name: what pods say in spec.schedulerName, and the Lease's. namespace: of
    the Lease. strategy: how the node is chosen of those that fit. metrics: where to serve them, None for nowhere."""

    identity: str
    name: str = names.SCHEDULER
    namespace: str = names.SYSTEM_NAMESPACE
    strategy: Strategy = Strategy.LEAST_ALLOCATED
    metrics: Address | None = None


class SchedulerProcess(ElectedProcess):
    """See ElectedProcess. client: to the API server."""

    def __init__(self, config: SchedulerConfig, client: Client, *, clock: Clock | None = None) -> None:
        self.config = config
        seat = Seat(
            config.name,
            config.namespace,
            config.identity,
            reporter=config.name,
            leads=metrics.SCHEDULER_LEADS,
            metrics=config.metrics,
        )
        super().__init__(seat, client, self._make_loops, clock=clock)

    def _make_loops(self, informers: Informers, events: EventRecorder) -> Mapping[str, Loop]:
        scheduler = Scheduler(
            self._client,
            informers,
            events,
            clock=self._clock,
            name=self.config.name,
            strategy=self.config.strategy,
            pod_fields=RUNNING_PODS,
        )
        return {"scheduler": scheduler, "memory": _Memory(informers)}


class _Memory:
    """What the first lists brought stays: the collector need not look at it again."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers

    async def run(self) -> None:
        """Work."""
        await self._informers.wait_synced()
        settle()
        await keep_trimmed()
