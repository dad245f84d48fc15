"""A node for tests: a fake pool behind a CSI driver with a socket, its agent, and the writes of a scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tonnage.base.errors import ApiNotFoundError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.hooks import NoHooks
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client.client import Client
from tonnage.node.agent import NodeAgent
from tonnage.node.config.agent import AgentConfig
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.node_driver import NodeDriver
from tonnage_box.simulate.virtual_time import LoopClock

NODE = "node-1"


@dataclass
class FakeNode:
    """One node, and what a test asks of it. The driver, its socket and the agent are real; volumes are not."""

    client: Client
    folder: Path
    pool: FakePool
    driver: NodeDriver
    name: str = NODE
    agents: list[NodeAgent] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start_agent(self, **options: Any) -> NodeAgent:
        """Start an agent that works only when something happens. options: other fields of its AgentConfig.

        As in `tonnage node`, it calls the driver in this process, unless the options have `endpoints`.
        """
        usual: dict[str, Any] = {
            "cluster_uid": "cluster-1",
            "scope": "label",
            "capacity": "exact",
            "poll": 0,
            "sweep_every": 0,
        }
        usual["state"] = self.folder
        config = AgentConfig(self.name, **{**usual, **options})
        clients = [] if config.endpoints else self.driver.clients()
        agent = NodeAgent(self.client, config, clients=clients, faults=self.driver.faults, clock=LoopClock())
        self.driver.hooks.to = agent
        self.agents.append(agent)
        self.tasks.append(asyncio.ensure_future(agent.run()))
        return agent

    async def kill_agent(self) -> None:
        """Cancel the agents at whatever they wait for."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        self.driver.hooks.to = NoHooks()

    async def select(self, *claims: str, node: str = "", provisioner: str = names.DRIVER) -> None:
        """Set selected-node of these claims, as a scheduler does; node: this one by default."""
        node = node or self.name
        for claim in claims:
            annotations = {names.SELECTED_NODE: node, names.STORAGE_PROVISIONER: provisioner}
            annotations[names.BETA_STORAGE_PROVISIONER] = provisioner
            meta = {"annotations": annotations, "labels": {names.NODE_LABEL: names.label_value(node)}}
            await self.client.patch(kinds.CLAIMS, claim, {"metadata": meta}, "default")

    async def claim(self, name: str) -> PersistentVolumeClaim:
        """The claim now. Raises: ApiNotFoundError."""
        return await self.client.get(kinds.CLAIMS, name, "default")

    async def phase(self, name: str) -> str:
        """The claim's phase."""
        return (await self.claim(name)).status.phase

    async def is_bound(self, name: str) -> bool:
        """Whether the claim is bound."""
        return await self.phase(name) == "Bound"

    async def capacity(self, storage_class: str = "late") -> tuple[str | None, str | None]:
        """Capacity and maximumVolumeSize that are published for a class, as quantities."""
        found = (await self.client.list(kinds.CAPACITIES, names.SYSTEM_NAMESPACE)).items
        ours = [c for c in found if c.storage_class_name == storage_class]
        return (ours[0].capacity, ours[0].maximum_volume_size) if ours else (None, None)

    async def publishes(self, available: str, maximum: str, storage_class: str = "late") -> bool:
        """Whether that is published."""
        return await self.capacity(storage_class) == (available, maximum)

    async def volumes(self) -> list[str]:
        """Names of the volumes in the pool."""
        return [volume.name for volume in await self.pool.list()]

    async def use(self, volume: str) -> None:
        """Stage a volume and unstage it again, as the kubelet does for a pod that ran."""
        place = self.folder / "stage"
        place.mkdir(exist_ok=True)
        async with CsiClient(self.driver.endpoints[0]) as driver:
            handle = f"{self.pool.name}/{volume}"
            await driver.stage(handle, place, VolumeCapability())
            await driver.unstage(handle, place)

    async def is_gone(self, kind: Kind[Any], name: str, namespace: str = "") -> bool:
        """Whether there is no such object."""
        try:
            await self.client.get(kind, name, namespace)
        except ApiNotFoundError:
            return True
        return False

    async def remove_claim(self, name: str) -> None:
        """Delete a claim and its finalizers, as the protection controller does."""
        await self.client.delete(kinds.CLAIMS, name, "default")
        await self.client.patch(kinds.CLAIMS, name, {"metadata": {"finalizers": None}}, "default")

    async def release(self, claim: str) -> PersistentVolume:
        """Remove a claim and set its PersistentVolume to Released, as the PV controller does."""
        volume = (await self.claim(claim)).spec.volume_name
        await self.remove_claim(claim)
        return await self.client.patch(kinds.VOLUMES, volume, {"status": {"phase": "Released"}}, subresource="status")


MakeNode = Callable[..., Awaitable[FakeNode]]
"""The type of a fixture that makes nodes; its arguments are those of fake_node() after the folder."""


@asynccontextmanager
async def fake_node(  # noqa: PLR0913  # what tests vary
    client: Client,
    folder: Path,
    size: str = "30716Mi",
    *,
    name: str = NODE,
    pool: FakePool | None = None,
    drivers: tuple[str, ...] = (names.DRIVER,),
    agent: bool = True,
    sources: tuple[Path, ...] = (),
    **options: Any,
) -> AsyncIterator[FakeNode]:
    """A node with a fake pool of that size, ended with the block.

    folder: an empty one with a short path, since a UNIX socket's path has at most 107 bytes. agent: whether it is
    started, with these fields of its AgentConfig. sources: folders that volumes may be filled from. The namespace of
    tonnage's system objects must exist.
    """
    await client.create(kinds.NODES, {"metadata": {"name": name}})
    pool = pool or FakePool("scratch", to_bytes(size), directories=False, clock=LoopClock())
    driver = NodeDriver(
        [pool], node_name=name, kubelet=folder, sockets=folder, drivers=drivers, sources=sources, clock=LoopClock()
    )
    await driver.start()
    node = FakeNode(client, folder, pool, driver, name)
    try:
        if agent:
            await node.start_agent(**options)
        yield node
    finally:
        await node.kill_agent()
        await driver.stop()
