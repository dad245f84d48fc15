"""Capacity in tiers with the stock scheduler: agents that have their nodes' tokens and nothing else, a controller with
its own, nodes without kubelets. The scheduler binds a pod only when its claim is bound: one that has its node has its
volume."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agents import SYSTEM, Nodes
from tests.e2e.control_plane import ControlPlane
from tests.e2e.hollow import Hollow

from tonnage.controller.app import controller_process
from tonnage.controller.config import ControllerConfig
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client import kubeconfig
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.node.agent import NodeAgent
from tonnage.node.config.agent import AgentConfig
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.node_driver import NodeDriver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
NAMESPACE = PREFIX = "tiers"
LABEL = names.tier_label(names.SCRATCH_CLASS)
SIZES = {1: "100Gi", 2: "100Gi", 3: "400Gi"}
TIERS = {"tiers-1": "16Gi", "tiers-2": "16Gi", "tiers-3": "64Gi"}
PODS = 12


class Stage:
    """What the API server holds."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def labels(self) -> dict[str, str]:
        """Node -> its tier."""
        found = self.plane.get("nodes", "-l", LABEL)["items"]
        return {node["metadata"]["name"]: node["metadata"]["labels"][LABEL] for node in found}

    def capacities(self) -> list[Any]:
        """All of the class."""
        found = self.plane.get("-n", SYSTEM, "csistoragecapacities")["items"]
        return [item for item in found if item["storageClassName"] == names.SCRATCH_CLASS]

    def own(self) -> dict[str, str]:
        """Node of ours -> what it publishes exactly."""
        labels = [(item["metadata"]["labels"], item.get("capacity", "")) for item in self.capacities()]
        return {found[names.NODE_LABEL]: size for found, size in labels if found.get(names.NODE_LABEL) in TIERS}

    def versions(self) -> set[tuple[str, str]]:
        """Of all capacity objects."""
        return {(i["metadata"]["name"], i["metadata"]["resourceVersion"]) for i in self.capacities()}

    def run(self, *pods: str, size: str) -> None:
        """Ask for pods that may run on any node of ours."""
        claim = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": names.SCRATCH_CLASS,
            "resources": {"requests": {"storage": size}},
        }
        spec = {
            "nodeSelector": {"tiers": "yes"},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "none.invalid/none"}],
            "volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}],
        }
        head = {"apiVersion": "v1", "kind": "Pod", "spec": spec}
        self.plane.apply(*({**head, "metadata": {"name": name, "namespace": NAMESPACE}} for name in pods))

    def node_of(self, pod: str) -> str:
        """Where a pod was placed, "" for nowhere yet."""
        return str(self.plane.get("-n", NAMESPACE, "pod", pod)["spec"].get("nodeName", ""))

    def has_startup_taint(self) -> bool:
        """Whether some node of ours still has it."""
        found = self.plane.get("nodes", "-l", "tiers=yes")["items"]
        taints = [taint["key"] for node in found for taint in node["spec"].get("taints", ())]
        return names.STARTUP_TAINT in taints


@pytest.fixture
async def stage(installed: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Three nodes with agents, and a controller that keeps tiers."""
    plane = installed
    plane.kubectl("create", "namespace", NAMESPACE)
    nodes = Nodes(plane, PREFIX, NAMESPACE)
    hollow = [Hollow(nodes, number) for number in SIZES]
    for node in nodes.tokens:
        plane.kubectl("label", "node", node, "tiers=yes")
    async with AsyncExitStack() as running:
        try:
            await running.enter_async_context(_controller(plane, tmp_path))
            for number, size in SIZES.items():
                await running.enter_async_context(_agent(nodes, number, size, tmp_path))
            yield Stage(plane)
            await asyncio.to_thread(_empty, plane)
        finally:
            await running.aclose()
            for found in hollow:
                found.remove()
            nodes.remove()
            plane.kubectl("-n", SYSTEM, "delete", "csistoragecapacities", "-l", names.TIER)
            plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def _empty(plane: ControlPlane) -> None:
    plane.kubectl("-n", NAMESPACE, "delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")
    plane.until("no claim is left", lambda: not plane.get("-n", NAMESPACE, "pvc")["items"])
    plane.until("no volume is left", lambda: not plane.get("pv", "-l", f"{names.NODE_LABEL}=tiers-3")["items"])


@asynccontextmanager
async def _controller(plane: ControlPlane, folder: Path) -> AsyncIterator[None]:
    token = plane.kubectl("-n", SYSTEM, "create", "token", "tonnage-controller").strip()
    access = kubeconfig.load(plane.write_kubeconfig(folder / "controller", token))
    made = controller_process(ControllerConfig("tiers", SYSTEM, capacity="tiers"), Client(HttpTransport(access)))
    await made.start()
    try:
        yield
    finally:
        await made.stop()


@asynccontextmanager
async def _agent(nodes: Nodes, number: int, size: str, folder: Path) -> AsyncIterator[None]:
    node, plane = nodes.name(number), nodes.plane
    with tempfile.TemporaryDirectory(prefix="tn") as short:  # a socket's path has at most 107 bytes
        place = Path(short)
        pool = FakePool("scratch", to_bytes(size), directories=False)
        driver = NodeDriver([pool], node_name=node, kubelet=place, sockets=place)
        await driver.start()
        transport = HttpTransport(kubeconfig.load(plane.write_kubeconfig(folder / node, nodes.tokens[node])))
        agent = NodeAgent(
            Client(transport),
            AgentConfig(
                node,
                scope="label",
                endpoints=tuple(driver.endpoints),
                cluster_uid=plane.get("namespace", "kube-system")["metadata"]["uid"],
                poll=0,
                sweep_every=0,
                startup_taint=(names.DRIVER,),
            ),
        )
        task = asyncio.create_task(agent.run())
        try:
            yield
        finally:
            await agent.stop()
            await asyncio.gather(task, return_exceptions=True)
            await driver.stop()
            await transport.close()


async def test_stock_scheduler_places_by_tiers_and_what_no_tier_admits(
    stage: Stage, tell: Callable[[str], None]
) -> None:
    async def until(what: str, holds: Callable[[], bool]) -> None:
        await asyncio.to_thread(stage.plane.until, what, holds)

    await until("all are in their tiers", lambda: stage.labels() == TIERS)
    await until("none publishes exactly", lambda: stage.own() == {})
    await until("the start-up taint goes all the same", lambda: not stage.has_startup_taint())
    before = stage.versions()

    small = [f"small-{n}" for n in range(PODS)]
    await asyncio.to_thread(lambda: stage.run(*small, size="1Gi"))
    await until("all small pods are placed", lambda: all(stage.node_of(pod) for pod in small))
    written = len(stage.versions() - before)
    tell(f"tiers, stock scheduler: {PODS} pods with a volume placed, {written} capacity writes")
    assert written == 0
    assert stage.labels() == TIERS

    await asyncio.to_thread(lambda: stage.run("large", size="300Gi"))
    await until("the large pod is placed", lambda: stage.node_of("large") == "tiers-3")
    await until("the others are as they were", lambda: stage.own().keys() <= {"tiers-3"})
    await until("nobody is asked any more", lambda: _asks_nobody(stage))


def _asks_nobody(stage: Stage) -> bool:
    notices = [i["metadata"].get("annotations", {}) for i in stage.capacities() if "nodeTopology" not in i]
    return len(notices) == 1 and names.EXACT_CAPACITY_NODES not in notices[0]
