"""Pods with two volumes each, nearly more than the nodes have, under a scheduler that compares every claim alone with
old numbers and sends them one by one, as the stock one does: none is stuck."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.unit.fixture_types import Running

from tonnage.base.errors import ApiConflictError, ApiNotFoundError, UnavailableError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage_box.controllers.ephemeral import EphemeralController
from tonnage_box.controllers.garbage_collector import GarbageCollector
from tonnage_box.controllers.protection import ClaimProtection, VolumeProtection
from tonnage_box.controllers.pv_binder.controller import Binder
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakePod

pytestmark = pytest.mark.virtual_time
NODES, ROOM = 4, "100Gi"
SIZES = ("3Gi", "2Gi")
PODS = 76
"""Of 80 that fit, if no node is left with half a pod's room."""
LIMIT = 4 * 3600.0
GAPS = (0.0, 0.01, 0.3, 2.0)
"""Seconds between two claims of a pod."""


@dataclass
class StockScheduler:
    """Places pods by the published capacity as it was at the last look, claim by claim."""

    node: Any
    random: random.Random
    stale: float = 0.5
    gaps: tuple[float, ...] = GAPS
    sent: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """Look at all pods for ever."""
        while True:
            rooms = {c.metadata.labels[names.NODE_LABEL]: to_bytes(c.capacity or "0") for c in await self._capacities()}
            claims = {c.metadata.name: c for c in (await self.node.client.list(kinds.CLAIMS, "default")).items}
            pods = [p for p in (await self.node.client.list(kinds.PODS, "default")).items if not p.spec.node_name]
            async with asyncio.TaskGroup() as decisions:
                for pod in pods:
                    decisions.create_task(self._place(pod, claims, rooms))
            await asyncio.sleep(self.stale)

    async def _capacities(self) -> list[Any]:
        found = (await self.node.client.list(kinds.CAPACITIES, names.SYSTEM_NAMESPACE)).items
        return [c for c in found if c.storage_class_name == "late"]

    async def _place(self, pod: Any, claims: dict[str, Any], rooms: dict[str, int]) -> None:
        own = [claims.get(name) for name in pod.claim_names()]
        if any(c is None or c.metadata.deleting for c in own):
            return
        places = {c.metadata.annotations.get(names.SELECTED_NODE, "") for c in own if c is not None} - {""}
        if all(c is not None and c.status.phase == "Bound" for c in own):
            await self._bind(pod, places.pop())
            return
        sizes = [to_bytes(c.spec.resources.requests["storage"]) for c in own if c is not None]
        fitting = sorted(n for n, room in rooms.items() if room >= max(sizes) and places <= {n})
        waiting = [c for c in own if c is not None and names.SELECTED_NODE not in c.metadata.annotations]
        if not fitting or not waiting:
            return
        chosen = self.random.choice(fitting)
        for claim in self.random.sample(waiting, len(waiting)):
            self.sent[pod.metadata.name] += 1
            try:
                await self.node.select(claim.metadata.name, node=chosen)
            except (ApiNotFoundError, ApiConflictError):
                return
            await asyncio.sleep(self.random.choice(self.gaps))

    async def _bind(self, pod: Any, node: str) -> None:
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.metadata.name}}
        await self.node.client.post(
            kinds.PODS.path("default", pod.metadata.name, "binding"), {**body, "target": {"name": node}}
        )


class _Trouble:
    """A transport whose writes take up to 2 s, and fail now and then: before they took effect, or after."""

    def __init__(self, transport: Transport, chance: random.Random) -> None:
        self._transport, self.stream, self.close, self._chance = transport, transport.stream, transport.close, chance

    async def request(self, request: Request) -> Response:
        """Of an agent."""
        if request.method == "GET":
            return await self._transport.request(request)
        await asyncio.sleep(self._chance.uniform(0.0, 2.0))
        fails = self._chance.random()
        if fails < 0.1:
            raise UnavailableError("it was never sent")
        response = await self._transport.request(request)
        if fails < 0.2:
            raise UnavailableError("its answer was lost")
        return response


@dataclass
class Killer:
    """Starts the agents anew, one after the other, in the middle of whatever they do."""

    nodes: list[Any]
    random: random.Random
    kills: int = 20

    async def run(self) -> None:
        """Until it has killed enough."""
        for node in self.nodes:
            await self._start(node)
        for _ in range(self.kills):
            await asyncio.sleep(self.random.uniform(1.0, 10.0))
            node = self.random.choice(self.nodes)
            await node.kill_agent()
            await self._start(node)

    async def _start(self, node: FakeNode) -> None:
        kube, node.client = node.client, Client(_Trouble(node.client.transport, self.random))
        await node.start_agent(sweep_every=300, poll=60)
        node.client = kube


@dataclass
class Operator:
    """Purges what agents leave to people: volumes that no claim and no PersistentVolume of their node knows.

    Kills in a row may leave more of them than an agent removes without being asked.
    """

    nodes: list[Any]
    kube: Client

    async def run(self) -> None:
        """Twice an hour, for ever."""
        while True:
            await asyncio.sleep(1800.0)
            for node in self.nodes:
                made = [volume.name for volume in await node.pool.list()]
                claims = (await self.kube.list(kinds.CLAIMS)).items
                here = [c for c in claims if c.metadata.annotations.get(names.SELECTED_NODE) == node.name]
                known = {names.volume_name(c.metadata.uid) for c in here}
                volumes = (await self.kube.list(kinds.VOLUMES)).items
                known |= {v.metadata.name for v in volumes if v.metadata.labels.get(names.NODE_LABEL) == node.name}
                for name in set(made) - known:
                    await node.pool.delete(name)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [False, True], ids=["quiet", "troubled"])
@pytest.mark.parametrize("seed", range(3))
async def test_none_is_stuck(
    make_node: MakeNode,
    make_pod: MakePod,
    informers: Informers,
    events: EventRecorder,
    kube: Client,
    running: Running,
    tell: Any,
    seed: int,
    trouble: bool,
) -> None:
    nodes = [await make_node(ROOM, name=f"node-{n}", agent=not trouble) for n in range(NODES)]
    scheduler = StockScheduler(nodes[0], random.Random(seed), gaps=(0.0, 0.3, 10.0) if trouble else GAPS)
    controllers = [
        EphemeralController(kube, informers, events),
        Binder(kube, informers, events),
        ClaimProtection(kube, informers),
        VolumeProtection(kube, informers),
        GarbageCollector(kube, informers, events),
        scheduler,
        *([Killer(nodes, random.Random(seed)), Operator(nodes, kube)] if trouble else []),
    ]
    async with running(*controllers), asyncio.timeout(LIMIT):
        for n in range(PODS):
            disks = {
                f"v{i}": {"storageClassName": "late", "resources": {"requests": {"storage": size}}}
                for i, size in enumerate(SIZES)
            }
            await make_pod(f"p{n}", ephemeral=disks)
        while waiting := [p.metadata.name for p in (await kube.list(kinds.PODS)).items if not p.spec.node_name]:
            await asyncio.sleep(1.0)
        placed = Counter(p.spec.node_name for p in (await kube.list(kinds.PODS)).items)
        for node in nodes:
            await _holds(node, placed[node.name] * to_bytes("5Gi"))
    assert not waiting
    assert sum(placed.values()) == PODS
    withdrawn = sum(
        int(c.metadata.annotations.get(names.RESCHEDULES, 0)) for c in (await kube.list(kinds.CLAIMS)).items
    )
    sent = scheduler.sent
    tell(
        f"storm {seed}{' with trouble' if trouble else ''}: {PODS} pods with two volumes at 95 %: {sent.total() - 2 * PODS} claims sent more than once,"
        f" {withdrawn} sent back, at most {max(sent.values())} times for a pod"
    )


async def _holds(node: FakeNode, size: int) -> None:
    """Wait until that is in the node's pool: a sweep removes what was made before a kill, for a claim that left."""
    while sum(v.size for v in await node.pool.list()) != size:
        await asyncio.sleep(10.0)
