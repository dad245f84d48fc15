"""An API server in memory, and a small client that speaks to it through the in-process transport."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tonnage.kubernetes.client.transport import JSON, MERGE_PATCH, Request, Response
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.testing.clock import ManualClock


class Api:
    """Requests and their answers as plain values."""

    def __init__(self, server: ApiServer, clock: ManualClock) -> None:
        self.server = server
        self.clock = clock
        self.transport = server.transport()

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Response:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return await self.transport.request(Request(method, path, query or {}, data, content_type, accept))

    async def call(self, method: str, path: str, body: Any = None, want: int = 200, **options: Any) -> Any:
        answer = await self.send(method, path, body, **options)
        assert answer.status == want, (answer.status, answer.body)
        return json.loads(answer.body)

    async def get(self, path: str, want: int = 200, **options: Any) -> Any:
        return await self.call("GET", path, want=want, **options)

    async def create(self, path: str, body: Any, want: int = 201, **options: Any) -> Any:
        return await self.call("POST", path, body, want=want, **options)

    async def put(self, path: str, body: Any, want: int = 200, **options: Any) -> Any:
        return await self.call("PUT", path, body, want=want, **options)

    async def patch(
        self, path: str, body: Any, want: int = 200, content_type: str = MERGE_PATCH, **options: Any
    ) -> Any:
        return await self.call("PATCH", path, body, want=want, content_type=content_type, **options)

    async def delete(self, path: str, body: Any = None, want: int = 200, **options: Any) -> Any:
        return await self.call("DELETE", path, body, want=want, **options)

    @asynccontextmanager
    async def watch(self, path: str, accept: str = JSON, **query: str) -> AsyncIterator[Watch]:
        request = Request("GET", path, {"watch": "1", **query}, accept=accept)
        async with self.transport.stream(request) as chunks:
            yield Watch(chunks)


class Watch:
    """The events of one watch, one by one."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._lines: list[bytes] = []

    async def next(self) -> tuple[str, Any]:
        """Type and object of the next event; raises StopAsyncIteration at the end."""
        while not self._lines:
            self._lines = (await anext(self._chunks)).splitlines()
        event = json.loads(self._lines.pop(0))
        return event["type"], event["object"]

    async def names(self, count: int) -> list[tuple[str, str]]:
        """Types and names of the next events."""
        return [(kind, obj["metadata"]["name"]) for kind, obj in [await self.next() for _ in range(count)]]


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    clock = ManualClock()
    server = ApiServer(Store(extractor()), clock=clock)
    await server.start()
    yield Api(server, clock)
    await server.stop()
