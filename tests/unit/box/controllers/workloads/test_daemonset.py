"""DaemonSets on a real API server: nodes come and go, templates change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tonnage.kubernetes.api.kinds import CONTROLLER_REVISIONS, DAEMON_SETS, NODES
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.workloads import DaemonSet
from tonnage.kubernetes.client.client import Client
from tonnage_box.controllers.workloads.daemonset import node_of
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
Pods = Callable[[], Awaitable[list[Pod]]]


@pytest.fixture
def everywhere(kube: Client, pods: Pods, eventually: Eventually) -> Callable[..., Awaitable[DaemonSet]]:
    """Waits until just these nodes have a pod, which is ready and of that image."""

    async def wait(*nodes: str, image: str = "v1") -> DaemonSet:
        async def done() -> DaemonSet | None:
            found = await kube.get(DAEMON_SETS, "d", "default")
            status, every = found.status, await pods()
            counts = {status.desired_number_scheduled, status.number_ready, status.updated_number_scheduled}
            right = status.observed_generation == found.metadata.generation and counts == {len(nodes)}
            there = sorted(map(node_of, every))
            images = {p.spec.containers[0].image for p in every}
            return found if right and there == sorted(nodes) and images <= {image} else None

        found: DaemonSet = await eventually(done)
        return found

    return wait


@pytest.fixture(autouse=True)
def kubelet_on_every_node(kubelet: Any) -> None:
    kubelet.node_of = node_of


async def test_nodes_come_and_go(
    kube: Client, workloads: Any, workload: Make, make_node: Make, everywhere: Any
) -> None:
    await make_node("a", {"disk": "ssd"})
    await make_node("b")
    await workload(DAEMON_SETS, "d", pod={"nodeSelector": {"disk": "ssd"}})
    await everywhere("a")
    await kube.patch(NODES, "b", {"metadata": {"labels": {"disk": "ssd"}}})
    await everywhere("a", "b")
    await kube.patch(NODES, "a", {"metadata": {"labels": {"disk": None}}})
    await everywhere("b")
    await make_node("c", {"disk": "ssd"})
    await everywhere("b", "c")
    await kube.delete(NODES, "b")
    await everywhere("c")


async def test_rolled_out_node_by_node_and_back(
    kube: Client, workloads: Any, workload: Make, make_node: Make, everywhere: Any, kubelet: Any
) -> None:
    for name in ("a", "b", "c"):
        await make_node(name)
    await workload(DAEMON_SETS, "d")
    await everywhere("a", "b", "c")
    kubelet.log.clear()
    for image in ("v2", "v1"):
        template = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}}
        await kube.patch(DAEMON_SETS, "d", template, "default")
        await everywhere("a", "b", "c", image=image)
    missing = 0
    for what, _ in kubelet.log:
        missing += {"gone": 1, "ready": -1, "added": 0}[what]
        assert 0 <= missing <= 1
    assert sorted(r.revision for r in (await kube.list(CONTROLLER_REVISIONS)).items) == [2, 3]
