"""Nodes that no kubelet runs, for the real scheduler, with agents and fake pools in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.e2e.control_plane import ControlPlane

from tonnage.kubernetes.api import names
from tonnage.kubernetes.client import kubeconfig
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.node.agent import NodeAgent
from tonnage.node.config.agent import AgentConfig
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.node_driver import NodeDriver

LONG = 300.0
"""Seconds that a thing may take on a machine with much else to do."""
TOLERATED = [{"key": f"node.kubernetes.io/{why}", "operator": "Exists"} for why in ("not-ready", "unreachable")]
"""What nodes without a kubelet have."""
_ROOM = {"cpu": "64", "memory": "64Gi", "pods": "110"}


def add_node(
    plane: ControlPlane, name: str, *, labels: Mapping[str, str] | None = None, taints: Sequence[str] = ()
) -> None:
    """A node with room for pods."""
    given = [{"key": key, "effect": "NoSchedule"} for key in taints]
    metadata = {"name": name, "labels": {names.HOSTNAME_LABEL: name, **(labels or {})}}
    plane.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": given}})
    status = {"status": {"capacity": _ROOM, "allocatable": _ROOM}}
    assert plane.send("PATCH", f"/api/v1/nodes/{name}/status", status).status == 200


def register(plane: ControlPlane, node: str) -> None:
    """What a kubelet writes when it has found the driver."""
    plane.send("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": {names.TOPOLOGY_NODE: node}}})
    driver = {"name": names.DRIVER, "nodeID": node, "topologyKeys": [names.TOPOLOGY_NODE]}
    body = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node}}
    plane.create({**body, "spec": {"drivers": [driver]}})


@asynccontextmanager
async def agent_on(plane: ControlPlane, node: str, *, room: int, **more: Any) -> AsyncIterator[NodeAgent]:
    """A node's driver and agent. room: bytes of its pool."""
    with TemporaryDirectory(prefix="node-") as folder:  # a test's own is too long for a socket
        pool, place = FakePool("scratch", room, directories=False), Path(folder)
        driver = NodeDriver([pool], node_name=node, kubelet=place, sockets=place)
        await driver.start()
        try:
            async with _agent(plane, node, driver, **more) as agent:
                yield agent
        finally:
            await driver.stop()


@asynccontextmanager
async def _agent(plane: ControlPlane, node: str, driver: NodeDriver, **more: Any) -> AsyncIterator[NodeAgent]:
    transport = HttpTransport(kubeconfig.load(plane.kubeconfig))
    agent = NodeAgent(
        Client(transport),
        AgentConfig(
            node,
            endpoints=tuple(driver.endpoints),
            cluster_uid=plane.get("namespace", "kube-system")["metadata"]["uid"],
            **{"scope": "label", "capacity": "exact", "poll": 0, "sweep_every": 0, **more},
        ),
    )
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        await agent.stop()
        await asyncio.gather(task, return_exceptions=True)
        await transport.close()


async def until(plane: ControlPlane, what: str, holds: Callable[[], bool]) -> None:
    """Wait while the agents, which live in this loop, go on."""
    await asyncio.to_thread(lambda: plane.until(what, holds, seconds=LONG))


def scratch_pod(name: str, namespace: str, *sizes: str, **spec: Any) -> dict[str, Any]:
    """A pod with an ephemeral volume of each size."""

    def claim(size: str) -> dict[str, Any]:
        wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
        return {"volumeClaimTemplate": {"spec": {**wanted, "storageClassName": names.SCRATCH_CLASS}}}

    return pod(name, namespace, *({"ephemeral": claim(size)} for size in sizes), **spec)


def pod(name: str, namespace: str, *volumes: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod with volumes of these sources."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "tolerations": TOLERATED,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none.invalid/none"}],
            "volumes": [{"name": f"v{n}", **source} for n, source in enumerate(volumes)],
            **spec,
        },
    }


def node_of(plane: ControlPlane, namespace: str, name: str) -> str:
    """Where a pod is, "" for nowhere: the scheduler binds it when all its claims are bound."""
    found = plane.send("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
    return str(found.body["spec"].get("nodeName", "")) if found.status == 200 else ""


def remove(plane: ControlPlane, namespace: str, *nodes: str) -> None:
    """Pods, nodes and the namespace."""
    plane.kubectl("-n", namespace, "delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")
    plane.kubectl("delete", "csinode", *nodes, "--ignore-not-found")
    plane.kubectl("delete", "node", *nodes, "--ignore-not-found")
    plane.kubectl("delete", "namespace", namespace, "--wait=false", "--ignore-not-found")
