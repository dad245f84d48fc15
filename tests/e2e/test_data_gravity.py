"""Copies of claims under the stock scheduler, which does not look at sources: the controller steers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.e2e import inprocess
from tests.e2e import snapshot_attempts as snapshots
from tests.e2e.control_plane import ControlPlane
from tests.e2e.inprocess import add_node, agent_on, node_of, pod, register, until
from tests.e2e.replicas import Replicas

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.snapshot import CONTENT_BOUND, MANAGED_BY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
NAMESPACE = "gravity"
NODES = ("gravity-1", "gravity-2", "gravity-3")
COPIES = 6


@pytest.fixture(scope="module")
def plane(installed: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With three nodes and a controller."""
    installed.kubectl("create", "namespace", NAMESPACE)
    snapshots.serve(installed)
    for node in NODES:
        add_node(installed, node)
        register(installed, node)
    replicas = Replicas(installed, tmp_path_factory.mktemp("controller"), "controller")
    replicas.start("one")
    try:
        installed.until("it leads", lambda: replicas.leader() == "one", seconds=inprocess.LONG)
        yield installed
    finally:
        replicas.end()
        inprocess.remove(installed, NAMESPACE, *NODES)


@pytest.fixture
async def agents(plane: ControlPlane) -> AsyncIterator[None]:
    """Of all nodes, with 20Gi each."""
    async with AsyncExitStack() as stack:
        for node in NODES:
            await stack.enter_async_context(agent_on(plane, node, room=20 << 30))
        yield
        plane.kubectl("-n", NAMESPACE, "delete", "pods", "--all", "--grace-period=0", "--force")
        plane.kubectl("-n", NAMESPACE, "delete", "pvc", "--all", "--wait=false")
        path = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
        await until(plane, "all claims are gone", lambda: not plane.send("GET", path).body["items"])


def claim(name: str, *, source: str = "", snapshot: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": names.SCRATCH_CLASS,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    if source:
        spec["dataSource"] = {"kind": "PersistentVolumeClaim", "name": source}
    if snapshot:
        spec["dataSource"] = {"apiGroup": snapshots.GROUP, "kind": "VolumeSnapshot", "name": snapshot}
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def using(*claims: str) -> list[dict[str, Any]]:
    return [{"persistentVolumeClaim": {"claimName": name}} for name in claims]


async def test_pods_with_copies_are_placed_where_the_source_is(plane: ControlPlane, agents: None) -> None:
    plane.create(claim("source"))
    plane.create(pod("first", NAMESPACE, *using("source")))
    await until(plane, "the source is bound", lambda: bool(node_of(plane, NAMESPACE, "first")))
    home = node_of(plane, NAMESPACE, "first")

    for n in range(COPIES):
        plane.apply(claim(f"copy-{n}", source="source"), claim(f"plain-{n}"))
        plane.create(pod(f"p-{n}", NAMESPACE, *using(f"plain-{n}", f"copy-{n}")))

    def placed() -> list[str]:
        return [node_of(plane, NAMESPACE, f"p-{n}") for n in range(COPIES)]

    await until(plane, "all are placed", lambda: all(placed()))
    assert set(placed()) == {home}


async def test_pods_with_restored_claims_are_placed_where_the_snapshot_is(plane: ControlPlane, agents: None) -> None:
    """No content has a label: the agent that has the volume takes it."""
    plane.create(claim("origin"))
    plane.create(pod("first-of-all", NAMESPACE, *using("origin")))
    await until(plane, "the source is bound", lambda: bool(node_of(plane, NAMESPACE, "first-of-all")))
    home = node_of(plane, NAMESPACE, "first-of-all")
    volume = plane.get("-n", NAMESPACE, "pvc", "origin")["spec"]["volumeName"]
    handle = plane.get("pv", volume)["spec"]["csi"]["volumeHandle"]
    head, path = {"apiVersion": f"{snapshots.GROUP}/v1"}, f"{snapshots.CONTENTS}/gravity"
    meta: dict[str, Any] = {"name": "monday", "namespace": NAMESPACE}
    source = {"source": {"persistentVolumeClaimName": "origin"}}
    made = plane.create({**head, "kind": "VolumeSnapshot", "metadata": meta, "spec": source})
    ref = {**head, "kind": "VolumeSnapshot", "namespace": NAMESPACE, "name": "monday", "uid": made["metadata"]["uid"]}
    spec = {
        "driver": names.DRIVER,
        "deletionPolicy": "Delete",
        "volumeSnapshotRef": ref,
        "source": {"volumeHandle": handle},
    }
    kept = {"name": "gravity", "finalizers": [CONTENT_BOUND]}
    plane.create({**head, "kind": "VolumeSnapshotContent", "metadata": kept, "spec": spec})

    def content() -> Any:
        return plane.send("GET", path).body

    await until(plane, "the snapshot is ready", lambda: content().get("status", {}).get("readyToUse") is True)
    assert content()["metadata"]["labels"][MANAGED_BY] == home
    status = {"readyToUse": True, "boundVolumeSnapshotContentName": "gravity"}
    where = f"/apis/{snapshots.GROUP}/v1/namespaces/{NAMESPACE}/volumesnapshots/monday/status"
    assert plane.send("PATCH", where, {"status": status}).status == 200

    for n in range(COPIES):
        plane.apply(claim(f"restored-{n}", snapshot="monday"), claim(f"beside-{n}"))
        plane.create(pod(f"r-{n}", NAMESPACE, *using(f"beside-{n}", f"restored-{n}")))

    def placed() -> list[str]:
        return [node_of(plane, NAMESPACE, f"r-{n}") for n in range(COPIES)]

    await until(plane, "all are placed", lambda: all(placed()))
    assert set(placed()) == {home}
    plane.kubectl("delete", "volumesnapshots.snapshot.storage.k8s.io", "-n", NAMESPACE, "monday")
    plane.send("DELETE", path)
    await until(plane, "the content is gone", lambda: content().get("code") == 404)
