"""A binder, and the PersistentVolumes of agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.pv_binder.controller import Binder
from tonnage_box.testing.clock import ManualClock

Make = Callable[..., Awaitable[Any]]


Settle = Callable[[], Awaitable[None]]


MARKS = {names.STORAGE_PROVISIONER: names.DRIVER, names.BETA_STORAGE_PROVISIONER: names.DRIVER}


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


async def claim_of(kube: Client, name: str) -> Any:
    return await kube.get(CLAIMS, name, "default")


def ref(claim: Any) -> dict[str, str]:
    meta = claim.metadata
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
    }


async def made_by_agent(make_volume: Make, claim: Any, **more: Any) -> Any:
    return await make_volume(
        f"pvc-{claim.metadata.uid}",
        annotations={names.PROVISIONED_BY: names.DRIVER},
        labels={names.NODE_LABEL: "n1"},
        claimRef=ref(claim),
        storageClassName=claim.spec.storage_class_name or "",
        persistentVolumeReclaimPolicy="Delete",
        **more,
    )
