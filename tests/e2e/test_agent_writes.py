"""A real agent with nothing but its own token: everything that it does is allowed, and it gets nothing of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.e2e import snapshot_attempts as snapshots
from tests.e2e.agents import Nodes
from tests.e2e.control_plane import ControlPlane, changes

from tonnage.base.observe import metrics
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.api.snapshot import CONTENT_BOUND, MANAGED_BY
from tonnage.kubernetes.client import kubeconfig
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.kubernetes.client.kubeconfig import Access
from tonnage.kubernetes.client.transport import Request, Response
from tonnage.node.agent import NodeAgent
from tonnage.node.config.agent import AgentConfig
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.node_driver import NodeDriver

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

    def written(self) -> list[tuple[str, str]]:
        """Method and path of each write. One that met another writer, such as the PV binder, wrote nothing."""
        return [(method, path) for method, path, code, _ in self.answers if method != "GET" and code != 409]

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
    file = plane.write_kubeconfig(folder / "kubeconfig", nodes.tokens[name])
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

    rejected = [answer for answer in answers if answer[2] in (401, 403)]
    assert not rejected
    writes = [(method, path) for method, path, _, _ in answers if method != "GET"]
    assert {m for m, _ in writes} == {"POST", "PATCH", "DELETE"}
    assert [path for _, path in writes if path.endswith(f"/nodes/{node}")]
    tell(f"least power: an agent with its own token, {len(writes)} writes, none rejected")
    told = {e["reason"] for e in plane.get("-n", NAMESPACE, "events")["items"] if e["source"].get("host") == node}
    assert {"ProvisioningSucceeded", "Rescheduled"} <= told


async def test_snapshots_are_taken_made_restored_and_deleted(nodes: Nodes, tmp_path: Path) -> None:
    """With the agent's own token. The controller's part is played by the test."""
    plane, node, group = nodes.plane, nodes.name(2), snapshots.GROUP
    await asyncio.to_thread(snapshots.serve, plane)
    head = {"apiVersion": f"{group}/v1", "kind": "VolumeSnapshot"}

    def content() -> Any:
        return plane.send("GET", f"{snapshots.CONTENTS}/snapcontent").body

    def is_bound(name: str) -> bool:
        return bool(plane.send("GET", f"{CLAIMS}/{name}").body["status"].get("phase") == "Bound")

    def make() -> None:
        source = {"source": {"persistentVolumeClaimName": "source"}, "volumeSnapshotClassName": "daily"}
        made = plane.create({**head, "metadata": {"name": "monday", "namespace": NAMESPACE}, "spec": source})
        volume = plane.send("GET", f"{CLAIMS}/source").body["spec"]["volumeName"]
        ref = {**head, "namespace": NAMESPACE, "name": "monday", "uid": made["metadata"]["uid"]}
        kept = {"driver": names.DRIVER, "deletionPolicy": "Delete"}
        one = {"apiVersion": f"{group}/v1", "metadata": {"name": "daily"}}
        plane.create({**one, "kind": "VolumeSnapshotClass", **kept})
        spec = {**kept, "source": {"volumeHandle": f"scratch/{volume}"}, "volumeSnapshotRef": ref}
        meta = {"name": "snapcontent", "finalizers": [CONTENT_BOUND]}
        plane.create(
            {
                **one,
                "kind": "VolumeSnapshotContent",
                "metadata": meta,
                "spec": {**spec, "volumeSnapshotClassName": "daily"},
            }
        )

    def bind() -> None:
        status = {"readyToUse": True, "boundVolumeSnapshotContentName": "snapcontent"}
        path = f"/apis/{group}/v1/namespaces/{NAMESPACE}/volumesnapshots/monday/status"
        assert plane.send("PATCH", path, {"status": status}).status == 200

    def delete() -> None:
        plane.kubectl("delete", "volumesnapshots.snapshot.storage.k8s.io", "-n", NAMESPACE, "monday")
        plane.send("DELETE", f"{snapshots.CONTENTS}/snapcontent")

    async with agent(nodes, 2, tmp_path) as (transport, pool):
        await asyncio.to_thread(nodes.claim, "source", node)
        await eventually(nodes, "the claim is bound", lambda: is_bound("source"))
        await asyncio.to_thread(make)
        await eventually(nodes, "the snapshot is ready", lambda: content().get("status", {}).get("readyToUse") is True)
        assert (await asyncio.to_thread(content))["metadata"]["labels"][MANAGED_BY] == node
        await asyncio.to_thread(bind)
        source = {"apiGroup": group, "kind": "VolumeSnapshot", "name": "monday"}
        await asyncio.to_thread(nodes.claim, "restored", node, dataSource=source)
        await eventually(nodes, "the claim is restored", lambda: is_bound("restored"))
        assert len(await pool.snapshots.list()) == 1
        await asyncio.to_thread(delete)
        await eventually(nodes, "the content is gone", lambda: content().get("code") == 404)
        assert await pool.snapshots.list() == []
        for name in ("source", "restored"):
            await asyncio.to_thread(plane.send, "DELETE", f"{CLAIMS}/{name}")
        await eventually(
            nodes, "the volumes are gone",
            lambda: not plane.get("pv", "-l", f"{names.NODE_LABEL}={node}")["items"],
        )  # fmt: skip
    assert not [answer for answer in transport.answers if answer[2] in (401, 403)]
    ours = [(method, path) for method, path in transport.written() if group in path]
    path = f"{snapshots.CONTENTS}/snapcontent"
    assert ours == [("PATCH", path), ("PATCH", f"{path}/status"), ("PATCH", path)], "taken, told, let go"
    await asyncio.to_thread(plane.kubectl, "delete", "volumesnapshotclasses.snapshot.storage.k8s.io", "daily")


@pytest.mark.since("1.36")  # claims are labelled by the policy; the kind is served from 1.34 on
async def test_attributes_are_had_changed_and_rejected(
    nodes: Nodes, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """A VolumeAttributesClass at creation, another one later, one that cannot be, and back; none of it rejected."""
    plane, classes = nodes.plane, "/apis/storage.k8s.io/v1/volumeattributesclasses"
    path = f"{CLAIMS}/tuned"

    def make(name: str, **parameters: str) -> None:
        body = {"metadata": {"name": name}, "driverName": names.DRIVER, "parameters": parameters}
        assert plane.send("POST", classes, body).status == 201

    def ask(name: str) -> None:
        assert plane.send("PATCH", path, {"spec": {"volumeAttributesClassName": name}}).status == 200

    def status() -> Any:
        return plane.send("GET", path).body["status"]

    def has(name: str) -> bool:
        claim = plane.send("GET", path).body
        found = claim["status"]
        volume = plane.send("GET", f"/api/v1/persistentvolumes/{claim['spec'].get('volumeName')}")
        on_volume = volume.body.get("spec", {}).get("volumeAttributesClassName")
        is_open = "modifyVolumeStatus" in found or changes(claim)
        return found.get("currentVolumeAttributesClassName") == on_volume == name and not is_open

    for name, value in (("e2e-zero", "zero"), ("e2e-shred", "shred")):
        await asyncio.to_thread(make, name, erase=value)
    await asyncio.to_thread(make, "e2e-bad", colour="red")
    try:
        async with agent(nodes, 1, tmp_path) as (transport, pool):
            await asyncio.to_thread(nodes.claim, "tuned", nodes.name(1), volumeAttributesClassName="e2e-zero")
            await eventually(nodes, "it is made with its class", lambda: has("e2e-zero"))
            transport.answers.clear()
            await asyncio.to_thread(ask, "e2e-shred")
            await eventually(nodes, "it has another class", lambda: has("e2e-shred"))
            writes = [
                p
                for method, p in transport.written()
                if method == "PATCH" and "/events" not in p and not p.endswith("/tuned")
            ]
            (volume,) = await pool.list()
            assert volume.effective["erase"] == "shred"
            await asyncio.to_thread(ask, "e2e-bad")
            await eventually(
                nodes, "it is infeasible", lambda: status().get("modifyVolumeStatus", {}).get("status") == "Infeasible"
            )
            await asyncio.to_thread(ask, "e2e-shred")
            await eventually(nodes, "it is as before", lambda: has("e2e-shred"))
            await asyncio.to_thread(plane.send, "DELETE", path)
            await eventually(nodes, "it is gone", lambda: plane.send("GET", path).status == 404)
            await eventually(
                nodes, "its volume is gone",
                lambda: not plane.get("pv", "-l", f"{names.NODE_LABEL}={nodes.name(1)}")["items"],
            )  # fmt: skip
            rejected = [answer for answer in transport.answers if answer[2] in (401, 403)]
    finally:
        for name in ("e2e-zero", "e2e-shred", "e2e-bad"):
            await asyncio.to_thread(plane.send, "DELETE", f"{classes}/{name}")
    assert not rejected
    assert len(writes) == 2, writes
    tell(f"attributes: a change of a volume's class takes {len(writes)} writes of the agent")


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


def _heard(whose: str) -> float:
    """Claims and volumes that the agents of this process have received; whose: own, or other (of other nodes)."""
    return sum(
        float(metrics.RECEIVED.labels(kind.plural, whose)._value.get()) for kind in (kinds.CLAIMS, kinds.VOLUMES)
    )


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
    """Four volumes come and go while a hundred other agents watch: not one of these receives any of it.

    The API server's own counter of watch events cannot show it: it has each watch's bookmark of every minute, too.
    """
    plane, volumes, own, other = nodes.plane, 4, _heard("own"), _heard("other")

    def is_gone(path: str) -> bool:
        return plane.send("GET", path).status == 404

    def is_bound(path: str) -> bool:
        return bool(plane.send("GET", path).body["status"].get("phase") == "Bound")

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(agent(nodes, 1, tmp_path))
        others = [await stack.enter_async_context(_watcher(plane, f"watcher-{number}")) for number in range(100)]
        await eventually(nodes, "watches are open", lambda: not any(watcher.unsynced() for watcher in others))
        for number in range(volumes):
            claim = f"{CLAIMS}/traffic-{number}"
            made = await asyncio.to_thread(nodes.claim, f"traffic-{number}", nodes.name(1))
            await eventually(nodes, "bound", partial(is_bound, claim))
            await asyncio.to_thread(plane.send, "DELETE", claim)
            await eventually(
                nodes, "gone", partial(is_gone, f"/api/v1/persistentvolumes/pvc-{made['metadata']['uid']}")
            )
    tell(f"scoping: claims and volumes that 101 agents receive per volume's life: {(_heard('own') - own) / volumes}")
    assert _heard("own") > own
    assert _heard("other") == other


async def test_a_claim_grows_in_two_writes(nodes: Nodes, tmp_path: Path, tell: Callable[[str], None]) -> None:
    """What fits, what does not, and the request lowered again; with the agent's own token, none of it rejected."""
    plane, path = nodes.plane, f"{CLAIMS}/larger"
    body = {"metadata": {"name": "e2e-grows"}, "provisioner": names.DRIVER, "allowVolumeExpansion": True}
    assert plane.send("POST", "/apis/storage.k8s.io/v1/storageclasses", body).status == 201

    def ask(size: str) -> None:
        assert plane.send("PATCH", path, {"spec": {"resources": {"requests": {"storage": size}}}}).status == 200

    def status() -> Any:
        return plane.send("GET", path).body["status"]

    def has(size: str) -> bool:
        claim = plane.send("GET", path).body
        volume = plane.send("GET", f"/api/v1/persistentvolumes/{claim['spec'].get('volumeName')}").body
        sizes = {
            claim["status"].get("capacity", {}).get("storage"),
            volume.get("spec", {}).get("capacity", {}).get("storage"),
        }
        return sizes == {size} and not changes(claim)

    try:
        async with agent(nodes, 1, tmp_path) as (transport, pool):
            await asyncio.to_thread(nodes.claim, "larger", nodes.name(1), storageClassName="e2e-grows")
            await eventually(nodes, "it is made", lambda: has("1Gi"))
            transport.answers.clear()  # the answer to the claim's binding may still come: it is left out below
            await asyncio.to_thread(ask, "2Gi")
            await eventually(nodes, "it has grown", lambda: has("2Gi"))
            writes = [
                p for method, p in transport.written() if method == "PATCH" and "/persistentvolume" in p and p != path
            ]
            await asyncio.to_thread(ask, "1Pi")
            infeasible = {"storage": "ControllerResizeInfeasible"}
            await eventually(nodes, "1Pi is rejected", lambda: status().get("allocatedResourceStatuses") == infeasible)
            await asyncio.to_thread(ask, "3Gi")
            await eventually(nodes, "it has grown again", lambda: has("3Gi"))
            (volume,) = await pool.list()
            assert volume.size == 3 << 30
            await asyncio.to_thread(plane.send, "DELETE", path)
            await eventually(
                nodes, "its volume is gone",
                lambda: not plane.get("pv", "-l", f"{names.NODE_LABEL}={nodes.name(1)}")["items"],
            )  # fmt: skip
            rejected = [answer for answer in transport.answers if answer[2] in (401, 403)]
    finally:
        await asyncio.to_thread(plane.send, "DELETE", "/apis/storage.k8s.io/v1/storageclasses/e2e-grows")
    assert not rejected
    assert len(writes) == 2, writes
    tell(f"growth: a larger volume takes {len(writes)} writes of the agent")
