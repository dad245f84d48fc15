"""A node: fake pool, real CSI socket, its agent, and somebody who sends claims to it as the scheduler does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.clocks import VirtualPolicy
from tests.unit.node.served import ONE, Mounted, ServedNode

from tonnage.aio.clock import LoopClock, RealClock
from tonnage.api import kinds, names
from tonnage.api.quantity import to_bytes
from tonnage.box.apiserver.server.server import ApiServer, extractor
from tonnage.box.apiserver.storage.store import MemoryStore
from tonnage.errors import ApiNotFound
from tonnage.kube.client import Client
from tonnage.node import config_watch
from tonnage.node.agent import NodeAgent, NodeDriver
from tonnage.node.config.agent import AgentConfig
from tonnage.node.process import NodeProcess
from tonnage.pools.fake import FakePool

NODE = "node-1"


@pytest.fixture
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Virtual time, for tests that are marked so."""
    return VirtualPolicy() if request.node.get_closest_marker("virtual_time") else asyncio.DefaultEventLoopPolicy()


def agent_config(node: str, cluster: str, endpoints: tuple[Path, ...] = (), **more: Any) -> AgentConfig:
    """An agent that works only when something happens, unless told otherwise."""
    usual = {"scope": "label", "capacity": "exact", "poll": 0, "sweep_every": 0}
    return AgentConfig(node, cluster_uid=cluster, endpoints=endpoints, **{**usual, **more})


@dataclass
class Node:
    """One node and what a test asks of it."""

    kube: Client
    folder: Path
    pool: FakePool
    driver: NodeDriver
    name: str = NODE
    agents: list[NodeAgent] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start_agent(self, **more: Any) -> NodeAgent:
        """Start an agent."""
        agent = NodeAgent(
            self.kube, agent_config(self.name, "cluster-1", tuple(self.driver.endpoints), **more), clock=LoopClock()
        )
        self.agents.append(agent)
        self.tasks.append(asyncio.ensure_future(agent.run()))
        return agent

    async def kill_agent(self) -> None:
        """End the agent in the middle of whatever it does."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()

    async def send(self, *claims: str, node: str = "") -> None:
        """What the scheduler writes, claim by claim."""
        node = node or self.name
        for claim in claims:
            notes = {names.SELECTED_NODE: node, names.STORAGE_PROVISIONER: names.DRIVER}
            notes[names.BETA_STORAGE_PROVISIONER] = names.DRIVER
            meta = {"annotations": notes, "labels": {names.NODE_LABEL: names.label_value(node)}}
            await self.kube.patch(kinds.CLAIMS, claim, {"metadata": meta}, "default")

    async def claim(self, name: str) -> Any:
        """The claim now."""
        return await self.kube.get(kinds.CLAIMS, name, "default")

    async def phase(self, name: str) -> str:
        """The claim's phase."""
        return str((await self.claim(name)).status.phase)

    async def bound(self, name: str) -> bool:
        """Whether the claim is bound."""
        return await self.phase(name) == "Bound"

    async def shows(self, available: str, maximum: str, storage_class: str = "late") -> bool:
        """Whether that is published."""
        return await self.capacity(storage_class) == (available, maximum)

    async def remove_claim(self, name: str) -> None:
        """Delete a claim and do what the protection controller does."""
        await self.kube.delete(kinds.CLAIMS, name, "default")
        await self.kube.patch(kinds.CLAIMS, name, {"metadata": {"finalizers": None}}, "default")

    async def capacity(self, storage_class: str = "late") -> tuple[str | None, str | None]:
        """What is published for a class."""
        found = (await self.kube.list(kinds.CAPACITIES, names.SYSTEM_NAMESPACE)).items
        ours = [c for c in found if c.storage_class_name == storage_class]
        return (ours[0].capacity, ours[0].maximum_volume_size) if ours else (None, None)

    async def volumes(self) -> list[str]:
        """Names of the volumes in the pool."""
        return [v.name for v in await self.pool.list()]

    async def gone(self, kind: Any, name: str, namespace: str = "") -> bool:
        """Whether an object is gone."""
        try:
            await self.kube.get(kind, name, namespace)
        except ApiNotFound:
            return True
        return False

    async def release(self, claim: str) -> Any:
        """Remove a claim as the protection controller and the binder do; returns its volume."""
        now = await self.claim(claim)
        await self.remove_claim(claim)
        return await self.kube.patch(
            kinds.VOLUMES, now.spec.volume_name, {"status": {"phase": "Released"}}, subresource="status"
        )


@pytest.fixture
async def make_node(
    kube: Client, make_class: Callable[..., Awaitable[Any]], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Callable[..., Any]]:
    """make_node(size="30716Mi", name=..., drivers=[...], agent=True, **agent options): a node, ended with the test."""
    made: list[Node] = []
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    await make_class("late", default=True)

    async def make(
        size: str = "30716Mi", *, name: str = NODE, agent: bool = True, pool: FakePool | None = None, **more: Any
    ) -> Node:
        folder = tmp_path_factory.mktemp("n")
        await kube.create(kinds.NODES, {"metadata": {"name": name}})
        drivers = more.pop("drivers", (names.DRIVER,))
        memory = pool or FakePool("scratch", to_bytes(size), directories=False, clock=LoopClock())
        driver = NodeDriver(
            [memory], node_name=name, kubelet=folder, sockets=folder, drivers=drivers, clock=LoopClock()
        )
        await driver.start()
        node = Node(kube, folder, memory, driver, name)
        made.append(node)
        if agent:
            await node.start_agent(**more)
        return node

    yield make
    for node in made:
        await node.kill_agent()
        await node.driver.stop()


@pytest.fixture
async def scratch_pod(
    kube: Client, make_pod: Callable[..., Awaitable[Any]], make_claim: Callable[..., Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    """scratch_pod(name, "4Gi", ...): a pod with ephemeral volumes v0, v1 ..., and their claims."""

    async def make(name: str, *sizes: str, storage_class: str = "late") -> Any:
        spec = {"storageClassName": storage_class}
        wanted = {f"v{n}": {**spec, "resources": {"requests": {"storage": size}}} for n, size in enumerate(sizes)}
        pod = await make_pod(name, ephemeral=wanted)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.metadata.uid, "controller": True}
        for n, size in enumerate(sizes):
            await make_claim(f"{name}-v{n}", size, owners=[owner], **spec)
        return pod

    return make


@pytest.fixture
def all_events(kube: Client) -> Callable[[], Awaitable[list[tuple[str, str, str]]]]:
    """Events as (object, reason, message)."""

    async def read() -> list[tuple[str, str, str]]:
        found = (await kube.list(kinds.EVENTS)).items
        return [(e.involved_object.name, e.reason, e.message) for e in found]

    return read


@pytest.fixture
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Mounted:
    """A ConfigMap with one pool; paths are short, for sockets."""
    folder = tmp_path_factory.mktemp("c")
    (folder / "config").mkdir()
    (folder / "k" / "plugins_registry").mkdir(parents=True)
    made = Mounted(folder / "config", folder / "k")
    made.put(pools=[ONE])
    return made


@pytest.fixture
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody writes slowly here; the level of the log is put back."""
    monkeypatch.setattr(config_watch, "SETTLE", 0.01)
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.fixture
async def node(mounted: Mounted, settled_at_once: None) -> AsyncIterator[ServedNode]:
    """A node over it."""
    server = ApiServer(MemoryStore(extractor()))
    await server.start()
    kube, client = Client(server.transport("system:admin")), Client(server.transport("system:admin"))
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    uid = (await kube.create(kinds.NODES, {"metadata": {"name": "node-1"}})).metadata.uid
    for name in ("one", "two"):
        body = {"metadata": {"name": name}, "provisioner": names.DRIVER, "parameters": {"pool": name}}
        await kube.create(kinds.STORAGE_CLASSES, body)
    process = NodeProcess(mounted.read(), client, live=(mounted.file, mounted.read), clock=RealClock())
    await process.start()
    yield ServedNode(process, mounted, kube, uid)
    await process.stop()
    await server.stop()
