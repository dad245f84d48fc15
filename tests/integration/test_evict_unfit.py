"""A pod whose inline volume turns out not to fit is evicted, and the next one goes to another node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tonnage.controller.evict_unfit import REASON
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES, EVENTS, NODES, PODS, REPLICA_SETS
from tonnage.kubernetes.api.pods import Pod
from tonnage.storage.pools.base.contract import INLINE, PoolVolume, VolumeRequest, is_inline
from tonnage.storage.pools.core.pool import Pool
from tonnage_box.cli.workloads import inline
from tonnage_box.cluster import Box
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan

GIB = 1 << 30
_LIMIT = 240.0


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    """Two nodes with 10Gi each, of which 4Gi are kept for inline volumes."""
    data = DataFolder(tmp_path / "d")
    made = Box(data, plan(data, Settings(nodes=2, pools=["fake,size=10Gi,inline=4Gi"], runtime="none")))
    await made.start()
    yield made
    await made.stop()


async def eventually(question: Any) -> Any:
    async with asyncio.timeout(_LIMIT):
        while not (answer := await question()):
            await asyncio.sleep(0.05)
        return answer


async def pods(box: Box) -> list[Pod]:
    return [pod for pod in (await box.client.list(PODS, "default")).items if not pod.metadata.deleting]


def replica_set(size: str, **labels: str) -> dict[str, Any]:
    """A ReplicaSet of one pod with an inline volume."""
    pod = inline("unused", size)
    template = {"metadata": {"labels": {"app": "web", **labels}}, "spec": pod["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {"metadata": {"name": "web"}, "spec": spec}


def fill_at_the_last_moment(pool: Pool) -> None:
    """Let others take the pool's room when the first inline volume is about to be made."""
    create = pool.create

    async def filled(request: VolumeRequest) -> PoolVolume:
        if is_inline(request.owner):
            await create(VolumeRequest("claimed", 6 * GIB))
            await create(VolumeRequest("inline", 2 * GIB, owner={INLINE: "true"}))
        return await create(request)

    pool.create = filled  # type: ignore[method-assign]


async def send_to_full_node(box: Box, **labels: str) -> Pod:
    """Node-1 is chosen by what it has published, and has no room when the volume is to be made."""
    await box.client.patch(NODES, "node-2", {"spec": {"unschedulable": True}})
    fill_at_the_last_moment(box.nodes["node-1"].driver.pools[0])
    await box.client.create(REPLICA_SETS, replica_set("4Gi", **labels), "default")

    async def told() -> Pod | None:
        found = await box.client.list(EVENTS, "default", fields=f"reason={names.UNFIT}")
        there = {pod.metadata.uid: pod for pod in (await box.client.list(PODS, "default")).items}
        return next((there[e.involved_object.uid] for e in found.items if e.involved_object.uid in there), None)

    if labels:
        return await eventually(lambda: _evicted(box))  # type: ignore[no-any-return]
    return await eventually(told)  # type: ignore[no-any-return]


async def _evicted(box: Box) -> Any:
    found = (await box.client.list(EVENTS, "default", fields=f"reason={REASON}")).items
    return found[0] if found else None


async def test_it_is_replaced_on_a_node_that_has_room(box: Box) -> None:
    told: Any = await send_to_full_node(box, **{names.EVICT_UNFIT: "true"})
    assert (told.involved_object.kind, told.involved_object.name) == ("ReplicaSet", "web")
    assert "evicted from node node-1, where its inline volume does not fit" in told.message
    await box.client.patch(NODES, "node-2", {"spec": {"unschedulable": False}})

    async def runs() -> list[Pod]:
        return [p for p in await pods(box) if p.status.phase == "Running"]

    (pod,) = await eventually(runs)
    assert pod.spec.node_name == "node-2"


async def test_one_that_does_not_say_so_stays_and_is_told(box: Box) -> None:
    pod = await send_to_full_node(box)
    assert pod.spec.node_name == "node-1"

    async def fewer() -> bool:
        """The numbers that misled the scheduler are put right."""
        found = (await box.client.list(CAPACITIES)).items
        rooms = {o.metadata.labels[names.NODE_LABEL]: o.metadata.annotations.get(names.INLINE_CAPACITY) for o in found}
        return rooms == {"node-1": "2Gi", "node-2": "10Gi"}

    await eventually(fewer)
    assert [found.metadata.uid for found in await pods(box)] == [pod.metadata.uid]
    assert await _evicted(box) is None
