"""`tonnage scheduler`: a second scheduler, for pods that name it.

Several replicas run, the leader works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.errors import InvalidError
from tonnage.base.observe import metrics
from tonnage.base.observe.process import keep_trimmed, settle
from tonnage.base.option import Option
from tonnage.kubernetes.api import names
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.leader_process import ElectedProcess, LeaderLoop, ReplicaConfig
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.scheduler.scheduler import Scheduler

RUNNING_PODS = "status.phase!=Succeeded,status.phase!=Failed"
"""Watched pods: those that use resources. One that ends is reported as deleted."""


def _check_name(text: str) -> str:
    """Return a scheduler's name. Raises: InvalidError."""
    if not names.is_dns_subdomain(text):
        raise InvalidError(f"--name {text[:80]!r}: want a DNS subdomain, as {names.SCHEDULER}")
    return text


@dataclass(frozen=True)
class SchedulerConfig(ReplicaConfig):
    """Configuration of a scheduler process.

    name: the pods' spec.schedulerName, and the Lease's name. strategy: scoring of nodes that fit.
    """

    name: Annotated[
        str,
        Option(
            f"spec.schedulerName of its pods; also the name of the Lease (default: {names.SCHEDULER})",
            "NAME",
            parse=_check_name,
        ),
    ] = names.SCHEDULER
    strategy: Annotated[
        ScoringStrategy,
        Option(
            f"scoring of the nodes that fit (default: {ScoringStrategy.LEAST_ALLOCATED.value})",
            name="scoring",
            choices=[one.value for one in ScoringStrategy],
            parse=ScoringStrategy,
        ),
    ] = ScoringStrategy.LEAST_ALLOCATED


def scheduler_process(config: SchedulerConfig, client: Client, *, clock: Clock | None = None) -> ElectedProcess:
    """One replica. client: of the API server."""

    def make_loops(informers: Informers, events: EventRecorder) -> Mapping[str, LeaderLoop]:
        scheduler = Scheduler(
            client,
            informers,
            events,
            clock=clock or RealClock(),
            name=config.name,
            strategy=config.strategy,
            pod_fields=RUNNING_PODS,
        )
        return {"scheduler": scheduler, "memory": _Memory(informers)}

    return ElectedProcess(config, client, make_loops, name=config.name, leads=metrics.SCHEDULER_LEADS, clock=clock)


class _Memory:
    """Excludes the first lists from garbage collection: they stay in memory."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers

    async def run(self) -> None:
        """Work."""
        await self._informers.wait_synced()
        settle()
        await keep_trimmed()
