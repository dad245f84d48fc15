"""An agent and a PV controller that see different states do not undo each other's writes without a pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tonnage.base.aio.tasks import Background
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.controllers.pv_binder.controller import Binder
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing.node import fake_node
from tonnage_box.testing.objects import Objects
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
HOUR = 3600.0


class _Stale:
    """A transport whose watch of PersistentVolumes has stopped, and which counts writes of the claim's status since then."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.is_stale = False
        self.statuses = 0

    async def request(self, request: Request) -> Response:
        """See Transport."""
        if request.method == "PATCH" and self.is_stale:
            self.statuses += request.path.endswith("/persistentvolumeclaims/data/status")
        return await self._inner.request(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """See Transport."""
        async with self._inner.stream(request) as chunks:
            yield self._seen(chunks) if request.path.endswith("/persistentvolumes") else chunks

    async def _seen(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            if not self.is_stale:
                yield chunk

    async def close(self) -> None:
        """See Transport."""


async def test_lost_and_bound_are_written_later_and_later(
    api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory, eventually: Eventually
) -> None:
    """The agent still has a PersistentVolume that is gone, and binds it; the PV controller finds the claim lost."""
    kube, stale, client = Client(api_server.transport()), _Stale(api_server.transport()), Client(api_server.transport())
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    objects, tasks = Objects(kube), Background("binder")
    await objects.storage_class("late", default=True)
    informers = Informers(client)
    binder = Binder(client, informers, EventRecorder(client, "binder", clock=LoopClock()), clock=LoopClock())
    informers.start()
    tasks.start(binder.run())
    async with fake_node(Client(stale), tmp_path_factory.mktemp("n"), "10Gi") as node:
        await objects.claim("data", storageClassName="late")
        await node.select("data")
        await eventually(lambda: node.is_bound("data"))
        await asyncio.sleep(HOUR)
        stale.is_stale = True
        volume = (await node.claim("data")).spec.volume_name
        await kube.patch(kinds.VOLUMES, volume, {"metadata": {"finalizers": None}})
        await kube.delete(kinds.VOLUMES, volume)
        await asyncio.sleep(HOUR)
        assert 8 < stale.statuses < 30
    await tasks.close()
    await informers.close()
