"""The scheduler, `why`, `doctor` and the start-up taint on a server that prints null for everything that is empty."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.unit.kubernetes.client.nulls import Nulls

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.config.agent import AgentConfig
from tonnage.node.startup_taint import StartupTaint
from tonnage.scheduler.app import SchedulerConfig, scheduler_process
from tonnage.tools.ops.doctor.finding import Level
from tonnage.tools.ops.doctor.run import examine
from tonnage.tools.ops.why import why
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing.clock import VirtualPolicy

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy.")
_LIMIT = 60.0
"""Virtual seconds."""
BROKEN = {"spec": {"drivers": [{"name": "nfs", "nodeID": "n2", "topologyKeys": 7}]}}
FAULT = "csinodes n2: cannot be read: spec.drivers[0].topologyKeys: Expected `array`, got `int`"


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """Sleeps take no time."""
    return VirtualPolicy()


@pytest.fixture
async def transport() -> AsyncIterator[Nulls]:
    server = ApiServer(Store(extractor()))
    await server.start()
    yield Nulls(server.transport("system:admin"))
    await server.stop()


@pytest.fixture
async def kube(transport: Nulls) -> Client:
    """Of two nodes, one with room for a volume; both have a driver without topology."""
    client = Client(transport)
    await client.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    await client.create(kinds.CSI_DRIVERS, {"metadata": {"name": names.DRIVER}, "spec": {"storageCapacity": True}})
    late = {"provisioner": names.DRIVER, "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER}
    await client.create(kinds.STORAGE_CLASSES, {"metadata": {"name": "late"}, **late})
    for name in ("n1", "n2"):
        status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "4"}}
        meta = {"name": name, "labels": {names.TOPOLOGY_NODE: name}}
        taints = [{"key": names.STARTUP_TAINT, "effect": "NoSchedule"}] if name == "n1" else []
        await client.create(kinds.NODES, {"metadata": meta, "spec": {"taints": taints}, "status": status})
        drivers = [{"name": "nfs", "nodeID": name, "topologyKeys": None}, {"name": names.DRIVER, "nodeID": name}]
        await client.create(kinds.CSI_NODES, {"metadata": {"name": name}, "spec": {"drivers": drivers}})
    topology = {"nodeTopology": {"matchLabels": {names.TOPOLOGY_NODE: "n1"}}, "storageClassName": "late"}
    body = {"metadata": {"name": "late-n1"}, **topology, "capacity": "4Gi"}
    await client.create(kinds.CAPACITIES, body, names.SYSTEM_NAMESPACE)
    return client


async def _pod(kube: Client, name: str, size: str) -> None:
    spec = {
        "accessModes": [names.READ_WRITE_ONCE],
        "storageClassName": "late",
        "resources": {"requests": {"storage": size}},
    }
    await kube.create(kinds.CLAIMS, {"metadata": {"name": name}, "spec": spec}, "default")
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": name}}, {"name": "e", "emptyDir": {}}]
    near = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {
        "topologyKey": names.HOSTNAME_LABEL, "labelSelector": {"matchLabels": {"app": "x"}},
    }}]}}  # fmt: skip
    containers = [{"name": "main", "image": "none"}]
    body = {"containers": containers, "volumes": volumes, "affinity": near, "schedulerName": names.SCHEDULER}
    await kube.create(kinds.PODS, {"metadata": {"name": name}, "spec": body}, "default")


async def _lose_taint(kube: Client) -> None:
    informers = Informers(kube)
    config = AgentConfig("n1", startup_taint=(names.DRIVER,))
    controller = StartupTaint(kube, informers, config, lambda: True, LoopClock())
    informers.start()
    await informers.wait_synced()
    async with asyncio.timeout(_LIMIT):
        while await controller.reconcile("n1") is not None:
            await asyncio.sleep(0.1)
    await informers.close()


async def test_the_server_prints_null(kube: Client, transport: Nulls) -> None:
    text = await kube.read("/apis/storage.k8s.io/v1/csinodes/n1")
    assert b'"topologyKeys": null' in text


async def test_the_startup_taint_goes(kube: Client) -> None:
    await _lose_taint(kube)
    assert not (await kube.get(kinds.NODES, "n1")).spec.taints


@pytest.mark.parametrize("broken", [False, True])
async def test_a_pod_is_placed_with_its_volume(kube: Client, transport: Nulls, broken: bool) -> None:
    """Also where another node cannot be read."""
    if broken:
        transport.broken["n2"] = BROKEN
    await _lose_taint(kube)
    process = scheduler_process(SchedulerConfig("one"), Client(transport), clock=LoopClock())
    await process.start()
    await _pod(kube, "p", "1Gi")
    async with asyncio.timeout(_LIMIT):
        while not (node := await _selected(kube, "p")):
            await asyncio.sleep(0.1)
    await process.stop()
    assert node == "n1"


async def _selected(kube: Client, claim: str) -> str:
    return (await kube.get(kinds.CLAIMS, claim, "default")).metadata.annotations.get(names.SELECTED_NODE, "")


async def test_why_says_what_is_lacking_and_what_it_could_not_read(kube: Client, transport: Nulls) -> None:
    await _pod(kube, "p", "5Gi")
    found = await why(kube, "p", "default", clock=LoopClock())
    lacks = {answer.node: " ".join(answer.lacks) for answer in found.nodes}
    assert "asks 5Gi, free 4Gi, largest 4Gi" in lacks["n1"]
    assert found.unchecked == []
    transport.broken["n2"] = BROKEN
    found = await why(kube, "p", "default", clock=LoopClock())
    assert "asks 5Gi, free 4Gi, largest 4Gi" in " ".join(found.nodes[0].lacks)
    assert [text for text in found.unchecked if text.startswith("csinodes")] == [FAULT]


async def test_doctor_looks_at_all_and_names_what_it_could_not_read(kube: Client, transport: Nulls) -> None:
    await _pod(kube, "p", "5Gi")
    found = await examine(kube, names.SYSTEM_NAMESPACE, clock=LoopClock())
    assert not [finding for finding in found if finding.check == "objects"]
    assert {finding.about for finding in found if finding.check == "registration"} == {"n1", "n2"}
    transport.broken["n2"] = BROKEN
    found = await examine(kube, names.SYSTEM_NAMESPACE, clock=LoopClock())
    [finding] = [finding for finding in found if finding.check == "objects" and "csinodes" in finding.about]
    assert f"{finding.about}: {finding.text}".startswith(FAULT)
    assert finding.level is Level.FAIL
    assert finding.todo
