"""The controllers and the scheduler of a cluster in one process, over shared informers. Composition only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.controllers.binder import Binder
from tonnage.controllers.capacity_tiers import CapacityTiers
from tonnage.controllers.class_notices import ClassNotices
from tonnage.controllers.ephemeral import EphemeralController
from tonnage.controllers.garbage import GarbageCollector
from tonnage.controllers.growth import GrowthNotices
from tonnage.controllers.hand_placed import HandPlaced
from tonnage.controllers.immediate import ImmediateController
from tonnage.controllers.namespaces import NamespaceController
from tonnage.controllers.protection import ClaimProtection, VolumeProtection
from tonnage.controllers.scoping import Scoping
from tonnage.controllers.service_accounts import ServiceAccountController
from tonnage.controllers.tier_notices import TierNotices
from tonnage.controllers.unfit import UnfitPods
from tonnage.controllers.workloads import Workloads
from tonnage.kube.client import Client
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers
from tonnage.scheduler.loop import Scheduler

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
    """Name -> what is to be run, as run(). recorder(component): who reports that component's Events; capacity:
    how room is published, "tiers" or "exact"; drivers: names of our own."""
    events = recorder("tonnage")
    tiers = _tiers(client, informers, clock) if capacity == "tiers" else {}
    return {
        **tiers,
        "scheduler": scheduler,
        "ephemeral": EphemeralController(client, informers, recorder("ephemeral_volume")),
        "binder": Binder(client, informers, recorder("persistentvolume-controller"), clock=clock),
        "claim protection": ClaimProtection(client, informers),
        "volume protection": VolumeProtection(client, informers),
        "garbage collector": GarbageCollector(client, informers, events),
        "namespaces": NamespaceController(client, informers),
        "service accounts": ServiceAccountController(client, informers),
        "scoping": Scoping(client, informers, drivers=dict.fromkeys(drivers, names.TOPOLOGY_NODE)),
        "hand-placed pods": HandPlaced(client, informers, events),
        "immediate binding": ImmediateController(client, informers, events, clock=clock),
        "class notices": ClassNotices(client, informers, events, seeing=[_SCHEDULER], clock=clock),
        "growth": GrowthNotices(informers, events, drivers=drivers),
        "unfit pods": UnfitPods(client, informers, events, clock=clock),
        "workloads": Workloads(client, informers, recorder, clock=clock),
    }


def _tiers(client: Client, informers: Informers, clock: Clock) -> Mapping[str, Any]:
    more: Any = {"namespace": names.SYSTEM_NAMESPACE, "clock": clock}
    return {
        "capacity tiers": CapacityTiers(client, informers, mode="tiers", **more),
        "tier notices": TierNotices(client, informers, **more),
    }
