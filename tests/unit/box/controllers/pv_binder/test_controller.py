"""The binder: tables of states and what becomes of them, and races with an agent that binds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.box.controllers.pv_binder.agent_volumes import MARKS, Make, claim_of, made_by_agent
from tests.unit.fixture_types import Running

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, VOLUMES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.provisioning.claims.bind import bind, is_complete
from tonnage_box.controllers.pv_binder.controller import Binder
from tonnage_box.testing.wait import Eventually

Told = Callable[[], Awaitable[list[tuple[str, str, str, str]]]]


async def test_binder_writes_nothing_when_the_agent_binds(
    kube: Client, binder: Binder, make_class: Make, make_volume: Make, make_claim: Make, work: Any
) -> None:
    await make_class("late")
    claim = await make_claim("c", storageClassName="late", annotations={names.SELECTED_NODE: "n1", **MARKS})
    await work()
    claim, volume = await bind(kube, claim, await made_by_agent(make_volume, claim))
    await work()
    assert await claim_of(kube, "c") == claim
    assert await kube.get(VOLUMES, volume.key) == volume
    assert len(binder._view.waits) == 0


async def test_storm_of_claims_volumes_and_agents_ends_bound(
    kube: Client,
    binder: Binder,
    make_class: Make,
    make_volume: Make,
    make_claim: Make,
    running: Running,
    eventually: Eventually,
) -> None:
    binder._view.grace = 0.0  # so that both bind at the same time
    await make_class("late")

    async def agent(number: int) -> None:
        claim = await make_claim(f"c{number}", storageClassName="late")
        await bind(kube, claim, await made_by_agent(make_volume, claim))

    async def all_bound() -> bool:
        claims = {c.key: c for c in (await kube.list(CLAIMS)).items}
        volumes = {v.key: v for v in (await kube.list(VOLUMES)).items}
        return len(claims) == 20 and all(
            c.spec.volume_name and is_complete(c, volumes[c.spec.volume_name]) for c in claims.values()
        )

    async with running(binder):
        await asyncio.gather(*(agent(n) for n in range(20)))
        assert await eventually(all_bound)


async def test_what_a_claim_waits_for_is_said_after_a_while_and_again_when_it_changes(
    kube: Client,
    informers: Informers,
    events: EventRecorder,
    make_class: Make,
    make_claim: Make,
    make_pod: Make,
    running: Running,
    eventually: Eventually,
    told: Told,
) -> None:
    async def said(count: int) -> list[str]:
        reasons = [reason for _, _, reason, _ in await told()]
        return reasons if len(reasons) == count else []

    async with running(Binder(kube, informers, events, quiet=0.02)):
        await make_class("late")
        await make_claim("c", storageClassName="late")
        assert await eventually(lambda: said(1)) == ["WaitForFirstConsumer"]
        await make_pod("p", claims=["c"])
        assert await eventually(lambda: said(2)) == ["WaitForFirstConsumer", "WaitForPodScheduled"]
        await kube.patch(CLAIMS, "c", {"metadata": {"annotations": {names.SELECTED_NODE: "n1"}}}, "default")
        assert "ExternalProvisioning" in await eventually(lambda: said(3))
        assert (await claim_of(kube, "c")).metadata.annotations.items() >= MARKS.items()


@pytest.mark.parametrize("names_it", [False, True])
@pytest.mark.parametrize("claim_first", [False, True])
async def test_a_claim_and_its_volume_of_a_class_without_object_are_bound_without_a_word(
    kube: Client,
    informers: Informers,
    events: EventRecorder,
    make_claim: Make,
    make_volume: Make,
    running: Running,
    eventually: Eventually,
    told: Told,
    *,
    names_it: bool,
    claim_first: bool,
) -> None:
    async def bound() -> bool:
        return is_complete(await claim_of(kube, "c"), await kube.get(VOLUMES, "v"))

    spec = {"storageClassName": "manual"}
    async with running(Binder(kube, informers, events, quiet=60.0, grace=60.0)):
        for make in (make_claim, make_volume) if claim_first else (make_volume, make_claim):
            if make is make_claim:
                await make_claim("c", **spec, **({"volumeName": "v"} if names_it else {}))
            else:
                await make_volume("v", **spec)
        assert await eventually(bound)
        assert await told() == []


async def test_volume_that_an_agent_left_half_bound_is_bound_after_its_time(
    kube: Client,
    informers: Informers,
    events: EventRecorder,
    make_class: Make,
    make_claim: Make,
    make_volume: Make,
    running: Running,
    eventually: Eventually,
) -> None:
    async def bound() -> bool:
        claim, volumes = await claim_of(kube, "c"), (await kube.list(VOLUMES)).items
        return len(volumes) == 1 and is_complete(claim, volumes[0])

    async with running(Binder(kube, informers, events, grace=0.02)):
        await make_class("late")
        claim = await make_claim("c", storageClassName="late", annotations={names.SELECTED_NODE: "n1", **MARKS})
        volume = await made_by_agent(make_volume, claim)
        await kube.patch(VOLUMES, volume.key, {"status": {"phase": "Bound"}}, subresource="status")  # then it died
        assert await eventually(bound)
