"""`tonnage controller`: of several one works, another takes over, and what it does is what its loops do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tonnage.base.observe import metrics
from tonnage.controller.app import controller_process
from tonnage.controller.config import ControllerConfig
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.leader_process import ElectedProcess
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.simulate.virtual_time import LoopClock

pytestmark = pytest.mark.virtual_time
_LIMIT = 60.0
"""Virtual seconds: longer than a Lease."""


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = ApiServer(Store(extractor()))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def kube(server: ApiServer) -> Client:
    client = Client(server.transport("system:admin"))
    await client.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    body = {"metadata": {"name": "late"}, "provisioner": names.DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(kinds.STORAGE_CLASSES, body)
    return client


@pytest.fixture
async def replica(server: ApiServer) -> AsyncIterator[Callable[..., Awaitable[ElectedProcess]]]:
    """replica(identity, metrics=...): one that runs."""
    made: list[ElectedProcess] = []

    async def make(identity: str, **more: Any) -> ElectedProcess:
        client = Client(server.transport("system:admin"))
        process = controller_process(ControllerConfig(identity, **more), client, clock=LoopClock())
        made.append(process)
        await process.start()
        return process

    yield make
    for process in made:
        await process.stop()


async def _until(question: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_LIMIT):
        while not await question():
            await asyncio.sleep(0.01)


async def _leader(kube: Client) -> str:
    return (await kube.get(kinds.LEASES, names.CONTROLLER_LEASE, names.SYSTEM_NAMESPACE)).spec.holder_identity or ""


async def _sent(kube: Client, name: str) -> None:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "late",
    }
    meta = {"name": name, "annotations": {names.SELECTED_NODE: "n1"}}
    await kube.create(kinds.CLAIMS, {"metadata": meta, "spec": spec}, "default")


async def _labelled(kube: Client, name: str) -> bool:
    claim = await kube.get(kinds.CLAIMS, name, "default")
    return claim.metadata.labels.get(names.NODE_LABEL) == "n1"


async def test_one_works_and_when_it_stops_the_other_does(kube: Client, replica: Any) -> None:
    first = await replica("one")
    await _sent(kube, "a")
    await _until(lambda: _labelled(kube, "a"))
    await replica("two")
    await asyncio.sleep(20)
    assert await _leader(kube) == "one"
    await first.stop()
    began = asyncio.get_running_loop().time()
    await _sent(kube, "b")
    await _until(lambda: _labelled(kube, "b"))
    assert await _leader(kube) == "two"
    assert asyncio.get_running_loop().time() - began < 10  # the Lease was given up, nobody waited for it to run out


async def test_a_leader_that_is_killed_is_followed(kube: Client, replica: Any, server: ApiServer) -> None:
    first = await replica("one")
    await _sent(kube, "a")
    await _until(lambda: _labelled(kube, "a"))

    async def nothing() -> None:
        """A killed process gives nothing up."""

    first._election._release = nothing
    await first._tasks.close()
    await replica("two")
    await _sent(kube, "b")
    await _until(lambda: _labelled(kube, "b"))
    assert await _leader(kube) == "two"


async def test_only_the_leader_watches(kube: Client, replica: Any, server: ApiServer) -> None:
    await replica("one")
    await _sent(kube, "a")
    await _until(lambda: _labelled(kube, "a"))
    assert metrics.LEADS._value.get() == 1
    watchers = metrics.API_WATCHERS._value.get()
    await replica("two")
    await asyncio.sleep(30)
    assert metrics.API_WATCHERS._value.get() == watchers


async def test_all_duties_are_done(kube: Client, replica: Any) -> None:
    """One sign of each: that they are wired, with our drivers and our namespace."""
    for name in ("n1", "lost"):
        labels = {names.TOPOLOGY_NODE: name}
        await kube.create(kinds.NODES, {"metadata": {"name": name, "labels": labels}})
    await kube.create(kinds.CSI_DRIVERS, {"metadata": {"name": names.DRIVER}, "spec": {"storageCapacity": True}})
    body = {"metadata": {"name": "now"}, "provisioner": names.DRIVER, "volumeBindingMode": "Immediate"}
    await kube.create(kinds.STORAGE_CLASSES, body)
    published = {
        "metadata": {
            "name": "left",
            "labels": {
                names.NODE_LABEL: "never",
                names.CAPACITY_DRIVER: names.DRIVER,
                names.CAPACITY_MANAGED_BY: "tonnage-never",
            },
        },
        "storageClassName": "now",
        "capacity": "1Gi",
    }
    await kube.create(kinds.CAPACITIES, published, names.SYSTEM_NAMESPACE)
    published["metadata"] = {"name": "there"}
    published["nodeTopology"] = {"matchLabels": {names.TOPOLOGY_NODE: "n1"}}
    await kube.create(kinds.CAPACITIES, {**published, "capacity": "5Gi"}, names.SYSTEM_NAMESPACE)
    await replica("one")
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    for name, of in (("now", "now"), ("a", "late"), ("b", "late"), ("hand", "late")):
        meta = {"metadata": {"name": name}, "spec": {**spec, "storageClassName": of}}
        await kube.create(kinds.CLAIMS, meta, "default")
    await _pod(kube, "two", ["a", "b"])
    await _pod(kube, "placed", ["hand"], nodeName="n1")

    async def done() -> bool:
        notes = {c.metadata.name: c.metadata.annotations for c in (await kube.list(kinds.CLAIMS)).items}
        left = [c.metadata.name for c in (await kube.list(kinds.CAPACITIES)).items]
        sent = all(notes[name].get(names.SELECTED_NODE) == "n1" for name in ("now", "hand"))
        return sent and notes["a"].get(names.CLAIM_GROUP) == "b" and left == ["there"]

    await _until(done)


async def _pod(kube: Client, name: str, claims: list[str], **spec: Any) -> None:
    volumes = [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]
    body = {"containers": [{"name": "main", "image": "none"}], "volumes": volumes, **spec}
    await kube.create(kinds.PODS, {"metadata": {"name": name}, "spec": body}, "default")
