"""A real agent with nothing but its own token: everything that it does is allowed, and it gets nothing of others."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agents import Nodes
from tests.e2e.conftest import ControlPlane

from tonnage.api import names
from tonnage.api.quantity import to_bytes
from tonnage.kube import kubeconfig
from tonnage.kube.client import Client
from tonnage.kube.http import HttpTransport
from tonnage.kube.kubeconfig import Access
from tonnage.kube.transport import Request, Response
from tonnage.node.agent import NodeAgent, NodeDriver
from tonnage.node.config.agent import AgentConfig
from tonnage.pools.fake import FakePool

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
NAMESPACE = "writes"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"


class Recorder(HttpTransport):
    """Keeps what was asked and answered, and what watches told."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self.answers: list[tuple[str, str, int, bytes]] = []
        self.heard = b""

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """See Transport."""
        async with super().stream(request) as chunks:
            yield self._keep(chunks)

    async def _keep(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            self.heard += chunk
            yield chunk

    async def request(self, request: Request) -> Response:
        """See Transport."""
        answer = await super().request(request)
        self.answers.append((request.method, request.path, answer.status, answer.body[:300]))
        return answer


@pytest.fixture(scope="module")
def nodes(installed: ControlPlane) -> Iterator[Nodes]:
    """Two nodes whose kubelets list our driver."""
    installed.kubectl("create", "namespace", NAMESPACE)
    made = Nodes(installed, "writes", NAMESPACE)
    for number in (1, 2):
        node = made.add(number)
        driver = {"name": names.DRIVER, "nodeID": node, "topologyKeys": [names.TOPOLOGY_NODE]}
        body = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node}}
        installed.create({**body, "spec": {"drivers": [driver]}})
    yield made
    made.remove()
    installed.kubectl("delete", "csinode", "writes-1", "writes-2", "--ignore-not-found")
    installed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@asynccontextmanager
async def agent(nodes: Nodes, number: int, folder: Path) -> AsyncIterator[tuple[Recorder, FakePool]]:
    """A node's driver and agent, with its bound token; what it asked, and its pool."""
    name, plane = nodes.name(number), nodes.plane
    config: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
    cluster = {"server": plane.server, "certificate-authority": str(plane.folder / "pki" / "ca.crt")}
    config["clusters"] = [{"name": "x", "cluster": cluster}]
    config["users"] = [{"name": "x", "user": {"token": nodes.tokens[name]}}]
    config["contexts"] = [{"name": "x", "context": {"cluster": "x", "user": "x"}}]
    file = folder / "kubeconfig"
    file.write_text(json.dumps(config))
    transport = Recorder(kubeconfig.load(file))
    pool = FakePool("scratch", to_bytes("10Gi"), directories=False)
    driver = NodeDriver([pool], node_name=name, kubelet=folder, sockets=folder)
    await driver.start()
    made = NodeAgent(
        Client(transport),
        AgentConfig(
            name,
            capacity="exact",
            endpoints=tuple(driver.endpoints),
            cluster_uid=plane.get("namespace", "kube-system")["metadata"]["uid"],
            poll=0,
            sweep_every=0,
            startup_taint=(names.DRIVER,),
        ),
    )
    task = asyncio.create_task(made.run())
    try:
        yield transport, pool
    finally:
        await made.stop()
        await asyncio.gather(task, return_exceptions=True)
        await driver.stop()
        await transport.close()


async def eventually(nodes: Nodes, what: str, holds: Callable[[], bool]) -> None:
    """Wait, while the agent goes on."""
    await asyncio.to_thread(nodes.plane.until, what, holds)


async def test_all_that_an_agent_does_is_allowed(nodes: Nodes, tmp_path: Path, tell: Callable[[str], None]) -> None:
    plane, node = nodes.plane, nodes.name(1)

    def claim(name: str) -> Any:
        return plane.send("GET", f"{CLAIMS}/{name}").body

    def phase(name: str) -> Any:
        found = plane.send("GET", f"{CLAIMS}/{name}")
        return "" if found.status == 404 else found.body["status"].get("phase")

    def sent_to(name: str) -> Any:
        return claim(name)["metadata"]["annotations"].get(names.SELECTED_NODE)

    def pod_with(*sizes: str) -> list[str]:
        """A pod that no scheduler looks at, its claims made by Kubernetes."""
        volume = {"accessModes": ["ReadWriteOnce"], "storageClassName": names.SCRATCH_CLASS}
        volumes = [
            {"name": f"v{n}", "ephemeral": {"volumeClaimTemplate": {"spec": {**volume, "resources": {"requests": {"storage": size}}}}}}
            for n, size in enumerate(sizes)
        ]  # fmt: skip
        containers = [{"name": "c", "image": "none.invalid/none"}]
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "namespace": NAMESPACE}}
        plane.create({**body, "spec": {"schedulerName": "nobody", "containers": containers, "volumes": volumes}})
        made = [f"pod-v{n}" for n in range(len(sizes))]
        plane.until("the claims are there", lambda: all(phase(name) == "Pending" for name in made))
        return made

    def send(name: str, *, alone: str = "") -> None:
        notes = {"metadata": {"annotations": {names.SELECTED_NODE: node, names.SINGLE_CLAIM: alone or None}}}
        assert plane.send("PATCH", f"{CLAIMS}/{name}", notes).status == 200

    async with agent(nodes, 1, tmp_path) as (transport, pool):
        await asyncio.to_thread(nodes.claim, "fits", node)
        await eventually(nodes, "the claim is bound", lambda: phase("fits") == "Bound")
        await asyncio.to_thread(nodes.claim, "too-large", node, resources={"requests": {"storage": "1Ti"}})
        await eventually(nodes, "the large claim was sent back", lambda: sent_to("too-large") is None)

        small, large = await asyncio.to_thread(pod_with, "1Gi", "20Gi")
        uid = (await asyncio.to_thread(claim, small))["metadata"]["uid"]
        await asyncio.to_thread(lambda: send(small, alone=uid))  # as if the pod had no other
        await eventually(nodes, "the sibling is made", lambda: phase(small) == "Bound")
        await asyncio.to_thread(send, large)
        await eventually(
            nodes, "the made sibling was given back", lambda: claim(small).get("metadata", {}).get("uid", uid) != uid
        )

        await asyncio.to_thread(plane.send, "DELETE", f"{CLAIMS}/fits")
        await eventually(
            nodes, "the volumes are gone",
            lambda: not plane.get("pv", "-l", f"{names.NODE_LABEL}={node}")["items"],
        )  # fmt: skip
        await eventually(
            nodes, "the start-up taint is off",
            lambda: names.STARTUP_TAINT not in [t["key"] for t in plane.get("node", node)["spec"]["taints"]],
        )  # fmt: skip
        assert await pool.list() == []
        answers = transport.answers

    refused = [answer for answer in answers if answer[2] in (401, 403)]
    assert not refused
    writes = [(method, path) for method, path, _, _ in answers if method != "GET"]
    assert {m for m, _ in writes} == {"POST", "PATCH", "DELETE"}
    assert [path for _, path in writes if path.endswith(f"/nodes/{node}")]
    tell(f"least power: an agent with its own token, {len(writes)} writes, none refused")
    told = {e["reason"] for e in plane.get("-n", NAMESPACE, "events")["items"] if e["source"].get("host") == node}
    assert {"ProvisioningSucceeded", "Rescheduled"} <= told


@pytest.mark.since("1.36")  # claims are labelled by the policy
async def test_agent_gets_nothing_of_other_nodes(nodes: Nodes, tmp_path: Path) -> None:
    """Volumes of node 1 come and go; the agent of node 2 watches, by label, and neither asks for nor hears of any."""
    plane = nodes.plane
    claims = [f"other-{number}" for number in range(3)]
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        folder.mkdir()

    def phases() -> list[str]:
        found = [plane.send("GET", f"{CLAIMS}/{name}") for name in claims]
        return ["gone" if answer.status == 404 else answer.body["status"].get("phase", "") for answer in found]

    async with agent(nodes, 1, folders[0]) as (one, _), agent(nodes, 2, folders[1]) as (two, _):
        for name in claims:
            await asyncio.to_thread(nodes.claim, name, nodes.name(1))
        await eventually(nodes, "all are bound", lambda: phases() == ["Bound"] * 3)
        for name in claims:
            await asyncio.to_thread(plane.send, "DELETE", f"{CLAIMS}/{name}")
        await eventually(nodes, "all are gone", lambda: phases() == ["gone"] * 3)
        await asyncio.to_thread(nodes.claim, "last", nodes.name(2))
        await eventually(nodes, "node 2 still works", lambda: b'"last"' in two.heard)

    assert all(f'"{name}"'.encode() in one.heard for name in claims)
    assert not [name for name in claims if f'"{name}"'.encode() in two.heard]
    assert not [path for _, path, _, _ in two.answers if "/other-" in path]


def _sent(plane: ControlPlane) -> dict[str, int]:
    """Events of claims and volumes that the API server has sent to watchers since it started."""
    lines = plane.kubectl("get", "--raw", "/metrics").splitlines()
    found = [
        re.fullmatch(r'apiserver_watch_events_total\{.*resource="(persistentvolume\w+)".*\} (\d+)', x) for x in lines
    ]
    return {match[1]: int(match[2]) for match in found if match}


def _is_quiet(plane: ControlPlane) -> bool:
    before = _sent(plane)
    time.sleep(1.0)
    return _sent(plane) == before


@asynccontextmanager
async def _watcher(plane: ControlPlane, node: str) -> AsyncIterator[NodeAgent]:
    """The agent of a node that gets no claims."""
    transport = HttpTransport(kubeconfig.load(plane.kubeconfig))
    made = NodeAgent(Client(transport), AgentConfig(node, capacity="exact", cluster_uid="x", poll=0))
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        await made.stop()
        await asyncio.gather(task, return_exceptions=True)
        await transport.close()


@pytest.mark.since("1.36")  # claims are labelled by the policy
async def test_watch_traffic_does_not_grow_with_nodes(
    nodes: Nodes, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """What the API server sends to all its watchers for a volume's life, by its own counter, with 1, 10, 100 agents.

    Not always the same number: the PV controller and the agent may write a phase both, or one for the other. An agent
    without scope adds ten and more for each node.
    """
    plane, volumes, sent = nodes.plane, 4, {}

    async def live(name: str) -> None:
        volume = f"pvc-{(await asyncio.to_thread(nodes.claim, name, nodes.name(1)))['metadata']['uid']}"
        claim, path = f"{CLAIMS}/{name}", f"/api/v1/persistentvolumes/{volume}"
        await eventually(nodes, "bound", lambda: plane.send("GET", claim).body["status"].get("phase") == "Bound")
        await asyncio.to_thread(plane.send, "DELETE", claim)
        await eventually(nodes, "gone", lambda: plane.send("GET", path).status == 404)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(agent(nodes, 1, tmp_path))
        others: list[NodeAgent] = []
        for number in (1, 10, 100):
            for _ in range(number - 1 - len(others)):
                others.append(await stack.enter_async_context(_watcher(plane, f"watcher-{len(others)}")))
            await eventually(nodes, "watches are open", lambda: _is_quiet(plane))
            assert all(other.claim_scope.by_label for other in others)
            before = await asyncio.to_thread(_sent, plane)
            for volume in range(volumes):
                await live(f"traffic-{number}-{volume}")
            await eventually(nodes, "all was sent", lambda: _is_quiet(plane))
            after = await asyncio.to_thread(_sent, plane)
            sent[number] = sum(after[kind] - before.get(kind, 0) for kind in after) / volumes
    tell(f"scoping: watch events that the API server sends per volume's life, by number of agents: {sent}")
    assert sent[1] > 0
    assert max(sent[10], sent[100]) < sent[1] + 9
