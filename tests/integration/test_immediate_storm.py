"""Immediate binding under a storm: what exactly fits is all bound, none is sent to a node that has no room for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tonnage.base.observe import metrics
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, EVENTS, PODS, VOLUMES
from tonnage_box.api.wait import until
from tonnage_box.cli.workloads import pod_with
from tonnage_box.cluster import Box
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan

NODES, ROOM = 5, 12
CLASS = names.IMMEDIATE_CLASS
_LIMIT = 240.0


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    """Nodes with ROOM GiB each."""
    data = DataFolder(tmp_path / "d")
    made = Box(data, plan(data, Settings(nodes=NODES, pools=[f"fake,size={ROOM}Gi"], runtime="none")))
    await made.start()
    yield made
    await made.stop()


def claim(name: str, size: str = "1Gi") -> dict[str, Any]:
    spec = {
        "accessModes": [names.READ_WRITE_ONCE],
        "storageClassName": CLASS,
        "resources": {"requests": {"storage": size}},
    }
    return {"metadata": {"name": name}, "spec": spec}


async def bound(box: Box, count: int) -> None:
    """Wait until so many claims are bound, or no more come to be."""
    async with asyncio.timeout(_LIMIT):
        while sum(c.status.phase == "Bound" for c in (await box.client.list(CLAIMS, "default")).items) < count:
            await asyncio.sleep(0.2)  # a list costs


def failures() -> tuple[float, float]:
    """Volumes that drivers could not make, and claims that agents sent back."""
    found = {
        counter: sum(s.value for m in counter.collect() for s in m.samples if s.name.endswith("_total"))
        for counter in (metrics.PROVISION_FAILED, metrics.RESCHEDULED)
    }
    return found[metrics.PROVISION_FAILED], found[metrics.RESCHEDULED]


async def test_claims_that_exactly_fit_are_all_bound_and_none_is_rejected(box: Box) -> None:
    before = failures()
    async with asyncio.TaskGroup() as storm:
        for n in range(NODES * ROOM):
            storm.create_task(box.client.create(CLAIMS, claim(f"c-{n}"), "default"))
    await bound(box, NODES * ROOM)

    nodes = Counter(volume.metadata.labels[names.NODE_LABEL] for volume in (await box.client.list(VOLUMES)).items)
    assert nodes == {f"node-{n}": ROOM for n in range(1, NODES + 1)}
    assert failures() == before

    await box.client.create(CLAIMS, claim("one-more"), "default")
    told = await until_told(box, "one-more")
    assert "insufficient storage for 1Gi" in told
    assert failures() == before
    await box.client.delete(CLAIMS, "c-7", "default")
    await until(
        box.client, CLAIMS, "one-more", lambda c: c.status.phase == "Bound", namespace="default", seconds=_LIMIT
    )
    assert failures() == before


async def test_pods_and_immediate_claims_at_once_do_not_take_each_others_room(box: Box) -> None:
    before = failures()
    async with asyncio.TaskGroup() as storm:
        for n in range(NODES * ROOM // 2):
            storm.create_task(box.client.create(CLAIMS, claim(f"c-{n}"), "default"))
            storm.create_task(box.client.create(PODS, pod_with(f"p-{n}", {"data": "1Gi"}), "default"))
    await bound(box, NODES * ROOM)
    assert failures()[0] == before[0]


async def until_told(box: Box, name: str) -> str:
    """What the first Warning about a claim says."""
    async with asyncio.timeout(_LIMIT):
        while True:
            for event in (await box.client.list(EVENTS, "default")).items:
                if event.involved_object.name == name and event.type == "Warning":
                    return event.message
            await asyncio.sleep(0.2)  # a list costs


async def test_nothing_is_left_promised(box: Box) -> None:
    """What a bound claim took is counted once: the rest can be given to the last byte."""
    await box.client.create(CLAIMS, claim("c", "4Gi"), "default")
    await bound(box, 1)
    for number in range(NODES - 1):
        await box.client.create(CLAIMS, claim(f"whole-{number}", f"{ROOM}Gi"), "default")
    await bound(box, NODES)
    await box.client.create(CLAIMS, claim("rest", f"{ROOM - 4}Gi"), "default")
    await bound(box, NODES + 1)
