"""A gRPC server on a unix socket: the socket and its connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tonnage.aio.clock import Clock, RealClock
from tonnage.csi.server import sockets
from tonnage.csi.server.dispatch import Calls
from tonnage.csi.server.http2 import ServerConnection
from tonnage.csi.server.inflight import InFlight
from tonnage.csi.server.service import Service

log = logging.getLogger(__name__)

GRACE = 0.8
"""Seconds that stop() waits for calls under way."""


class CsiServer:
    """Serves gRPC services at a unix socket."""

    def __init__(
        self,
        path: Path,
        services: Sequence[Service],
        *,
        in_flight: InFlight | None = None,
        clock: Clock | None = None,
        driver: str = "",
    ) -> None:
        """driver: its name, for the metric, "" for servers that are not counted."""
        self.path = path
        self.calls = Calls(path.name, services, in_flight or InFlight(), clock or RealClock(), driver=driver)
        self._server: asyncio.Server | None = None
        self._connections: set[ServerConnection] = set()
        self._inode = 0

    async def start(self) -> None:
        """Bind the socket and serve. Raises InvalidError, PreconditionError and HostError as sockets.bind_private."""
        if self._server is not None:
            return
        listening = sockets.bind_private(self.path)
        self._inode = sockets.inode_of(self.path)
        self._server = await asyncio.get_running_loop().create_unix_server(self._connection, sock=listening)
        log.info("serving socket=%s", self.path)

    def _connection(self) -> ServerConnection:
        connection = ServerConnection(self.calls.begin, self._connections.discard)
        self._connections.add(connection)
        return connection

    async def stop(self) -> None:
        """Accept no more calls, wait for those under way (0.8 s at most), remove the socket. Idempotent."""
        if self._server is None:
            return
        server, self._server = self._server, None
        sockets.remove_if_same(self.path, self._inode)
        server.close()
        await self.calls.drained(GRACE)
        for connection in list(self._connections):
            connection.hang_up()
        with suppress(TimeoutError):  # of a client that does not read its responses
            await asyncio.wait_for(server.wait_closed(), GRACE)
        await self.calls.close()

    async def __aenter__(self) -> CsiServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
