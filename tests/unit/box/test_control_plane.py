"""The controllers of a box, composed over one API server: a pod's claim is made, and goes with the pod."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.fixture_types import Running

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, PODS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.scheduler.scheduler import Scheduler
from tonnage_box.control_plane import control_plane
from tonnage_box.testing.objects import MakePod
from tonnage_box.testing.wait import Eventually


async def test_an_ephemeral_claim_lives_with_its_pod(
    kube: Client,
    informers: Informers,
    events: EventRecorder,
    make_pod: MakePod,
    running: Running,
    eventually: Eventually,
) -> None:
    clock = RealClock()
    scheduler = Scheduler(kube, informers, events, clock=clock)
    loops = control_plane(kube, informers, lambda component: events, clock=clock, scheduler=scheduler)
    async with running(*loops.values()):
        pod = await make_pod("p", ephemeral={"data": {}})

        async def claim() -> Any:
            try:
                return await kube.get(CLAIMS, "p-data", "default")
            except ApiNotFoundError:
                return None

        made = await eventually(claim)
        assert made.metadata.controller_uid() == pod.metadata.uid
        assert names.PVC_PROTECTION in made.metadata.finalizers
        await kube.delete(PODS, "p", "default")

        async def gone() -> bool:
            return await claim() is None

        await eventually(gone)


@pytest.mark.parametrize("capacity", ["exact", "tiers"])
async def test_tiers_have_controllers_of_their_own(
    kube: Client, informers: Informers, events: EventRecorder, capacity: str
) -> None:
    clock = RealClock()
    scheduler = Scheduler(kube, informers, events, clock=clock)
    more: Any = {"clock": clock, "scheduler": scheduler, "capacity": capacity}
    loops = control_plane(kube, informers, lambda component: events, **more)
    assert ({"capacity tiers", "tier notices"} <= loops.keys()) is (capacity == "tiers")
    assert loops["scheduler"] is scheduler
