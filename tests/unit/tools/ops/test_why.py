"""Reading a cluster for an explanation: what pods on nodes take is counted, and nothing is written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api.kinds import (
    CAPACITIES,
    CLAIMS,
    CSI_DRIVERS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    STORAGE_CLASSES,
)
from tonnage.kubernetes.api.names import DRIVER, TOPOLOGY_NODE, WAIT_FOR_FIRST_CONSUMER
from tonnage.kubernetes.client.client import Client
from tonnage.tools.ops.cluster_snapshot import Published
from tonnage.tools.ops.why import why
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store


def pod(name: str, *, cpu: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "any", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


@pytest.fixture
async def kube() -> AsyncIterator[Client]:
    """An API server with a node of 4 cpus, of which a pod has 3."""
    server = ApiServer(Store(extractor()))
    await server.start()
    client = Client(server.transport("system:admin"))
    status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}
    await client.create(NODES, {"metadata": {"name": "n", "labels": {TOPOLOGY_NODE: "n"}}})
    await client.patch(NODES, "n", {"status": status}, subresource="status")
    await client.create(PODS, pod("there", cpu="3", nodeName="n"), "default")
    yield client
    await server.stop()


async def test_pods_on_nodes_are_counted_until_they_have_ended(kube: Client) -> None:
    await kube.create(PODS, pod("p", cpu="2"), "default")
    before = await kube.revision(PODS)

    found = await why(kube, "p", "default", clock=RealClock())
    assert found.nodes[0].lacks == ["Insufficient cpu: asks 2, free 1 of 4"]
    assert found.read.startswith("20")
    assert await kube.revision(PODS) == before

    await kube.patch(PODS, "there", {"status": {"phase": "Succeeded"}}, "default", subresource="status")
    assert (await why(kube, "p", "default", clock=RealClock())).nodes[0].fits


async def test_claims_and_capacity_are_read(kube: Client) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": "storage"}})
    await kube.create(CSI_DRIVERS, {"metadata": {"name": DRIVER}, "spec": {"storageCapacity": True}})
    late = {"metadata": {"name": "late"}, "provisioner": DRIVER, "volumeBindingMode": WAIT_FOR_FIRST_CONSUMER}
    await kube.create(STORAGE_CLASSES, late)
    topology = {"nodeTopology": {"matchLabels": {TOPOLOGY_NODE: "n"}}, "storageClassName": "late", "capacity": "1Gi"}
    await kube.create(CAPACITIES, {"metadata": {"name": "late-n"}, **topology}, "storage")
    await kube.create(PODS, pod("p", cpu="1", volumes=[_volume("c")]), "default")

    found = await why(kube, "p", "default", clock=RealClock())
    assert found.everywhere == ['persistentvolumeclaim "c" not found']
    await kube.create(CLAIMS, _claim("c", "2Gi"), "default")
    found = await why(kube, "p", "default", clock=RealClock())
    assert found.everywhere == []
    assert found.nodes[0].lacks[0].endswith("asks 2Gi, free 1Gi, largest 1Gi")


async def test_a_pod_that_is_not_there(kube: Client) -> None:
    with pytest.raises(ApiNotFoundError, match="nope"):
        await why(kube, "nope", "default", clock=RealClock())


def test_when_numbers_were_written() -> None:
    entries = [{"manager": "a", "time": "2026-01-01T00:00:00Z"}, {"manager": "b", "time": "2026-01-02T00:00:00Z"}, {}]
    assert msgspec.convert({"metadata": {"managedFields": entries}}, Published).written == "2026-01-02T00:00:00Z"
    assert Published().written == ""


def _volume(claim: str) -> dict[str, Any]:
    return {"name": "v", "persistentVolumeClaim": {"claimName": claim}}


def _claim(name: str, size: str) -> dict[str, Any]:
    spec = {"storageClassName": "late", "accessModes": ["ReadWriteOnce"]}
    return {"metadata": {"name": name}, "spec": {**spec, "resources": {"requests": {"storage": size}}}}


async def test_a_pod_that_does_not_start_on_its_node_has_the_last_warnings_about_it(kube: Client) -> None:
    """As `kubectl describe` has them, but for those of other pods and those that are no warnings."""
    assert (await why(kube, "there", "default", clock=RealClock())).said == []
    uid = (await kube.get(PODS, "there", "default")).metadata.uid
    for number, (about, kind) in enumerate([(uid, "Normal"), (uid, "Warning"), (uid, "Warning"), ("other", "Warning")]):
        event = {
            "metadata": {"name": f"e{number}"},
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "there", "uid": about},
            "type": kind,
            "reason": "FailedMount",
            "message": f"attribute {number}\n is unknown",
            "lastTimestamp": f"2026-01-01T00:00:0{9 - number}Z",
        }
        await kube.create(EVENTS, event, "default")
    found = await why(kube, "there", "default", clock=RealClock())
    assert [one.message for one in found.said] == ["attribute 2 is unknown", "attribute 1 is unknown"]
    assert found.todo.startswith("change what the last Event names")
    await kube.patch(PODS, "there", {"status": {"phase": "Running"}}, "default", subresource="status")
    assert (await why(kube, "there", "default", clock=RealClock())).said == []
