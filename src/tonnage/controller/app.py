"""`tonnage controller`: controllers that no node agent can run.

Composition only. Several replicas run, the leader works. Without it, volumes are still provisioned if every agent
watches all claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.controller.capacity_cleanup import GoneCapacity
from tonnage.controller.claim_groups import ClaimGroupLabels
from tonnage.controller.class_events import ClassEvents
from tonnage.controller.config import ControllerConfig, LoopContext
from tonnage.controller.evict_unfit import UnfitPods
from tonnage.controller.expansion_events import ExpansionEvents
from tonnage.controller.immediate import ImmediateController
from tonnage.controller.node_labels import ClaimNodeLabels
from tonnage.controller.node_loss import GoneNodes
from tonnage.controller.node_templates import NodeTemplates
from tonnage.controller.preassigned import PreassignedPods
from tonnage.controller.tier_hints import TierNotices
from tonnage.controller.tier_objects import CapacityTiers
from tonnage.kube.client import Client
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers
from tonnage.kube.leader_process import ElectedProcess, LeaderLoop, Seat
from tonnage.observe import metrics

WAITING_PODS = "status.phase=Pending"
"""Watched pods: those that have not started, few even in a large cluster."""


class ControllerProcess(ElectedProcess):
    """As ElectedProcess. client: of the API server."""

    def __init__(self, config: ControllerConfig, client: Client, *, clock: Clock | None = None) -> None:
        self.config = config
        seat = Seat(
            names.CONTROLLER_LEASE,
            config.namespace,
            config.identity,
            reporter="tonnage-controller",
            leads=metrics.LEADS,
            metrics=config.metrics,
        )
        super().__init__(seat, client, self._make_loops, clock=clock)

    def _make_loops(self, informers: Informers, events: EventRecorder) -> Mapping[str, LeaderLoop]:
        context = LoopContext(
            self._client,
            informers,
            events,
            self.config,
            self._clock,
            provisioners=self.config.drivers.keys(),
            pod_fields=WAITING_PODS,
            seeing=[names.SCHEDULER],
            choosing=[names.SCHEDULER],
        )
        loops: dict[str, LeaderLoop] = {name: make(context) for name, make in _LOOPS.items()}
        return loops | ({"eviction": UnfitPods(context)} if self.config.evict_unfit else {})


_LOOPS: Mapping[str, Callable[[LoopContext], LeaderLoop]] = {
    "claim node labels": ClaimNodeLabels,
    "claim groups": ClaimGroupLabels,
    "pre-assigned pods": PreassignedPods,
    "immediate binding": ImmediateController,
    "class events": ClassEvents,
    "expansion events": ExpansionEvents,
    "gone nodes": GoneNodes,
    "capacity tiers": CapacityTiers,
    "tier notices": TierNotices,
    "node templates": NodeTemplates,
    "gone capacity": GoneCapacity,
}
