"""An API server that is restored from a backup, and lines to it that break, for tests of what its clients then do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import UnavailableError
from tonnage.kubernetes.client.transport import Request, Response
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store, StoredObject

_RESET = "connection reset by peer"


class _EndError(Exception):
    """The server has ended a watch."""


@dataclass(frozen=True)
class Backup:
    """The objects of an API server."""

    records: tuple[StoredObject, ...]
    revision: int


class Front:
    """What clients connect to: the API server of the moment. entropy: of uids."""

    def __init__(self, clock: Clock, entropy: Random) -> None:
        self._clock, self._entropy = clock, entropy
        self._server: ApiServer | None = None
        self._lines: list[Line] = []

    @property
    def server(self) -> ApiServer:
        """The API server. Raises UnavailableError while there is none."""
        if self._server is None:
            raise UnavailableError("connection refused")
        return self._server

    def line(self) -> Line:
        """A transport of one client."""
        self._lines.append(Line(self))
        return self._lines[-1]

    def back_up(self) -> Backup:
        """What restore() takes."""
        store = self.server.store
        return Backup(tuple(record for kind in store.collections() for record in store.records(kind)), store.revision)

    async def restore(self, backup: Backup | None, *, since: int = 0, gently: bool = False) -> None:
        """Another API server in place of this one, None for an empty one. All connections break.

        since: what it has written. gently: the old one ends its watches, and clients find the new one at once.
        """
        store = Store(extractor())
        if backup is not None:
            store._load(backup.records, backup.revision + since)
        server = ApiServer(store, clock=self._clock, entropy=Random(self._entropy.random()))
        if not gently:
            await self.stop()
        await server.start()
        old, self._server = self._server, server
        for line in self._lines:
            line.break_all("" if gently else _RESET)
        if old is not None:
            await old.stop()

    async def stop(self) -> None:
        """There is no API server any more, as far as clients see. Idempotent."""
        old, self._server = self._server, None
        for line in self._lines:
            line.break_all()
        if old is not None:
            await old.stop()


class Line:
    """A kube.transport.Transport of one client."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._is_cut = False
        self._open = set[asyncio.Future[str]]()

    def cut(self) -> None:
        """Nothing gets through until mend()."""
        self._is_cut = True
        self.break_all()

    def mend(self) -> None:
        """End cut(). Idempotent."""
        self._is_cut = False

    def break_all(self, why: str = _RESET) -> None:
        """Break the open watches; end them for an empty reason."""
        for watch in self._open:
            watch.set_result(why)
        self._open = set()

    def _server(self) -> ApiServer:
        if self._is_cut:
            raise UnavailableError("no route to host")
        return self._front.server

    async def request(self, request: Request) -> Response:
        """See Transport."""
        return await self._server().transport().request(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """See Transport."""
        broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._open.add(broken)
        try:
            async with self._server().transport().stream(request) as chunks:
                yield _until(broken, chunks)
        finally:
            self._open.discard(broken)

    async def close(self) -> None:
        """See Transport."""


async def _until(broken: asyncio.Future[str], chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        following: asyncio.Future[Any] = asyncio.ensure_future(anext(chunks))
        try:
            await asyncio.wait([following, broken], return_when=asyncio.FIRST_COMPLETED)
            if broken.done():
                raise UnavailableError(broken.result()) if broken.result() else _EndError
        except BaseException as end:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            if isinstance(end, _EndError):
                return
            raise
        try:
            yield following.result()
        except StopAsyncIteration:
            return
