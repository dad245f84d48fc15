"""Controllers and scheduler of a cluster in one process, over shared informers. Composition only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tonnage.base.aio.clock import Clock
from tonnage.controller.certificates.pod_requests import PodCertificateSigner
from tonnage.controller.certificates.published_roots import PublishedRoots
from tonnage.controller.class_events import ClassEvents
from tonnage.controller.config import ControllerConfig, LoopContext, SigningConfig
from tonnage.controller.evict_unfit import UnfitPods
from tonnage.controller.immediate import ImmediateController
from tonnage.controller.node_labels import ClaimNodeLabels
from tonnage.controller.preassigned import PreassignedPods
from tonnage.controller.snapshots.role import SnapshotLoops
from tonnage.controller.tier_hints import TierNotices
from tonnage.controller.tier_objects import CapacityTiers
from tonnage.csi.inline.cert.issuers.table import BOX, box_policy
from tonnage.kubernetes.api import names
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.inline.config import parse_inlines
from tonnage.scheduler.scheduler import Scheduler
from tonnage_box.certificates import box_authority
from tonnage_box.controllers.attach_detach import AttachDetach
from tonnage_box.controllers.ephemeral import EphemeralController
from tonnage_box.controllers.garbage_collector import GarbageCollector
from tonnage_box.controllers.namespace import NamespaceController
from tonnage_box.controllers.node_health import NodeHealth
from tonnage_box.controllers.pod_gc import PodGarbageCollector
from tonnage_box.controllers.protection import AttributesClassProtection, ClaimProtection, VolumeProtection
from tonnage_box.controllers.pv_binder.controller import Binder
from tonnage_box.controllers.service_account import ServiceAccountController
from tonnage_box.controllers.workloads.manager import Workloads

_SCHEDULER = "default-scheduler"


def control_plane(
    client: Client,
    informers: Informers,
    recorder: Callable[[str], EventRecorder],
    *,
    clock: Clock,
    scheduler: Scheduler,
    capacity: str = "exact",
    drivers: Collection[str] = (names.DRIVER,),
) -> Mapping[str, Any]:
    """Compose the controllers: name -> what is to be run, as run().

    recorder(component): who reports that component's Events. capacity: how capacity is published, "tiers" or "exact".
    drivers: names of our own.
    """
    events = recorder("tonnage")
    config = ControllerConfig("box", drivers=dict.fromkeys(drivers, names.TOPOLOGY_NODE), capacity=capacity)
    context = LoopContext(client, informers, events, config, clock, seeing=[_SCHEDULER])
    tiers = {"capacity tiers": CapacityTiers(context), "tier notices": TierNotices(context)}
    return {
        **(tiers if capacity == "tiers" else {}),
        "scheduler": scheduler,
        "ephemeral": EphemeralController(client, informers, recorder("ephemeral_volume")),
        "binder": Binder(client, informers, recorder("persistentvolume-controller"), clock=clock),
        "claim protection": ClaimProtection(client, informers),
        "volume protection": VolumeProtection(client, informers),
        "attributes class protection": AttributesClassProtection(client, informers),
        "garbage collector": GarbageCollector(client, informers, events),
        "namespaces": NamespaceController(client, informers),
        "attachments": AttachDetach(client, informers, recorder("attachdetach-controller"), clock=clock),
        "node health": NodeHealth(client, informers, recorder("node-controller"), clock=clock),
        "pods of gone nodes": PodGarbageCollector(client, informers, clock=clock),
        "service accounts": ServiceAccountController(client, informers),
        "claim node labels": ClaimNodeLabels(context),
        "pre-assigned pods": PreassignedPods(context),
        "immediate binding": ImmediateController(context),
        "class events": ClassEvents(context),
        "eviction": UnfitPods(context),
        "snapshots": SnapshotLoops(replace(context, events=recorder("snapshot-controller"))),
        "workloads": Workloads(client, informers, recorder, clock=clock),
    }


def certificate_loops(
    client: Client, informers: Informers, events: EventRecorder, inlines: Sequence[str], *, clock: Clock
) -> Mapping[str, Any]:
    """Compose what signs PodCertificateRequests for tonnage.dev/box, if one of the inline drivers is `cert`.

    inlines: as after --inline; the first `cert` says what is allowed.
    """
    configs = [one for one in parse_inlines(inlines) if one.kind == "cert"]
    if not configs:
        return {}
    signing = SigningConfig(partial(box_authority, client, clock), box_policy(configs[0].options))
    config = ControllerConfig("box", certificate_issuers={BOX: signing})
    context = LoopContext(client, informers, events, config, clock)
    return {"pod certificate signing": PodCertificateSigner(context), "published roots": PublishedRoots(context)}
