"""Pods with a node set by hand: which claims are sent, when, and when again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.controller.contexts import context
from tests.unit.fixture_types import Running, Told

from tonnage.controller.preassigned import PreassignedPods
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, NODES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.testing.clock import ManualClock
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
Settle = Callable[[], Awaitable[None]]
SENT = {
    names.SELECTED_NODE: "n1",
    names.STORAGE_PROVISIONER: names.DRIVER,
    names.BETA_STORAGE_PROVISIONER: names.DRIVER,
}


@pytest.fixture
async def controller(
    kube: Client, informers: Informers, events: EventRecorder, manual_clock: ManualClock, make_class: Make
) -> PreassignedPods:
    await make_class("late")
    await make_class("now", mode=names.IMMEDIATE)
    await make_class("static", provisioner=names.NO_PROVISIONER)
    await kube.create(NODES, {"metadata": {"name": "n1"}})
    return PreassignedPods(context(kube, informers, events, clock=manual_clock))


async def claim_of(kube: Client) -> Any:
    return await kube.get(CLAIMS, "c", "default")


async def test_claim_goes_to_the_pods_node_in_one_write(
    kube: Client, controller: PreassignedPods, make_claim: Make, make_pod: Make, settle: Settle
) -> None:
    before = await make_claim("c", storageClassName="late")
    await make_pod("p", claims=["c"], nodeName="n1")
    await settle()
    assert await controller.reconcile("default/p") is None
    claim = await claim_of(kube)
    assert claim.metadata.annotations == SENT
    assert claim.metadata.labels == {names.NODE_LABEL: "n1"}
    assert int(claim.metadata.resource_version) == int(before.metadata.resource_version) + 2  # the pod, and this
    await settle()
    await controller.reconcile("default/p")
    assert await claim_of(kube) == claim


@pytest.mark.parametrize(
    ("claim", "pod"),
    [
        pytest.param({"storageClassName": "now"}, {"nodeName": "n1"}, id="immediate"),
        pytest.param({"storageClassName": "static"}, {"nodeName": "n1"}, id="nobody makes them"),
        pytest.param({"storageClassName": "nowhere"}, {"nodeName": "n1"}, id="unknown class"),
        pytest.param({"storageClassName": "late", "volumeName": "v"}, {"nodeName": "n1"}, id="names a volume"),
        pytest.param({"storageClassName": "late"}, {}, id="pod without a node"),
        pytest.param({"storageClassName": "late"}, {"nodeName": "n2"}, id="node that is not there"),
    ],
)
async def test_what_is_not_sent(
    kube: Client,
    controller: PreassignedPods,
    make_claim: Make,
    make_pod: Make,
    settle: Settle,
    claim: dict[str, Any],
    pod: dict[str, Any],
) -> None:
    before = await make_claim("c", **claim)
    await make_pod("p", claims=["c"], **pod)
    await settle()
    assert await controller.reconcile("default/p") is None
    assert await claim_of(kube) == before


async def test_volume_set_aside_for_the_claim_is_not_doubled(
    kube: Client, controller: PreassignedPods, make_claim: Make, make_volume: Make, make_pod: Make, settle: Settle
) -> None:
    await make_volume("v", storageClassName="late", claimRef={"namespace": "default", "name": "c"})
    before = await make_claim("c", storageClassName="late")
    await make_pod("p", claims=["c"], nodeName="n1")
    await settle()
    await controller.reconcile("default/p")
    assert await claim_of(kube) == before


async def test_foreign_ephemeral_claim_is_left_alone(
    kube: Client, controller: PreassignedPods, make_claim: Make, make_pod: Make, settle: Settle
) -> None:
    await make_claim("p-v", storageClassName="late")
    await make_pod("p", ephemeral={"v": {"storageClassName": "late"}}, nodeName="n1")
    await settle()
    await controller.reconcile("default/p")
    assert (await kube.get(CLAIMS, "p-v", "default")).metadata.annotations == {}


async def test_only_the_provisioners_asked_for(
    kube: Client,
    controller: PreassignedPods,
    make_claim: Make,
    make_pod: Make,
    informers: Informers,
    events: EventRecorder,
    settle: Settle,
) -> None:
    before = await make_claim("c", storageClassName="late")
    await make_pod("p", claims=["c"], nodeName="n1")
    picky = PreassignedPods(context(kube, informers, events, provisioners=["another.driver"]))
    await settle()
    await picky.reconcile("default/p")
    assert await claim_of(kube) == before


async def test_sent_back_it_waits_longer_each_time(
    kube: Client,
    controller: PreassignedPods,
    make_claim: Make,
    make_pod: Make,
    settle: Settle,
    manual_clock: ManualClock,
    told: Told,
) -> None:
    await make_claim("c", storageClassName="late")
    await make_pod("p", claims=["c"], nodeName="n1")
    for count, pause in ((1, 0.5), (2, 1.0), (3, 2.0)):
        back = {"annotations": {names.SELECTED_NODE: None, names.RESCHEDULES: str(count)}, "labels": None}
        await kube.patch(CLAIMS, "c", {"metadata": back}, "default")
        await settle()
        assert await controller.reconcile("default/p") == pytest.approx(pause)
        assert names.SELECTED_NODE not in (await claim_of(kube)).metadata.annotations
        manual_clock.now += pause
        assert await controller.reconcile("default/p") is None
        assert (await claim_of(kube)).metadata.annotations[names.SELECTED_NODE] == "n1"
    assert len(controller._waits) == 0
    ((about, kind, reason, text),) = await told()
    assert (about, kind, reason) == ("p", "Warning", "InsufficientStorage")
    assert "insufficient storage on node n1 for claim c" in text


@pytest.mark.parametrize("last", ["claim", "pod", "node", "class"])
async def test_whatever_comes_last_starts_it(
    kube: Client,
    informers: Informers,
    events: EventRecorder,
    make_class: Make,
    make_claim: Make,
    make_pod: Make,
    running: Running,
    settle: Settle,
    eventually: Eventually,
    last: str,
) -> None:
    steps: dict[str, Callable[[], Awaitable[Any]]] = {
        "class": lambda: make_class("late"),
        "node": lambda: kube.create(NODES, {"metadata": {"name": "n1"}}),
        "claim": lambda: make_claim("c", storageClassName="late"),
        "pod": lambda: make_pod("p", claims=["c"], nodeName="n1"),
    }

    async def sent() -> bool:
        return names.SELECTED_NODE in (await claim_of(kube)).metadata.annotations

    async with running(PreassignedPods(context(kube, informers, events))):
        for name, step in steps.items():
            if name != last:
                await step()
        await settle()
        await steps[last]()
        assert await eventually(sent)
