"""`tonnage scheduler` on a real control plane beside kube-scheduler, two replicas with their own account's token."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.control_plane import ControlPlane, release
from tests.e2e.replicas import Replicas

from tonnage.kubernetes.api import names
from tonnage.kubernetes.client import kubeconfig
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.node.agent import NodeAgent
from tonnage.node.config.agent import AgentConfig
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.storage.pools.fake.backend import FakePool
from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import Installation
from tonnage_box.node_driver import NodeDriver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
NAMESPACE = "scheduler"
NODES = ("scheduler-1", "scheduler-2")
NODE_WITHOUT_DRIVERS = "scheduler-none"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
ROOM = 10 << 30
_LONG = 300.0
"""Seconds that a thing may take on a machine with much else to do."""


@pytest.fixture(scope="module")
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    """With two nodes, of which no kubelet knows, and the scheduler's account. A third CSINode has no drivers."""
    chosen = Installation(kubernetes=release(), scheduler=ScoringStrategy.LEAST_ALLOCATED)
    installed.kubectl("apply", "-f", "-", stdin=manifests.render_part("rbac-scheduler.yaml", chosen))
    installed.kubectl("create", "namespace", NAMESPACE)
    for name in NODES:
        _node(installed, name)
    empty = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": NODE_WITHOUT_DRIVERS}}
    installed.create({**empty, "spec": {"drivers": []}})
    yield installed
    installed.kubectl("-n", NAMESPACE, "delete", "pods", "--all", "--grace-period=0", "--force")
    installed.kubectl("delete", "node", *NODES, "--ignore-not-found")
    installed.kubectl("delete", "csinode", NODE_WITHOUT_DRIVERS, "--ignore-not-found")
    installed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def _node(plane: ControlPlane, name: str) -> None:
    labels = {names.TOPOLOGY_NODE: name, names.HOSTNAME_LABEL: name}
    plane.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    room = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    status = {"status": {"capacity": room, "allocatable": room}}
    assert plane.send("PATCH", f"/api/v1/nodes/{name}/status", status).status == 200
    driver = {"name": names.DRIVER, "nodeID": name, "topologyKeys": [names.TOPOLOGY_NODE]}
    body = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name}}
    # What NFS and SMB register. The API server prints `topologyKeys: null`, and `drivers: null` where there is none.
    without_topology = {"name": "nfs.csi.k8s.io", "nodeID": name}
    plane.create({**body, "spec": {"drivers": [without_topology, driver]}})


@pytest.fixture
def replicas(plane: ControlPlane, tmp_path: Path) -> Iterator[Replicas]:
    """Two, of which "one" leads."""
    made = Replicas(plane, tmp_path, "scheduler")
    made.start("one")
    try:
        plane.until("one leads", lambda: made.leader() == "one", seconds=_LONG)
        made.start("two")
        yield made
    finally:
        made.end()


@asynccontextmanager
async def _agent(plane: ControlPlane, folder: Path, node: str) -> AsyncIterator[None]:
    pool = FakePool("scratch", ROOM, directories=False)
    driver = NodeDriver([pool], node_name=node, kubelet=folder, sockets=folder)
    await driver.start()
    transport = HttpTransport(kubeconfig.load(plane.kubeconfig))
    agent = NodeAgent(
        Client(transport),
        AgentConfig(
            node,
            scope="label",
            capacity="exact",
            endpoints=tuple(driver.endpoints),
            cluster_uid=plane.get("namespace", "kube-system")["metadata"]["uid"],
            poll=0,
            sweep_every=0,
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


@pytest.fixture
async def agents(plane: ControlPlane) -> AsyncIterator[None]:
    """Of both nodes."""
    async with AsyncExitStack() as stack:
        for node in NODES:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))  # short: names of sockets are
            await stack.enter_async_context(_agent(plane, folder, node))
        yield
        plane.kubectl("-n", NAMESPACE, "delete", "pods", "--all", "--grace-period=0", "--force")
        await until(plane, "all claims are gone", lambda: not plane.send("GET", CLAIMS).body["items"])


async def until(plane: ControlPlane, what: str, holds: Callable[[], bool]) -> None:
    """Wait while the agents, which live in this loop, go on."""
    await asyncio.to_thread(lambda: plane.until(what, holds, seconds=_LONG))


def pod(name: str, *sizes: str) -> dict[str, Any]:
    """One with an ephemeral volume of each size."""

    def claim(size: str) -> dict[str, Any]:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
        return {"volumeClaimTemplate": {"spec": {**spec, "storageClassName": names.SCRATCH_CLASS}}}

    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "schedulerName": names.SCHEDULER,
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none.invalid/none"}],
            "volumes": [{"name": f"v{n}", "ephemeral": claim(size)} for n, size in enumerate(sizes)],
        },
    }


def placed(plane: ControlPlane) -> dict[str, str]:
    """Pod -> node, of those that have one."""
    pods = plane.send("GET", PODS).body["items"]
    return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in pods if p["spec"].get("nodeName")}


def test_the_api_server_prints_null(plane: ControlPlane) -> None:
    assert '"topologyKeys":null' in plane.kubectl("get", "--raw", f"/apis/storage.k8s.io/v1/csinodes/{NODES[0]}")
    raw = plane.kubectl("get", "--raw", f"/apis/storage.k8s.io/v1/csinodes/{NODE_WITHOUT_DRIVERS}")
    assert '"drivers":null' in raw


async def test_pods_that_name_it_are_placed_with_their_volumes(
    plane: ControlPlane, replicas: Replicas, agents: None
) -> None:
    plane.apply(pod("bare"), pod("one", "1Gi"), pod("two", "2Gi", "3Gi"))
    await until(plane, "all are placed", lambda: placed(plane).keys() == {"bare", "one", "two"})
    nodes = placed(plane)
    for claim in plane.send("GET", CLAIMS).body["items"]:
        owner = claim["metadata"]["ownerReferences"][0]["name"]
        assert claim["status"]["phase"] == "Bound"
        assert claim["metadata"]["labels"][names.NODE_LABEL] == nodes[owner]
        assert claim["metadata"]["annotations"][names.SELECTED_NODE] == nodes[owner]


async def test_a_pod_that_fits_nowhere_is_told_and_placed_when_there_is_room(
    plane: ControlPlane, replicas: Replicas, agents: None
) -> None:
    plane.apply(pod("left", "6Gi"), pod("right", "6Gi"))
    await until(plane, "both are placed", lambda: len(placed(plane)) == 2)
    plane.apply(pod("more", "6Gi"))

    def told() -> str:
        conditions = plane.send("GET", f"{PODS}/more").body["status"].get("conditions", [])
        return " ".join(c.get("message", "") for c in conditions if c["type"] == "PodScheduled")

    await until(plane, "it is told", lambda: "did not have enough free storage" in told())
    plane.kubectl("-n", NAMESPACE, "delete", "pod", "left", "--grace-period=0", "--force")
    await until(plane, "it is placed", lambda: "more" in placed(plane))


async def test_when_the_one_that_leads_is_killed_the_other_goes_on(
    plane: ControlPlane, replicas: Replicas, agents: None
) -> None:
    wanted = [pod(f"many-{number}", "256Mi", "256Mi") for number in range(20)]
    plane.apply(*wanted)
    await until(plane, "it has begun", lambda: bool(placed(plane)))
    replicas.kill("one")
    plane.apply(pod("after", "1Gi"))
    names_of = {p["metadata"]["name"] for p in wanted} | {"after"}
    await until(plane, "all are placed", lambda: placed(plane).keys() == names_of)
    assert replicas.leader() == "two"
