"""`tonnage scheduler`: a second scheduler, for pods that name it.

Several replicas run, the leader works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.errors import InvalidError
from tonnage.kube.client import Client
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers
from tonnage.kube.leader_process import ElectedProcess, Identity, LeaderLoop, LeaseNamespace, MetricsAddress, Seat
from tonnage.observe import metrics
from tonnage.observe.process import keep_trimmed, settle
from tonnage.option import Option
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.scheduler.scheduler import Scheduler

RUNNING_PODS = "status.phase!=Succeeded,status.phase!=Failed"
"""Watched pods: those that use resources. One that ends is reported as deleted."""


def _check_name(text: str) -> str:
    """Return a scheduler's name. Raises InvalidError."""
    if not names.is_dns_subdomain(text):
        raise InvalidError(f"--name {text[:80]!r}: want a DNS subdomain, as {names.SCHEDULER}")
    return text


@dataclass(frozen=True)
class SchedulerConfig:
    """Configuration of a scheduler process.

    identity: this replica's name. name: the pods' spec.schedulerName, and the Lease's name. namespace: of the Lease.
    strategy: scoring of nodes that fit. metrics: address of the metrics, None for none.
    """

    identity: Identity
    name: Annotated[
        str,
        Option(
            f"spec.schedulerName of its pods; also the name of the Lease (default: {names.SCHEDULER})",
            "NAME",
            parse=_check_name,
        ),
    ] = names.SCHEDULER
    namespace: LeaseNamespace = names.SYSTEM_NAMESPACE
    metrics: MetricsAddress = None
    strategy: Annotated[
        ScoringStrategy,
        Option(
            f"scoring of the nodes that fit (default: {ScoringStrategy.LEAST_ALLOCATED.value})",
            name="scoring",
            choices=[one.value for one in ScoringStrategy],
            parse=ScoringStrategy,
        ),
    ] = ScoringStrategy.LEAST_ALLOCATED


class SchedulerProcess(ElectedProcess):
    """As ElectedProcess. client: of the API server."""

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

    def _make_loops(self, informers: Informers, events: EventRecorder) -> Mapping[str, LeaderLoop]:
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
    """Excludes the first lists from garbage collection: they stay in memory."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers

    async def run(self) -> None:
        """Work."""
        await self._informers.wait_synced()
        settle()
        await keep_trimmed()
