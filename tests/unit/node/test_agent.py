"""The node's composition: its driver's sockets, inline volumes, and an agent for drivers that are not ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tonnage.csi._proto import csi_pb2
from tonnage.csi.client.client import STORAGE_TIMEOUT, CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.driver import Driver, lock_key
from tonnage.csi.driver.endpoint import services
from tonnage.csi.server.server import CsiServer
from tonnage.csi.server.service import Service
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.node import agent as agents
from tonnage.node.agent import NodeAgent
from tonnage.node.config.agent import AgentConfig
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.kubelet.registration import RegistrationClient
from tonnage_box.node_driver import NodeDriver

GIB = 1 << 30


@pytest.fixture
async def kube() -> AsyncIterator[Client]:
    """A client of a server with a node and a system namespace."""
    server = ApiServer(Store(extractor()))
    await server.start()
    client = Client(server.transport("system:admin"))
    await client.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    await client.create(kinds.NODES, {"metadata": {"name": "node-1"}})
    yield client
    await server.stop()


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path."""
    return tmp_path_factory.mktemp("n")


async def _until(question: Any) -> None:
    async with asyncio.timeout(5.0):
        while not await question():
            await asyncio.sleep(0.005)


async def _published(kube: Client) -> list[str | None]:
    return [c.capacity for c in (await kube.list(kinds.CAPACITIES)).items]


async def test_each_driver_name_has_a_csi_socket_and_is_registered(folder: Path) -> None:
    driver = NodeDriver(
        [FakePool("a", GIB), FakePool("b", GIB)],
        node_name="node-1",
        kubelet=folder,
        sockets=folder,
        drivers=(names.DRIVER, "other.example.com"),
    )
    await driver.start()
    try:
        for name, socket in zip((names.DRIVER, "other.example.com"), driver.endpoints, strict=True):
            async with CsiClient(socket) as client:
                info = await client.plugin_info()
                pools = {names.MANIFEST_DEFAULT_POOL: "a", names.MANIFEST_POOLS: "a=fake,b=fake"}
                assert (info.name, info.manifest) == (name, pools)
            kubelet = RegistrationClient(folder / "plugins_registry" / f"{name}-reg.sock")
            assert (await kubelet.get_info()).endpoint == str(socket)
            kubelet.close()
    finally:
        await driver.stop()
    assert not list(folder.rglob("*.sock"))


async def test_an_inline_volume_lowers_what_is_published(kube: Client, folder: Path) -> None:
    await kube.create(
        kinds.STORAGE_CLASSES,
        {"metadata": {"name": "c"}, "provisioner": names.DRIVER, "volumeBindingMode": "WaitForFirstConsumer"},
    )
    pool = FakePool("scratch", 10 * GIB, directories=False)
    driver = NodeDriver([pool], node_name="node-1", kubelet=folder, sockets=folder)
    await driver.start()
    agent = NodeAgent(
        kube, AgentConfig("node-1", cluster_uid="x", endpoints=tuple(driver.endpoints), scope="label", poll=0)
    )
    driver.hooks.to = agent
    task = asyncio.ensure_future(agent.run())

    async def shows(*capacities: str) -> bool:
        return await _published(kube) == list(capacities)

    await _until(lambda: shows("10Gi"))
    target = folder / "pod" / "mount"
    target.parent.mkdir()
    handle = names.inline_handle("uid", "v")
    async with CsiClient(driver.endpoints[0]) as kubelet:
        context = {names.CSI_EPHEMERAL: "true", "size": "2Gi"}
        await kubelet.publish(handle, target, VolumeCapability(), context=context)
        await _until(lambda: shows("8Gi"))
        await kubelet.unpublish(handle, target)
    await _until(lambda: shows("10Gi"))
    await agent.stop()
    assert task.done()
    await driver.stop()


class _Stranger:
    """Identity of a driver that is not ours: no manifest, and no places unless told so."""

    def __init__(self, name: str, *, topology: bool, controls: bool = True) -> None:
        self._name, self._topology, self._controls = name, topology, controls

    async def GetPluginInfo(self, _request: Any) -> csi_pb2.GetPluginInfoResponse:
        return csi_pb2.GetPluginInfoResponse(name=self._name, vendor_version="9")

    async def GetPluginCapabilities(self, _request: Any) -> csi_pb2.GetPluginCapabilitiesResponse:
        service = csi_pb2.PluginCapability.Service
        kinds_ = [service.CONTROLLER_SERVICE] * self._controls + [
            service.VOLUME_ACCESSIBILITY_CONSTRAINTS
        ] * self._topology
        found = [csi_pb2.PluginCapability(service=service(type=kind)) for kind in kinds_]
        return csi_pb2.GetPluginCapabilitiesResponse(capabilities=found)

    async def Probe(self, _request: Any) -> csi_pb2.ProbeResponse:
        return csi_pb2.ProbeResponse()


class _Blind:
    """A controller service that cannot tell its capacity nor list its volumes, and wants a parameter of its own."""

    def __init__(self, inner: Any) -> None:
        self.CreateVolume, self.DeleteVolume = self._create, inner.DeleteVolume
        self._inner = inner
        self.asked: list[dict[str, str]] = []

    async def ControllerGetCapabilities(self, _request: Any) -> csi_pb2.ControllerGetCapabilitiesResponse:
        rpc = csi_pb2.ControllerServiceCapability.RPC
        only = csi_pb2.ControllerServiceCapability(rpc=rpc(type=rpc.CREATE_DELETE_VOLUME))
        return csi_pb2.ControllerGetCapabilitiesResponse(capabilities=[only])

    async def _create(self, request: csi_pb2.CreateVolumeRequest) -> csi_pb2.CreateVolumeResponse:
        self.asked.append(dict(request.parameters))
        request.ClearField("parameters")
        answer: csi_pb2.CreateVolumeResponse = await self._inner.CreateVolume(request)
        if not request.HasField("accessibility_requirements"):
            answer.volume.ClearField("accessible_topology")
        return answer


@pytest.mark.parametrize("topology", [False, True])
async def test_the_agent_serves_any_driver(kube: Client, folder: Path, topology: bool) -> None:
    name = "strange.example.com"
    pool = FakePool("p", 10 * GIB, directories=False)
    inner = Driver("node-1", {"p": pool}, folder / "state", name=name, topology_key="example.com/place")
    ours = {service.descriptor.name: service for service in services(inner)}
    blind = _Blind(ours["Controller"].implementation)
    controller = blind if not topology else ours["Controller"].implementation
    server = CsiServer(
        folder / "csi.sock",
        [
            Service(ours["Identity"].descriptor, _Stranger(name, topology=topology)),
            Service(ours["Controller"].descriptor, controller, key=lock_key),
            ours["Node"],
        ],
    )
    await kube.create(
        kinds.STORAGE_CLASSES,
        {
            "metadata": {"name": "c"},
            "provisioner": name,
            "volumeBindingMode": "WaitForFirstConsumer",
            "parameters": {names.ROLLBACK: "true", names.CSI_FSTYPE: "xfs"},
        },
    )
    agent = NodeAgent(
        kube, AgentConfig("node-1", cluster_uid="x", endpoints=(folder / "csi.sock",), scope="label", poll=0)
    )
    task = asyncio.ensure_future(agent.run())
    await asyncio.sleep(0.05)  # the agent may be there before its driver
    async with server:
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "4Gi"}},
            "storageClassName": "c",
        }
        notes = {names.SELECTED_NODE: "node-1", names.STORAGE_PROVISIONER: name}
        meta = {"name": "data", "annotations": notes, "labels": {names.NODE_LABEL: "node-1"}}
        await kube.create(kinds.CLAIMS, {"metadata": meta, "spec": spec}, "default")

        async def bound() -> bool:
            return (await kube.get(kinds.CLAIMS, "data", "default")).status.phase == "Bound"

        await _until(bound)
        volume = (await kube.list(kinds.VOLUMES)).items[0]
        assert volume.spec.csi is not None
        assert (volume.spec.csi.driver, volume.spec.csi.fs_type) == (name, "xfs")
        if topology:
            assert volume.spec.node_affinity is not None
            assert volume.spec.node_affinity.required is not None
            term = volume.spec.node_affinity.required.node_selector_terms[0].match_expressions[0]
            assert (term.key, term.values) == ("example.com/place", ["node-1"])
            await _until(lambda: _shows(kube, "6Gi"))
            (obj,) = (await kube.list(kinds.CAPACITIES)).items
            assert names.POOL_LABEL not in obj.metadata.labels
        else:
            assert blind.asked == [{}], "neither our parameters nor a record for a driver that has none"
            assert volume.spec.node_affinity is None
            assert await _published(kube) == []
        assert agent.ledger.get("any") is None
        await agent.stop()
    assert task.done()


async def _shows(kube: Client, capacity: str) -> bool:
    return await _published(kube) == [capacity]


async def _unbound_claim(kube: Client, provisioner: str) -> None:
    made = {"metadata": {"name": "c"}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
    await kube.create(kinds.STORAGE_CLASSES, made)
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "4Gi"}}, "storageClassName": "c"}
    notes = {names.SELECTED_NODE: "node-1", names.STORAGE_PROVISIONER: provisioner}
    meta = {"name": "data", "annotations": notes, "labels": {names.NODE_LABEL: "node-1"}}
    await kube.create(kinds.CLAIMS, {"metadata": meta, "spec": spec}, "default")


@pytest.mark.parametrize(("topology", "other"), [(False, "a.example.com"), (True, "a.example.com"), (False, "b")])
async def test_a_controller_on_another_node_makes_volumes_without_topology(
    kube: Client, folder: Path, topology: bool, other: str
) -> None:
    name = "a.example.com"
    pool = FakePool("p", 10 * GIB, directories=False)
    inner = Driver("node-2", {"p": pool}, folder / "state", name=name, topology_key="example.com/place")
    ours = {service.descriptor.name: service for service in services(inner)}
    identity, controller = ours["Identity"].descriptor, ours["Controller"]
    blind = Service(controller.descriptor, _Blind(controller.implementation), key=lock_key)
    here = CsiServer(
        folder / "1.sock",
        [Service(identity, _Stranger(name, topology=topology, controls=False)), ours["Node"]],
    )
    there = CsiServer(folder / "2.sock", [Service(identity, _Stranger(other, topology=topology)), blind, ours["Node"]])
    config = AgentConfig(
        "node-1",
        cluster_uid="x",
        endpoints=(folder / "1.sock",),
        elsewhere=(folder / "2.sock",),
        scope="label",
        poll=0,
    )
    agent = NodeAgent(kube, config)
    async with here, there:
        task = asyncio.ensure_future(agent.run())
        await _unbound_claim(kube, name)

        async def is_settled() -> bool:
            return agent.drivers.complete

        async def is_bound() -> bool:
            return (await kube.get(kinds.CLAIMS, "data", "default")).status.phase == "Bound"

        await _until(is_settled)
        if not topology and other == name:
            await _until(is_bound)
        else:
            assert list(agent.drivers) == []
        await agent.stop()
        assert task.done()


def test_a_driver_of_other_storage_has_time(kube: Client, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is cut off ends as "no answer", whatever its cause is."""
    limits: list[float] = []

    def make(socket: Path, *, timeout: float) -> CsiClient:
        limits.append(timeout)
        return CsiClient(socket, timeout=timeout)

    monkeypatch.setattr(agents, "CsiClient", make)
    NodeAgent(kube, AgentConfig("node-1", cluster_uid="x", endpoints=(folder / "csi.sock",), scope="label", poll=0))
    assert limits == [STORAGE_TIMEOUT]
