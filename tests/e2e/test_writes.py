"""What pods with one ephemeral volume cost a real API server from their creation to their end, by its own audit log.

Ours and Kubernetes' writes together. Counts only: how fast it is, `python -m benchmarks kubernetes` tells.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import pytest
from benchmarks.kubernetes import audit, stacks
from benchmarks.kubernetes.audit import Write
from benchmarks.kubernetes.nodes import kubelets
from benchmarks.kubernetes.plane import Plane, plane
from benchmarks.kubernetes.pods import Pods
from benchmarks.kubernetes.stacks import Stack
from cluster import programs

from tonnage.kubernetes.api.kinds import CAPACITIES
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client.informer import Informers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
CLAIM_WRITES, VOLUME_WRITES, CAPACITY_WRITES = 6, 6, 2
MOST_EVENTS = 3
BURST = 40


@dataclass
class Cluster:
    """Two nodes without kubelets, an agent each."""

    plane: Plane
    informers: Informers
    stack: Stack

    async def lives(self, name: str, count: int) -> Sequence[Write]:
        """Everything that was asked of the API server while so many pods came and went."""
        await self.plane.audit.writes()
        await Pods(self.plane.client, self.informers, self.stack, name, count).burst()
        return await self.plane.audit.writes()

    async def room(self) -> int:
        """What all nodes publish, in bytes."""
        found = (await self.plane.client.list(CAPACITIES)).items
        return sum(to_bytes(o.capacity or "0") for o in found if o.storage_class_name == self.stack.storage_class)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("needs root: pools of image files")
    try:
        programs.find()
        programs.kubectl()
    except programs.Missing as reason:
        pytest.skip(f"no real Kubernetes: {reason}")
    async with plane(nodes=2, raised=True, drivers=stacks.DRIVERS) as made:
        await stacks.install(made)
        async with kubelets(made.client) as informers, stacks.tonnage(made, informers) as stack:
            yield Cluster(made, informers, stack)


async def test_what_a_volume_costs_the_api_server(cluster: Cluster, tell: Callable[[str], None]) -> None:
    """Claims and volumes: nobody writes what somebody has written, so the number is the same whoever is first. Capacity
    falls and rises once for a pod alone; pods at once share these writes, the more the faster the machine is."""
    before = await cluster.room()
    for name, count in (("single", 1), ("burst", BURST)):
        writes = await cluster.lives(name, count)
        done = Counter(write.object_ref.resource for write in audit.storage(writes))
        said = f"{audit.table(writes)}\n{done}"
        assert done["persistentvolumeclaims"] == CLAIM_WRITES * count, said
        assert done["persistentvolumes"] == VOLUME_WRITES * count, said
        assert 0 < done["csistoragecapacities"] <= CAPACITY_WRITES * count, said
        tell(
            f"writes: {count} pods with a volume: {done.total() / count:g} storage writes each, "
            f"{audit.events(writes) / count:g} storage Events, "
            f"{audit.lost_races(writes) / count:g} statuses of pods by the scheduler"
        )
        ours = [w for w in writes if w.object_ref.resource == "events" and w.user_agent.startswith("tonnage-node")]
        assert len(ours) <= 2 * count, said  # the second tells of a volume that takes long
    assert audit.events(writes) <= MOST_EVENTS * BURST
    assert cluster.stack.failed() == 0
    assert cluster.stack.rescheduled() == 0
    async with asyncio.timeout(60):
        while await cluster.room() != before:
            await asyncio.sleep(0.5)
