"""The node of a session, and the limit of their number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.box.kubelet.streaming.clients import FakeClient

from tonnage.base.errors import ApiError
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage_box.api.remote_command import Session, StreamOptions, Streams
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.kubelet.streaming.router import MAX_SESSIONS, StreamRouter

OPTIONS = StreamOptions("", ("true",), stdout=True)


class Waiting:
    """A node whose sessions last until `end` is set."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    def open(self, pod: Pod, options: StreamOptions) -> Session:
        async def serve(streams: Streams) -> int:
            await self.end.wait()
            return 0

        return serve


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    server = ApiServer(Store(extractor()))
    await server.start()
    made = Client(server.transport())
    for name, node in (("here", "n1"), ("elsewhere", "n2"), ("nowhere", "")):
        spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": node}
        await made.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")
    yield made
    await server.stop()


async def test_a_thousand_at_once_end_nothing(client: Client) -> None:
    router, node = StreamRouter(client), Waiting()
    router.add("n1", cast(Any, SimpleNamespace(streams=node)))
    sessions = [await router.open("default", "here", OPTIONS) for _ in range(1000)]
    running = [asyncio.ensure_future(serve(FakeClient())) for serve in sessions]
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="256 exec and attach sessions are open") as rejected:
        await router.open("default", "here", OPTIONS)
    assert rejected.value.code == 429
    node.end.set()
    ended = await asyncio.gather(*running, return_exceptions=True)
    assert ended.count(0) == MAX_SESSIONS
    assert await (await router.open("default", "here", OPTIONS))(FakeClient()) == 0


async def test_pods_without_a_node_of_ours(client: Client) -> None:
    router = StreamRouter(client)
    with pytest.raises(ApiError, match="pod nowhere does not have a host assigned"):
        await router.open("default", "nowhere", OPTIONS)
    with pytest.raises(ApiError, match="node n2 of pod elsewhere is not served here"):
        await router.open("default", "elsewhere", OPTIONS)
    with pytest.raises(ApiError, match='pods "none" not found'):
        await router.open("default", "none", OPTIONS)
