"""Pods with two volumes each at once, on a box that they fill to 95 %: all run, and none was sent where it did not fit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tonnage.base.observe import metrics
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage_box.cli.workloads import pod_with
from tonnage_box.cluster import Box
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan

NODES, FIT, MADE = 4, 20, 76
VOLUMES = {"a": "3Gi", "b": "2Gi"}
WHOLE = sum(map(to_bytes, VOLUMES.values()))
_LIMIT = 240.0


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    """Nodes that have room for FIT pods each."""
    data = DataFolder(tmp_path / "d")
    made = Box(data, plan(data, Settings(nodes=NODES, pools=[f"fake,size={FIT * 5}Gi"], runtime="none")))
    await made.start()
    yield made
    await made.stop()


def counts() -> tuple[float, ...]:
    """Volumes that drivers could not make, and claims that agents sent back."""
    counters = (metrics.PROVISION_FAILED, metrics.RESCHEDULED)
    return tuple(sum(s.value for m in c.collect() for s in m.samples if s.name.endswith("_total")) for c in counters)


async def running(box: Box, count: int) -> list[Any]:
    """Wait until so many pods run."""
    async with asyncio.timeout(_LIMIT):
        while True:
            pods = [p for p in (await box.client.list(PODS, "default")).items if p.status.phase == "Running"]
            if len(pods) >= count:
                return pods
            await asyncio.sleep(0.2)  # a list costs


async def test_none_is_stuck_and_none_is_sent_back(box: Box) -> None:
    before = counts()
    async with asyncio.TaskGroup() as storm:
        for n in range(MADE):
            storm.create_task(box.client.create(PODS, pod_with(f"p{n}", VOLUMES), "default"))
    placed = Counter(pod.spec.node_name for pod in await running(box, MADE))
    assert sum(placed.values()) == MADE
    assert max(placed.values()) <= FIT
    assert counts() == before

    more = NODES * FIT - MADE
    for n in range(more + 1):
        await box.client.create(PODS, pod_with(f"more-{n}", VOLUMES), "default")
    assert len(await running(box, MADE + more)) == MADE + more, "what fits exactly"
    await box.client.delete(PODS, "p0", "default", grace_seconds=0)
    assert "p0" not in {pod.metadata.name for pod in await running(box, MADE + more)}
    assert counts() == before
