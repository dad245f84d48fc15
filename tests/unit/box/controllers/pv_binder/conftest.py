"""A binder, and the PersistentVolumes of agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.pv_binder.controller import Binder
from tonnage_box.testing.clock import ManualClock

Settle = Callable[[], Awaitable[None]]


@pytest.fixture
async def binder(kube: Client, informers: Informers, events: EventRecorder, manual_clock: ManualClock) -> Binder:
    """A binder that speaks at once, and gives agents 3 seconds."""
    return Binder(kube, informers, events, clock=manual_clock, grace=3.0, quiet=0.0)


@pytest.fixture
def work(binder: Binder, settle: Settle) -> Settle:
    """Settles, then works off what the handlers asked for, until nothing is left."""

    async def run() -> None:
        queue = binder._controller.queue
        await settle()
        while (key := queue.get()) is not None:
            await binder.reconcile(key)
            queue.done(key)
            await settle()

    return run
