"""A gRPC server on a unix socket: the socket and its connections."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.csi.server import sockets
from tonnage.csi.server.dispatch import Calls
from tonnage.csi.server.http2 import ServerConnection
from tonnage.csi.server.inflight import InFlight
from tonnage.csi.server.service import Service

log = logging.getLogger(__name__)

GRACE = 0.8
"""Seconds that stop() waits for calls under way."""
LAST = 0.2
"""Seconds that stop() waits for calls that it has cancelled."""


class CsiServer:
    """Serves gRPC services at a unix socket."""

    pause = 1.0
    """Seconds after a connection that could not be accepted."""

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
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[ServerConnection] = set()
        self._is_alone = asyncio.Event()
        self._inode = 0

    async def start(self) -> None:
        """Bind the socket and serve. Raises: InvalidError, PreconditionError and HostError as sockets.bind_private."""
        if self._accepting is not None:
            return
        listening = sockets.bind_private(self.path)
        self._inode = sockets.inode_of(self.path)
        listening.setblocking(False)
        self._accepting = asyncio.ensure_future(self._accept(listening))
        log.info("serving socket=%s", self.path)

    async def _accept(self, listening: socket.socket) -> None:
        # No asyncio.Server: one that is closed leaves a connection open that it accepted a turn before.
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    connected, _ = await loop.sock_accept(listening)
                    try:
                        await loop.connect_accepted_socket(self._connection, connected)
                    except BaseException:
                        connected.close()
                        raise
                except OSError as failure:  # no descriptors are left
                    log.warning("connection not accepted socket=%s error=%s", self.path, failure)
                    await asyncio.sleep(self.pause)
                except Exception:  # a fault of one connection makes the driver deaf to no other
                    log.exception("connection not accepted socket=%s", self.path)
                    await asyncio.sleep(self.pause)

    def _connection(self) -> ServerConnection:
        connection = ServerConnection(self.calls.begin, self._lost)
        self._connections.add(connection)
        return connection

    def _lost(self, connection: ServerConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._is_alone.set()

    async def stop(self) -> None:
        """Accept no more calls, wait for those under way (0.8 s at most), remove the socket. Idempotent."""
        if self._accepting is None:
            return
        accepting, self._accepting = self._accepting, None
        sockets.remove_if_same(self.path, self._inode)
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        await self.calls.drained(GRACE)
        for connection in list(self._connections):
            connection.hang_up()
        if self._connections:
            self._is_alone.clear()
            with suppress(TimeoutError):  # of a client that does not read its responses
                await asyncio.wait_for(self._is_alone.wait(), GRACE)
        await self.calls.close(LAST)

    async def __aenter__(self) -> CsiServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
