"""A pod that needs much is not starved by those that need little, where room is kept for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim, MakePod
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
MINUTE = 60.0
LARGE = ("large-v0", "large-v1")


async def _small_ones(node: FakeNode, make_claim: Callable[..., Any]) -> None:
    """For ever: four claims of 5Gi that live half a minute each, as soon as there is room for them."""
    alive: dict[str, float] = {}
    loop, names_ = asyncio.get_running_loop(), (f"small-{n}" for n in count())
    while True:
        for name in [n for n, end in alive.items() if end <= loop.time()]:
            del alive[name]
            if (await node.claim(name)).spec.volume_name:
                await node.release(name)
            else:
                await node.remove_claim(name)
        if len(alive) < 4 and to_bytes((await node.capacity())[0] or "0") >= to_bytes("5Gi"):
            name = next(names_)
            alive[name] = loop.time() + 30.0
            await make_claim(name, "5Gi", storageClassName="late")
            await node.select(name)
        await asyncio.sleep(1.5)


async def _send_large(node: FakeNode) -> None:
    """For ever: as the stock scheduler does, wherever each of its claims fits alone."""
    while True:
        for claim in LARGE:
            unsent = names.SELECTED_NODE not in (await node.claim(claim)).metadata.annotations
            if unsent and to_bytes((await node.capacity())[0] or "0") >= to_bytes("10Gi"):
                await node.select(claim)
        await asyncio.sleep(1.0)


@asynccontextmanager
async def _storm(node: FakeNode, make_claim: MakeClaim) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(_small_ones(node, make_claim))]
    await asyncio.sleep(20.0)
    tasks.append(asyncio.ensure_future(_send_large(node)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.slow
async def test_without_it_the_large_one_starves_and_with_it_it_does_not(
    make_node: MakeNode, make_claim: MakeClaim, scratch_pod: MakePod, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node("30Gi")
    await eventually(lambda: node.publishes("30Gi", "30Gi"))
    await scratch_pod("large", "10Gi", "10Gi")
    async with _storm(node, make_claim):
        await asyncio.sleep(20 * MINUTE)
        waiting = [await node.phase(claim) for claim in LARGE]
        assert waiting == ["Pending", "Pending"]
        assert int((await node.claim(LARGE[0])).metadata.annotations[names.RESCHEDULES]) > 3
        await node.kill_agent()
        await node.start_agent(starvation_guard=3)
        await asyncio.sleep(MINUTE)
        for claim in LARGE:
            assert await node.is_bound(claim)
    text = next(text for _, reason, text in await all_events() if reason == "CapacityReserved")
    assert text.startswith("node node-1, pool scratch: capacity that becomes free is reserved for this pod (2 x 10Gi;")


async def _kept(
    make_node: MakeNode, scratch_pod: MakePod, make_claim: MakeClaim, eventually: Eventually, *sizes: str
) -> Any:
    node = await make_node("30Gi", starvation_guard=3)
    await make_claim("old", "10Gi", storageClassName="late")
    await node.select("old")
    await eventually(lambda: node.is_bound("old"))
    await scratch_pod("large", *sizes)
    for claim in LARGE:
        often = {"metadata": {"annotations": {names.RESCHEDULES: "3"}}}
        await node.client.patch(kinds.CLAIMS, claim, often, "default")
    await node.select(*LARGE)
    return node


async def _is_guarded(node: FakeNode) -> bool:
    """Whether the guard has begun. Until then, the claims may publish 0 as well, while they are tried."""
    return bool(node.agents[0].ledger.guarded())


async def test_what_is_kept_is_not_published_and_nobody_else_gets_it(
    make_node: MakeNode, scratch_pod: MakePod, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await _kept(make_node, scratch_pod, make_claim, eventually, "15Gi", "15Gi")
    await eventually(lambda: _is_guarded(node))
    await eventually(lambda: node.publishes("0", "0"))
    await make_claim("small", "1Gi", storageClassName="late")
    await node.select("small")

    async def sent_back() -> bool:
        return names.SELECTED_NODE not in (await node.claim("small")).metadata.annotations

    await eventually(sent_back)
    await node.release("old")
    for claim in LARGE:
        await eventually(lambda claim=claim: node.is_bound(claim))


@pytest.mark.parametrize("how", ["gone", "given up"])
async def test_when_it_is_over_the_room_is_everybodys(
    make_node: MakeNode, scratch_pod: MakePod, make_claim: MakeClaim, eventually: Eventually, how: str
) -> None:
    node = await _kept(make_node, scratch_pod, make_claim, eventually, "15Gi", "15Gi")
    await eventually(lambda: _is_guarded(node))
    await eventually(lambda: node.publishes("0", "0"))
    if how == "gone":
        for claim in LARGE:
            await node.remove_claim(claim)
    else:
        await asyncio.sleep(31 * MINUTE)
    await eventually(lambda: node.publishes("20Gi", "20Gi"))


async def test_nothing_is_kept_for_what_the_node_could_never_hold(
    make_node: MakeNode, scratch_pod: MakePod, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await _kept(make_node, scratch_pod, make_claim, eventually, "16Gi", "15Gi")
    await asyncio.sleep(0.7)
    await eventually(lambda: node.publishes("20Gi", "20Gi"))
