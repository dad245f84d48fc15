"""`tonnage controller`: controllers that no node agent can run.

Composition only. Several replicas run, the leader works. Without it, volumes are still provisioned if every agent
watches all claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.observe import metrics
from tonnage.controller.attach.loops import AttachLoops
from tonnage.controller.capacity_cleanup import GoneCapacity
from tonnage.controller.certificates.pod_requests import PodCertificateSigner
from tonnage.controller.certificates.published_roots import PublishedRoots
from tonnage.controller.certificates.signing_requests import CertificateSigner
from tonnage.controller.claim_groups import ClaimGroupLabels
from tonnage.controller.class_events import ClassEvents
from tonnage.controller.config import ControllerConfig, LoopContext
from tonnage.controller.evict_unfit import UnfitPods
from tonnage.controller.free_populators import FreedPopulators
from tonnage.controller.immediate import ImmediateController
from tonnage.controller.node_labels import ClaimNodeLabels
from tonnage.controller.node_loss import GoneNodes, GoneSnapshots
from tonnage.controller.node_templates import NodeTemplates
from tonnage.controller.preassigned import PreassignedPods
from tonnage.controller.snapshots.role import SnapshotRole
from tonnage.controller.tier_hints import TierNotices
from tonnage.controller.tier_objects import CapacityTiers
from tonnage.kubernetes.api import names
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.leader_process import ElectedProcess, LeaderLoop

WAITING_PODS = "status.phase=Pending"
"""Watched pods: those that have not started, few even in a large cluster."""


def controller_process(config: ControllerConfig, client: Client, *, clock: Clock | None = None) -> ElectedProcess:
    """One replica. client: of the API server."""

    def make_loops(informers: Informers, events: EventRecorder) -> Mapping[str, LeaderLoop]:
        context = LoopContext(
            client,
            informers,
            events,
            config,
            clock or RealClock(),
            provisioners=config.drivers.keys(),
            pod_fields=WAITING_PODS,
            seeing=[names.SCHEDULER],
            choosing=[names.SCHEDULER],
        )
        loops: dict[str, LeaderLoop] = {name: make(context) for name, make in _LOOPS.items()}
        if config.evict_unfit:
            loops["eviction"] = UnfitPods(context)
        if config.free_populators:
            loops["freed populators"] = FreedPopulators(context)
        if config.certificate_issuers:
            loops |= {name: make(context) for name, make in _ISSUER_LOOPS.items()}
        if config.snapshot_controller:
            loops["snapshots"] = SnapshotRole(context)
        if config.attach_endpoints:
            loops["attachments"] = AttachLoops(context, config.attach_endpoints)
        return loops

    return ElectedProcess(config, client, make_loops, name=names.CONTROLLER_LEASE, leads=metrics.LEADS, clock=clock)


_ISSUER_LOOPS: Mapping[str, Callable[[LoopContext], LeaderLoop]] = {
    "certificate signing": CertificateSigner,
    "pod certificate signing": PodCertificateSigner,
    "published roots": PublishedRoots,
}
_LOOPS: Mapping[str, Callable[[LoopContext], LeaderLoop]] = {
    "claim node labels": ClaimNodeLabels,
    "claim groups": ClaimGroupLabels,
    "pre-assigned pods": PreassignedPods,
    "immediate binding": ImmediateController,
    "class events": ClassEvents,
    "gone nodes": GoneNodes,
    "gone snapshots": GoneSnapshots,
    "capacity tiers": CapacityTiers,
    "tier notices": TierNotices,
    "node templates": NodeTemplates,
    "gone capacity": GoneCapacity,
}
