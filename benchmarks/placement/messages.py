"""How many watch messages the API server sends for one volume's life, at 1, 10 and 100 agents.

Counted by the API server itself, for all its clients: claims, volumes and capacity objects. What the controller
manager, the scheduler and this benchmark watch is the same for any number of agents.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

from benchmarks.figure import Figure
from benchmarks.kubernetes import stacks
from benchmarks.kubernetes.audit import STORAGE
from benchmarks.kubernetes.nodes import kubelets
from benchmarks.kubernetes.plane import Plane, plane
from benchmarks.kubernetes.stacks import Stack
from benchmarks.placement.agents import simulated
from benchmarks.placement.load import Load

from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers

_SENT = re.compile(r"^apiserver_watch_events_total\{(?P<labels>[^}]*)\} (?P<count>\S+)$", re.M)


async def messages(*, quick: bool) -> list[Figure]:
    """The same pods, with more and more agents that look on."""
    agents, count = ((1, 5, 20), 40) if quick else ((1, 10, 100), 200)
    found, peer = dict[int, float](), dict[int, float]()
    async with plane(nodes=agents[-1], raised=True, drivers=stacks.DRIVERS) as cluster:
        await stacks.install(cluster)
        async with kubelets(cluster.client) as informers:
            for number in agents:
                found[number] = await _a_life(cluster, informers, simulated, number, count)
            for number in agents[:2]:
                peer[number] = await _a_life(cluster, informers, _go, number, count)
    return [
        *(_row("tonnage", found, number, agents[0], at_most=1.1) for number in agents[1:]),
        _row("Go", peer, agents[1], agents[0]),
    ]


Opened = Callable[[Plane], AbstractAsyncContextManager[Stack]]


@asynccontextmanager
async def _go(cluster: Plane) -> AsyncIterator[Stack]:
    async with stacks.go(cluster, Informers(cluster.client)) as stack:
        yield stack


async def _a_life(cluster: Plane, informers: Informers, opened: Opened, agents: int, count: int) -> float:
    """Messages a volume, with so many agents."""
    async with opened(replace(cluster, nodes=cluster.nodes[:agents])) as stack:
        load = Load(cluster.client, informers, stack, f"{stack.name.lower()}-{agents}", count)
        before = await sent(cluster.client)
        outcome = await load.run()
        await load.remove()
        return (await sent(cluster.client) - before) / (outcome.count - outcome.stuck)


async def sent(client: Client, resources: Sequence[str] = STORAGE) -> float:
    """Watch messages about these resources that the API server has sent so far."""
    text = (await client.read("/metrics")).decode()
    return sum(float(found["count"]) for found in _SENT.finditer(text) if _is_of(found["labels"], resources))


def _is_of(labels: str, resources: Sequence[str]) -> bool:
    """By resource; releases before 1.34 tell the kind instead."""
    return any(f'"{resource}"' in labels or f'"{_kind(resource)}"' in labels.lower() for resource in resources)


def _kind(resource: str) -> str:
    return resource.removesuffix("ies") + "y" if resource.endswith("ies") else resource.removesuffix("s")


def _row(who: str, found: dict[int, float], agents: int, fewest: int, *, at_most: float | None = None) -> Figure:
    what = f"{who}: messages of a volume's life, {agents} agents"
    return Figure(what, found[agents], "", found[fewest], f"{fewest} agent:", at_most=at_most)
