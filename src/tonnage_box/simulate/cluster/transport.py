"""Transport with latency and counters between a client and the API server."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from tonnage.base.aio.clock import Clock
from tonnage.kubernetes.client.transport import Request, Response, Transport

_BOOKMARKS = "allowWatchBookmarks"


@dataclass
class Traffic:
    """Counters of requests. writes, messages: resource -> number of writing requests, and of watch events."""

    writes: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        """Begin to count."""
        self.writes.clear()
        self.messages.clear()


class SlowTransport:
    """A Transport with latency. A request takes `write` seconds; watch events arrive `watch` seconds later.

    Bookmarks are not requested: a day of them for thousands of watches costs more than all other events.
    """

    def __init__(self, inner: Transport, traffic: Traffic, clock: Clock, *, write: float, watch: float) -> None:
        self._inner, self._traffic, self._clock = inner, traffic, clock
        self._write, self._watch = write, watch

    async def request(self, request: Request) -> Response:
        """See Transport."""
        if request.method != "GET":
            self._traffic.writes[_resource(request.path)] += 1
        if self._write:
            await self._clock.sleep(self._write)
        return await self._inner.request(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """See Transport."""
        query = {key: value for key, value in request.query.items() if key != _BOOKMARKS}
        async with self._inner.stream(replace(request, query=query)) as chunks:
            yield self._counted(chunks, _resource(request.path))

    async def _counted(self, chunks: AsyncIterator[bytes], resource: str) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            self._traffic.messages[resource] += chunk.count(b"\n")
            if self._watch:
                await self._clock.sleep(self._watch)
            yield chunk

    async def close(self) -> None:
        """See Transport."""
        await self._inner.close()


def _resource(path: str) -> str:
    """The word for the kind in a path: /api/v1/namespaces/x/pods/y/binding is of pods."""
    parts = path.split("/")[3:] if path.startswith("/api/") else path.split("/")[4:]
    return parts[2] if parts[0] == "namespaces" and len(parts) > 2 else parts[0]
