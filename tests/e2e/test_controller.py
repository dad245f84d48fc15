"""`tonnage controller` on a real control plane, two replicas with nothing but their own account's token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.control_plane import ControlPlane
from tests.e2e.replicas import Replicas

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client import kubeconfig
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.node.agent import NodeAgent
from tonnage.node.config.agent import AgentConfig
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.node_driver import NodeDriver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
NAMESPACE, NODE = "controller", "controller-1"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
OTHER, OTHER_KEY = "csi.other.example.com", "topology.other.example.com/node"
"""A driver that the policy of the installation does not know, as in a cluster without such policies."""
LONG = ".".join(["a" * 43, "b" * 60, "c" * 60, "d" * 60])


@pytest.fixture(scope="module")
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    """With classes of ours: one of the other driver, one whose volumes are released."""
    installed.kubectl("create", "namespace", NAMESPACE)
    late = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "volumeBindingMode": "WaitForFirstConsumer"}
    released = {names.ON_NODE_GONE: "release-after:1h"}
    installed.apply(
        {**late, "metadata": {"name": "other"}, "provisioner": OTHER},
        {**late, "metadata": {"name": "released"}, "provisioner": names.DRIVER, "parameters": released},
    )
    yield installed
    installed.kubectl("delete", "storageclass", "other", "released")
    installed.kubectl("delete", "node", NODE, "controller-2", "controller-3", "--ignore-not-found")
    installed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def replicas(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    """Two, of which "one" leads."""
    made = Replicas(plane, tmp_path_factory.mktemp("replicas"), "controller", "--driver", f"{OTHER}={OTHER_KEY}")
    made.start("one")
    try:
        plane.until("one leads", lambda: made.leader() == "one")
        made.start("two")
        yield made
    finally:
        made.end()


def claim(plane: ControlPlane, name: str, storage_class: str, *, node: str = "") -> Any:
    notes = {names.SELECTED_NODE: node} if node else {}
    return plane.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": notes},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": storage_class,
            },
        }
    )


def pod(plane: ControlPlane, name: str, *claims: str, **spec: Any) -> None:
    volumes = [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}}
    containers = [{"name": "c", "image": "none.invalid/none"}]
    plane.create({**body, "spec": {"containers": containers, "volumes": volumes, **spec}})


def node(plane: ControlPlane, name: str) -> None:
    labels = {names.TOPOLOGY_NODE: name} if len(name) <= names.MAX_LABEL_VALUE else {}
    plane.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})


def metadata(plane: ControlPlane, name: str) -> Any:
    return plane.send("GET", f"{CLAIMS}/{name}").body["metadata"]


def label(plane: ControlPlane, name: str) -> Any:
    return metadata(plane, name).get("labels", {}).get(names.NODE_LABEL)


def phase(plane: ControlPlane, path: str) -> str:
    found = plane.send("GET", path)
    return str(found.body["status"].get("phase", "")) if found.status == 200 else ""


def test_claims_that_no_policy_labels_are_labelled(plane: ControlPlane, replicas: Replicas) -> None:
    claim(plane, "fallback", "other")
    plane.send("PATCH", f"{CLAIMS}/fallback", {"metadata": {"annotations": {names.SELECTED_NODE: "n7"}}})
    plane.until("the claim is labelled", lambda: label(plane, "fallback") == "n7")
    plane.send("PATCH", f"{CLAIMS}/fallback", {"metadata": {"annotations": {names.SELECTED_NODE: None}}})
    plane.until("the label is off", lambda: label(plane, "fallback") is None)


def test_a_long_name_is_hashed_and_the_policy_leaves_it(plane: ControlPlane, replicas: Replicas) -> None:
    claim(plane, "long", names.SCRATCH_CLASS, node=LONG)
    wanted = names.label_value(LONG)
    plane.until("the claim is labelled", lambda: label(plane, "long") == wanted)
    plane.send("PATCH", f"{CLAIMS}/long", {"metadata": {"annotations": {"people/own": "x"}}})
    assert label(plane, "long") == wanted


def test_where_the_policy_works_nothing_is_written(plane: ControlPlane, replicas: Replicas) -> None:
    claim(plane, "quiet", names.SCRATCH_CLASS, node="n7")
    assert label(plane, "quiet") == "n7"
    claim(plane, "later", "other", node="n7")  # once this one is labelled, that one has been looked at
    plane.until("the later claim is labelled", lambda: label(plane, "later") == "n7")
    writers = [entry["manager"] for entry in _fields(plane, "quiet")]
    assert not [name for name in writers if "tonnage" in name]
    assert [name for name in [e["manager"] for e in _fields(plane, "later")] if "tonnage" in name]


def _fields(plane: ControlPlane, name: str) -> Any:
    return plane.get("-n", NAMESPACE, "pvc", name, "--show-managed-fields")["metadata"]["managedFields"]


def test_claims_of_one_pod_name_one_another(plane: ControlPlane, replicas: Replicas) -> None:
    for name in ("left", "right"):
        claim(plane, name, names.SCRATCH_CLASS)

    def notes() -> list[str]:
        return [metadata(plane, n).get("annotations", {}).get(names.CLAIM_GROUP, "") for n in ("left", "right")]

    pod(plane, "both", "left", "right", schedulerName="nobody")
    plane.until("they name one another", lambda: notes() == ["right", "left"])
    plane.kubectl("-n", NAMESPACE, "delete", "pod", "both", "--grace-period=0", "--force")
    plane.until("the notes are off", lambda: notes() == ["", ""])


def test_a_pod_whose_node_was_set_by_hand(plane: ControlPlane, replicas: Replicas) -> None:
    node(plane, NODE)
    claim(plane, "hand", names.SCRATCH_CLASS)
    pod(plane, "placed", "hand", nodeName=NODE, tolerations=[{"operator": "Exists"}])
    plane.until("the claim is sent", lambda: metadata(plane, "hand")["annotations"].get(names.SELECTED_NODE) == NODE)
    plane.kubectl("-n", NAMESPACE, "delete", "pod", "placed", "--grace-period=0", "--force")
    plane.kubectl("-n", NAMESPACE, "delete", "pvc", "hand")
    plane.kubectl("delete", "node", NODE)


@asynccontextmanager
async def _agent(plane: ControlPlane, folder: Path, pool: FakePool, *, watches: str = "label") -> Any:
    driver = NodeDriver([pool], node_name=NODE, kubelet=folder, sockets=folder)
    await driver.start()
    transport = HttpTransport(kubeconfig.load(plane.kubeconfig))
    agent = NodeAgent(
        Client(transport),
        AgentConfig(
            NODE,
            scope=watches,
            capacity="exact",
            endpoints=tuple(driver.endpoints),
            cluster_uid=plane.get("namespace", "kube-system")["metadata"]["uid"],
            poll=0,
            sweep_every=0,
        ),
    )
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        await agent.stop()
        await asyncio.gather(task, return_exceptions=True)
        await driver.stop()
        await transport.close()


async def test_a_gone_nodes_volume_is_released_and_erased_when_the_node_returns(
    plane: ControlPlane, replicas: Replicas, tmp_path: Path
) -> None:
    pool = FakePool("scratch", 10 << 30, directories=False)

    async def until(what: str, holds: Callable[[], bool]) -> None:
        await asyncio.to_thread(plane.until, what, holds)

    node(plane, "controller-2")  # where no node is left at all, nothing is released
    node(plane, NODE)
    async with _agent(plane, tmp_path, pool):
        volume = f"pvc-{claim(plane, 'data', 'released', node=NODE)['metadata']['uid']}"
        path = f"/api/v1/persistentvolumes/{volume}"
        await until("both are bound", lambda: {phase(plane, path), phase(plane, f"{CLAIMS}/data")} == {"Bound"})
    plane.kubectl("delete", "node", NODE)

    await until("the time is noted", lambda: _gone_since(plane, path) is not None)
    assert plane.send("GET", f"{CLAIMS}/data").status == 200
    long_ago = {"metadata": {"annotations": {names.NODE_GONE_SINCE: "2026-01-01T00:00:00Z"}}}
    plane.send("PATCH", path, long_ago)
    await until("the claim is released", lambda: plane.send("GET", f"{CLAIMS}/data").status == 404)
    await until("so is the volume", lambda: phase(plane, path) == "Released")
    assert [v.name for v in await pool.list()] == [volume]  # remembered, by its PersistentVolume

    node(plane, NODE)
    async with _agent(plane, tmp_path, pool):
        await until("the PersistentVolume is gone", lambda: plane.send("GET", path).status == 404)
    assert await pool.list() == []
    plane.kubectl("delete", "node", NODE)


async def test_an_agent_that_watches_all_claims_keeps_its_own(
    plane: ControlPlane, replicas: Replicas, tmp_path: Path
) -> None:
    node(plane, NODE)
    pool = FakePool("scratch", 10 << 30, directories=False)
    async with _agent(plane, tmp_path, pool, watches="all") as agent:
        claim(plane, "all-theirs", names.SCRATCH_CLASS, node="n7")
        claim(plane, "all-mine", names.SCRATCH_CLASS, node=NODE)
        await asyncio.to_thread(plane.until, "mine is bound", lambda: phase(plane, f"{CLAIMS}/all-mine") == "Bound")
        claims = agent._informers.of(kinds.CLAIMS, labels=agent.scope.selector)
        assert [c.metadata.name for c in claims.cache] == ["all-mine"]
        assert claims.others > 0
    plane.kubectl("-n", NAMESPACE, "delete", "pvc", "all-mine", "--wait=false")
    plane.kubectl("delete", "node", NODE)


def _stateful_set(plane: ControlPlane) -> None:
    """One replica with a volume of class "released"; nodes without a kubelet get no pod by themselves."""
    template = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "released",
        },
    }
    containers = [{"name": "c", "image": "none.invalid/none", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]
    plane.create(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "web", "namespace": NAMESPACE},
            "spec": {
                "selector": {"matchLabels": {"app": "web"}},
                "serviceName": "web",
                "replicas": 1,
                "volumeClaimTemplates": [template],
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": containers, "terminationGracePeriodSeconds": 0},
                },
            },
        }
    )


async def test_a_stateful_sets_pod_gets_a_new_volume_when_its_node_is_lost(
    plane: ControlPlane, replicas: Replicas, tmp_path: Path
) -> None:
    pool = FakePool("scratch", 10 << 30, directories=False)
    path, web = f"{CLAIMS}/data-web-0", f"/api/v1/namespaces/{NAMESPACE}/pods/web-0"

    async def until(what: str, holds: Callable[[], bool]) -> None:
        await asyncio.to_thread(lambda: plane.until(what, holds, seconds=300))

    def uid(of: str) -> str:
        found = plane.send("GET", of)
        return str(found.body["metadata"]["uid"]) if found.status == 200 else ""

    node(plane, "controller-3")  # stays
    node(plane, NODE)
    _stateful_set(plane)
    async with _agent(plane, tmp_path, pool):
        await until("pod and claim are there", lambda: bool(uid(path) and uid(web)))
        plane.send("PATCH", path, {"metadata": {"annotations": {names.SELECTED_NODE: NODE}}})
        await until("bound", lambda: phase(plane, path) == "Bound")
    claim_uid, pod_uid = uid(path), uid(web)
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web-0"}, "target": target}
    assert plane.send("POST", f"{web}/binding", binding).status == 201

    out = [{"key": names.OUT_OF_SERVICE_TAINT, "value": "nodeshutdown", "effect": "NoExecute"}]
    plane.send("PATCH", f"/api/v1/nodes/{NODE}", {"spec": {"taints": out}})
    volume = f"/api/v1/persistentvolumes/pvc-{claim_uid}"
    await until("the time is noted", lambda: _gone_since(plane, volume) is not None)
    plane.send("PATCH", volume, {"metadata": {"annotations": {names.NODE_GONE_SINCE: "2026-01-01T00:00:00Z"}}})
    await until("another pod with another claim", lambda: uid(web) not in ("", pod_uid))
    await until("another claim", lambda: uid(path) not in ("", claim_uid))
    assert phase(plane, path) == "Pending"
    assert await pool.list() != []
    plane.kubectl("-n", NAMESPACE, "delete", "statefulset", "web")
    plane.kubectl("delete", "node", NODE, "controller-3")


def _gone_since(plane: ControlPlane, path: str) -> Any:
    return plane.send("GET", path).body["metadata"]["annotations"].get(names.NODE_GONE_SINCE)


def test_when_the_leader_is_killed_the_other_goes_on(plane: ControlPlane, replicas: Replicas) -> None:
    assert replicas.leader() == "one"
    replicas.running["one"].kill()
    claim(plane, "after", "other", node="n7")
    plane.until("the other has taken over", lambda: label(plane, "after") == "n7")
    assert replicas.leader() == "two"


def test_stopped_it_leaves_at_once_and_was_rejected_nothing(plane: ControlPlane, replicas: Replicas) -> None:
    replicas.running["two"].terminate()
    assert replicas.running["two"].wait(timeout=120) == 0
    assert replicas.leader() == ""
    for name in ("one", "two"):
        text = replicas.log(name).read_text()
        assert "leading lease" in text
        assert "forbidden" not in text.lower()
        assert "Traceback" not in text
