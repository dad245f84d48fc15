"""Claims of pods: which may be used, and what is reported of the others."""

from __future__ import annotations

import asyncio
from typing import Any

from tonnage.kubernetes.api.kinds import CLAIMS

CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}]


async def test_a_claim_that_is_bound_later_wakes_its_pod(machine: Any) -> None:
    await machine.volume("a")
    await machine.client.patch(CLAIMS, "a", {"status": {"phase": "Pending"}}, "default", subresource="status")
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Pending")
    await machine.bind("a")
    async with asyncio.timeout(60):
        await machine.phase("p", "Running")


async def test_a_claim_of_somebody_else_is_not_used(machine: Any) -> None:
    await machine.volume("p-data")
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    await machine.pod("p", volumes=[{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}])
    event = await machine.event("FailedMount")
    assert event.message == (
        "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process "
        "volumes=[data]: error processing PVC default/p-data: PVC default/p-data was not created for pod default/p "
        "(pod is not owner)"
    )


async def test_a_block_volume_is_no_place_for_files(machine: Any) -> None:
    await machine.volume("a", block=True)
    container = {"name": "c", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}
    await machine.pod("p", volumes=CLAIM, containers=[container])
    event = await machine.event("FailedMount")
    assert "volume data has volumeMode Block, but is specified in volumeMounts" in event.message
