"""An agent that is killed where a guillotine falls, before or after a write or a call, and started again."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.unit.node.snapshotworld import Counting

from tonnage.base.errors import UnavailableError
from tonnage.csi.client.client import CsiClient
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage.storage.pools.base.contract import PoolVolume, Snapshot, VolumeRequest
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.testing import apiserver
from tonnage_box.testing.node import FakeNode, fake_node
from tonnage_box.testing.objects import Objects

T = TypeVar("T")
GIB = 1 << 30


class Guillotine:
    """Falls at the `at`-th step, 0 for never: what was to follow never happens."""

    def __init__(self) -> None:
        self.at = self.count = 0
        self.fell, self._revived = asyncio.Event(), asyncio.Event()

    async def step(self) -> None:
        """Before or after something with an effect."""
        self.count += 1
        if self.at and self.count >= self.at:
            self.fell.set()
            await self._revived.wait()
            raise UnavailableError("killed")

    def revive(self, at: int = 0) -> None:
        """Begin to count anew."""
        self.at, self.count = at, 0
        self.fell.clear()
        self._revived.set()
        self._revived = asyncio.Event()


class Deadly(Counting):
    """A transport with a guillotine around each write."""

    def __init__(self, inner: Transport, guillotine: Guillotine) -> None:
        super().__init__(inner)
        self._guillotine = guillotine

    async def request(self, request: Request) -> Response:
        """See Transport."""
        before = len(self.writes)
        if request.method == "GET" or any(part in request.path for part in ("/events", "csistoragecap", "/nodes")):
            return await super().request(request)
        await self._guillotine.step()
        answer = await super().request(request)
        assert len(self.writes) > before
        await self._guillotine.step()
        return answer


class Mortal(FakePool):
    """A pool with a guillotine around each call that changes something."""

    def __init__(self, guillotine: Guillotine, size: int) -> None:
        super().__init__("scratch", size, directories=False)
        self._guillotine = guillotine
        create, delete = self.snapshots.create, self.snapshots.delete

        async def created(name: str, volume: str, **more: Any) -> Snapshot:
            return await self._around(create(name, volume, **more))

        async def deleted(name: str) -> None:
            await self._around(delete(name))

        self.snapshots.create, self.snapshots.delete = created, deleted  # type: ignore[method-assign]

    async def _around(self, call: Awaitable[T]) -> T:
        try:
            await self._guillotine.step()
        except BaseException:
            call.close()  # type: ignore[attr-defined]
            raise
        done = await call
        await self._guillotine.step()
        return done

    async def create(self, request: VolumeRequest) -> PoolVolume:
        return await self._around(super().create(request))

    async def delete(self, name: str, *, wait: bool = True) -> None:
        await self._around(super().delete(name, wait=wait))


@dataclass
class Stage:
    """A node whose agent is killed where the guillotine falls, and started again."""

    kube: Client
    node: FakeNode
    guillotine: Guillotine
    kills: int = 0
    again: list[int] = field(default_factory=list)
    """Steps after which the next agents die."""
    on_death: Callable[[], Awaitable[None]] | None = None
    """What others do meanwhile."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of its AgentConfig."""

    async def start(self) -> None:
        """Start an agent."""
        self.node.client = Client(Deadly(self.kube.transport, self.guillotine))
        await self.node.start_agent(**self.options)
        self.node.client = self.kube

    async def run(self) -> None:
        """Kill and start again, until cancelled."""
        while True:
            await self.guillotine.fell.wait()
            self.kills += 1
            await self.node.kill_agent()
            if self.on_death is not None:
                await self.on_death()
            self.guillotine.revive(self.again.pop(0) if self.again else 0)
            await self.start()


@asynccontextmanager
async def staged(**options: Any) -> AsyncIterator[tuple[Stage, Objects]]:
    """A stage in a cluster of its own, with class `late`. options: other fields of its AgentConfig."""
    guillotine = Guillotine()
    with tempfile.TemporaryDirectory() as folder:
        async with apiserver.api_server() as server:
            kube = apiserver.client(server)
            await kube.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
            objects = Objects(kube)
            await objects.storage_class("late", default=True)
            async with fake_node(kube, Path(folder), pool=Mortal(guillotine, 200 * GIB), agent=False) as node:
                stage = Stage(kube, node, guillotine, options=options)
                await stage.start()
                executioner = asyncio.ensure_future(stage.run())
                try:
                    yield stage, objects
                finally:
                    executioner.cancel()
                    await asyncio.wait([executioner])


def make_group_calls_deadly(monkeypatch: pytest.MonkeyPatch, guillotine: Guillotine) -> None:
    """A guillotine around the driver's calls about groups."""
    for name in ("create_group_snapshot", "delete_group_snapshot"):
        call = getattr(CsiClient, name)

        async def around(*given: Any, call: Any = call, **more: Any) -> Any:
            await guillotine.step()
            done = await call(*given, **more)
            await guillotine.step()
            return done

        monkeypatch.setattr(CsiClient, name, around)
