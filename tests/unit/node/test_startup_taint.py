"""The start-up taint goes when the kubelet lists the driver, and nothing else of the node changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import CSI_NODES, NODES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.config.agent import AgentConfig
from tonnage.node.startup_taint import StartupTaint
from tonnage_box.testing.clock import ManualClock

Settle = Callable[[], Awaitable[None]]
OTHER = {"key": "example.org/gpu", "value": "yes", "effect": "NoSchedule"}
CONFIG = AgentConfig("n1", startup_taint=(names.DRIVER,))
OURS = {"key": names.STARTUP_TAINT, "effect": "NoSchedule"}


@pytest.fixture
async def controller(kube: Client, informers: Informers) -> StartupTaint:
    return StartupTaint(kube, informers, CONFIG, lambda: True, RealClock())


async def make_node(kube: Client, name: str = "n1") -> Node:
    return await kube.create(NODES, {"metadata": {"name": name}, "spec": {"taints": [OTHER, OURS]}})


async def list_driver(kube: Client, driver: str) -> None:
    spec = {"drivers": [{"name": driver, "nodeID": "n1", "topologyKeys": []}]}
    await kube.create(CSI_NODES, {"metadata": {"name": "n1"}, "spec": spec})


async def test_it_stays_until_the_driver_is_listed(kube: Client, controller: StartupTaint, settle: Settle) -> None:
    await make_node(kube)
    await settle()
    first = await controller.reconcile("n1")
    again = await controller.reconcile("n1")
    assert first is not None
    assert again is not None
    assert 0 < first < again  # asked for ever more slowly
    assert len((await kube.get(NODES, "n1")).spec.taints) == 2

    await list_driver(kube, names.DRIVER)
    assert await controller.reconcile("n1") is None
    assert [taint.key for taint in (await kube.get(NODES, "n1")).spec.taints] == [OTHER["key"]]
    await settle()
    before = (await kube.get(NODES, "n1")).metadata.resource_version
    await controller.reconcile("n1")
    assert (await kube.get(NODES, "n1")).metadata.resource_version == before


async def test_it_stays_until_room_is_published_or_a_minute_is_over(
    kube: Client, informers: Informers, settle: Settle, manual_clock: ManualClock
) -> None:
    published: list[bool] = []
    controller = StartupTaint(kube, informers, CONFIG, lambda: bool(published), manual_clock)
    for published_by in ("agent", "nobody"):
        await make_node(kube)
        if published_by == "agent":
            await list_driver(kube, names.DRIVER)
        await settle()
        manual_clock.now += 100
        assert await controller.reconcile("n1") is not None
        manual_clock.now += 59
        assert await controller.reconcile("n1") is not None
        if published_by == "agent":
            published.append(True)
        else:
            manual_clock.now += 2
        assert await controller.reconcile("n1") is None
        assert [taint.key for taint in (await kube.get(NODES, "n1")).spec.taints] == [OTHER["key"]]
        await settle()
        await controller.reconcile("n1")
        await kube.delete(NODES, "n1")
        published.clear()


async def test_another_driver_is_not_ours(kube: Client, controller: StartupTaint, settle: Settle) -> None:
    await make_node(kube)
    await list_driver(kube, "csi.example.org")
    await settle()
    assert await controller.reconcile("n1") is not None


async def test_only_its_own_node_is_seen(
    kube: Client, informers: Informers, controller: StartupTaint, eventually: Callable[..., Awaitable[object]]
) -> None:
    await make_node(kube, "n2")
    await list_driver(kube, names.DRIVER)
    await make_node(kube, "n1")
    nodes = informers.of(NODES, fields="metadata.name=n1").cache

    async def seen() -> bool:
        return nodes.get("n1") is not None

    await eventually(seen)
    assert nodes.get("n2") is None
    assert await controller.reconcile("n2") is None
    assert await controller.reconcile("n1") is None
    assert len((await kube.get(NODES, "n2")).spec.taints) == 2
    assert len((await kube.get(NODES, "n1")).spec.taints) == 1
