"""Agents of many nodes in one process: the real ones, each with its own token, driver and socket, over counted pools.

`python -m benchmarks.placement.agents FOLDER ROOM PORT NODE=KUBECONFIG...` serves until it is told to end. What is left
out is the volume itself (a memory pool makes none) and a process for each node, which one machine has no memory for.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.kubernetes.plane import Plane
from benchmarks.kubernetes.stacks import POOL, Stack, processes_of, ready
from cluster.processes import free_port

from tonnage.base.aio.tasks import Background
from tonnage.base.observe.exporter import Address, Exporter
from tonnage.base.observe.process import raise_file_limit
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import NAMESPACES
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client import kubeconfig
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.node.agent import NodeAgent
from tonnage.node.config.agent import AgentConfig
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.node_driver import NodeDriver

_PROCESS = "agents"


@asynccontextmanager
async def simulated(plane: Plane, room: str = POOL) -> AsyncIterator[Stack]:
    """The agents of all nodes of the plane. room: of each node. Raises Failed."""
    stack = Stack("tonnage", names.SCRATCH_CLASS)
    async with processes_of(plane, "simulated", names.SYSTEM_NAMESPACE, "tonnage-node") as (processes, configs):
        port = free_port()
        agents = [f"{node}={config}" for node, config in configs.items()]
        folder = plane.folder.parent / "s"
        processes.start(_PROCESS, [sys.executable, "-m", __name__, folder, room, str(port), *agents])
        stack.endpoints = [f"http://127.0.0.1:{port}/metrics"]
        await ready(plane, stack, processes)
        stack.pids = [pid] if (pid := processes.pid(_PROCESS)) else []
        yield stack


class _Node:
    """One node's driver and agent."""

    def __init__(self, name: str, config: str, folder: Path, room: str) -> None:
        self.client = Client(HttpTransport(kubeconfig.load(config), user_agent=f"tonnage-node/{name}", at_once=8))
        self._name, self._folder = name, folder
        pool = FakePool("scratch", to_bytes(room), directories=False)
        self._driver = NodeDriver([pool], node_name=name, kubelet=folder / "k", sockets=folder)
        self._tasks = Background(name)

    async def start(self) -> None:
        """Serve the node."""
        (self._folder / "k" / "plugins_registry").mkdir(parents=True, exist_ok=True)
        await self._driver.start()
        cluster = (await self.client.get(NAMESPACES, "kube-system")).metadata.uid
        agent = NodeAgent(
            self.client,
            AgentConfig(
                self._name,
                scope="label",
                capacity="exact",
                cluster_uid=cluster,
                endpoints=tuple(self._driver.endpoints),
            ),
        )
        self._tasks.start(agent.run(), "agent")

    async def stop(self) -> None:
        """End it."""
        await self._tasks.close()
        await self._driver.stop()
        await self.client.close()


async def _serve(folder: Path, room: str, port: int, agents: Sequence[str]) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    nodes = [
        _Node(name, config, folder / str(n), room)
        for n, (name, _, config) in enumerate(a.partition("=") for a in agents)
    ]
    for node in nodes:
        await node.start()
    exporter = Exporter(Address("127.0.0.1", port), _nothing)
    await exporter.start()
    await ended.wait()
    await exporter.stop()
    await asyncio.gather(*(node.stop() for node in nodes))


async def _nothing() -> None:
    """No gauge of a pool is looked at."""


if __name__ == "__main__":
    raise_file_limit()
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
