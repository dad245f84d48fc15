"""What is wrong with a class is said on its claims, and on pods whose scheduler does not say it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.unit.controller.contexts import context

from tonnage.controller.class_events import CLAIM, ClassEvents
from tonnage.controller.config import LoopKey
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES, NAMESPACES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers

Make = Callable[..., Awaitable[Any]]
Told = Callable[[], Awaitable[list[tuple[str, str, str, str]]]]
Running = Callable[..., AbstractAsyncContextManager[None]]
FAULT = "there is no pool 'nope' (there is scratch)"
TEXT = f"no node can make a volume of class late: {FAULT}"


@pytest.fixture
async def notices(kube: Client, informers: Informers, events: EventRecorder, make_class: Make) -> ClassEvents:
    """Ready to run, with a late class."""
    await kube.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    await make_class("late")
    return ClassEvents(context(kube, informers, events, seeing=["tonnage-scheduler"]))


@pytest.fixture
def publish(kube: Client) -> Make:
    """publish(node, fault): what a node says of class late."""

    async def write(node: str, fault: str = "") -> None:
        notes = {names.REASON: fault} if fault else {}
        head = {"name": f"late-{node}", "annotations": notes}
        topology = {"matchLabels": {names.TOPOLOGY_NODE: node}}
        body = {"metadata": head, "storageClassName": "late", "nodeTopology": topology, "capacity": "0"}
        await kube.create(CAPACITIES, body, names.SYSTEM_NAMESPACE)

    return write


@pytest.mark.parametrize("claims_first", [True, False])
async def test_claims_and_pods_are_told_once(
    kube: Client, notices: ClassEvents, publish: Make, make_claim: Make, make_pod: Make, running: Running,
    eventually: Callable[[Any], Awaitable[Any]], told: Told, settle: Callable[[], Awaitable[None]], *,
    claims_first: bool,
) -> None:  # fmt: skip
    async def make_claims() -> None:
        await make_pod("p", claims=["c"])
        await make_pod("ours", claims=["c"], schedulerName="tonnage-scheduler")
        await make_claim("c", storageClassName="late")

    wanted = [("c", "Warning", "ProvisioningFailed", TEXT), ("p", "Warning", "ProvisioningFailed", f"claim c: {TEXT}")]

    async def all_told() -> bool:
        return await told() == wanted

    async with running(notices):
        if claims_first:
            await make_claims()
        await publish("n1", FAULT)
        await settle()
        if not claims_first:
            await make_claims()
        assert await eventually(all_told)
        await publish("n2", FAULT)
        await settle()
        assert await told() == wanted


@pytest.mark.parametrize("faults", [(FAULT, ""), (names.AHEAD,), ("",), ()])
async def test_a_class_that_some_node_serves_is_not_at_fault(
    notices: ClassEvents, publish: Make, make_claim: Make, told: Told, settle: Callable[[], Awaitable[None]],
    faults: tuple[str, ...],
) -> None:  # fmt: skip
    for number, fault in enumerate(faults):
        await publish(f"n{number}", fault)
    await make_claim("c", storageClassName="late")
    await settle()
    await notices.reconcile(LoopKey(CLAIM, "default/c"))
    assert await told() == []


async def test_capacity_of_many_nodes_is_one_key_however_many_claims_wait(
    notices: ClassEvents, publish: Make, make_claim: Make, settle: Callable[[], Awaitable[None]]
) -> None:
    for name in "abc":
        await make_claim(name, storageClassName="late")
    await settle()
    for node in ("n1", "n2"):
        await publish(node, FAULT)
    await settle()
    assert len(notices._controller.queue) == 1


async def test_the_last_node_that_serves_it_goes(
    kube: Client, notices: ClassEvents, publish: Make, make_claim: Make, running: Running,
    eventually: Callable[[Any], Awaitable[Any]], told: Told,
) -> None:  # fmt: skip
    await publish("n1", FAULT)
    await publish("n2")
    async with running(notices):
        await make_claim("c", storageClassName="late")
        await kube.delete(CAPACITIES, "late-n2", names.SYSTEM_NAMESPACE)
        assert await eventually(told) == [("c", "Warning", "ProvisioningFailed", TEXT)]
