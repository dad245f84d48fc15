"""Client connections of the HTTPS server: limits for connections without valid credentials.

aiohttp alone logs a traceback for every line that is not HTTP, and never closes a connection without a request. Any
client that reaches the port could use both. Connections are counted from accept(2) on, before their TLS handshake,
until their first request with valid credentials. Malformed requests are answered like any other.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import logging
import ssl
from contextlib import suppress
from typing import Any, cast

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from tonnage.base.errors import ApiError
from tonnage.kubernetes.client.transport import JSON
from tonnage_box.apiserver.rest.output import error_response

log = logging.getLogger(__name__)
KEEPALIVE_SECONDS = 120.0
"""Longer than the 90 s for which Go's clients keep an idle connection, so that they close first."""
LINGER_SECONDS = 5.0
"""How long the rest of a body that was rejected is still taken, so that its sender comes to read why."""
MAX_LINE = 64 << 10
MAX_HEADERS = 128 << 10
"""Bytes of a request's first line and headers. Go's servers take 1 MiB."""
MAX_UNAUTHENTICATED = 256
"""Connections without valid credentials at one time; further ones wait to be accepted."""
TURN_SECONDS = 2.0
"""How long such a connection is safe when others wait: enough for a handshake and a request."""
_REASONS = {400: "BadRequest", 413: "RequestEntityTooLarge"}
_TOO_MANY_HEADERS = error_response(
    ApiError(f"the headers of the request have more than {MAX_HEADERS} bytes", code=431, reason="BadRequest")
).body
_REJECTED = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: %s\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%s" % (JSON.encode(), len(_TOO_MANY_HEADERS), _TOO_MANY_HEADERS)
)


class Unauthenticated:
    """The connections without valid credentials so far, the oldest first. most: at one time. turn: seconds of each."""

    def __init__(self, most: int = MAX_UNAUTHENTICATED, turn: float = TURN_SECONDS) -> None:
        self.most, self.turn = most, turn
        self._connections: dict[HttpConnection, tuple[asyncio.Transport, float]] = {}
        self._left = asyncio.Event()

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: HttpConnection, transport: asyncio.Transport) -> None:
        """Count a connection that was accepted."""
        self._connections[connection] = (transport, asyncio.get_running_loop().time())

    def discard(self, connection: HttpConnection) -> None:
        """Remove a connection that has shown valid credentials or is closed. Idempotent."""
        if self._connections.pop(connection, None) is not None:
            self._left.set()

    def abort_oldest(self) -> None:
        """Abort the oldest connection, so that a new one fits under the limit."""
        if self._connections:
            oldest = next(iter(self._connections))
            transport, _ = self._connections.pop(oldest)
            transport.abort()

    async def wait_for_space(self) -> None:
        """Wait until another connection may be accepted: the oldest is closed when its turn is over."""
        while len(self._connections) >= self.most:
            _, since = next(iter(self._connections.values()))
            left = since + self.turn - asyncio.get_running_loop().time()
            if left <= 0:
                self.abort_oldest()
                continue
            self._left.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._left.wait()

    def close(self) -> None:
        """End all of them."""
        while self._connections:
            self.abort_oldest()


class Tls(asyncio.sslproto.SSLProtocol):
    """TLS of one connection. The writer waits until the kernel has all data, so a slow reader fills no buffer.

    asyncio's own server counts a connection only after its handshake, and buffers up to 1 MiB for its reader.
    """

    max_size = 32 << 10  # asyncio allots 256 KiB a connection: a thousand watches would take 280 MiB

    def __init__(self, connection: HttpConnection, context: ssl.SSLContext, unauthenticated: Unauthenticated) -> None:
        loop = asyncio.get_running_loop()
        patience = max(1, round(connection.patience))
        super().__init__(loop, connection, context, None, server_side=True, ssl_handshake_timeout=patience)  # type: ignore[arg-type]
        self._connection = connection
        self._unauthenticated = unauthenticated
        self._raw: asyncio.Transport | None = None
        self._set_write_buffer_limits(high=1, low=0)  # type: ignore[attr-defined]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, then begin the handshake."""
        self._raw = cast(asyncio.Transport, transport)
        self._raw.set_write_buffer_limits(high=0)
        self._unauthenticated.add(self._connection, self._raw)
        super().connection_made(self._raw)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone, perhaps before its handshake was done."""
        self._unauthenticated.discard(self._connection)
        super().connection_lost(exc)

    def _get_write_buffer_size(self) -> int:
        waiting = self._raw.get_write_buffer_size() if self._raw is not None else 0
        return waiting + int(super()._get_write_buffer_size())  # type: ignore[misc]


class HttpConnection(web.RequestHandler):
    """A connection that must begin its first request within `patience` seconds."""

    __slots__ = ("_body", "_head", "_is_upgraded", "_late", "_unauthenticated", "patience")

    def __init__(self, manager: web.Server, patience: float, unauthenticated: Unauthenticated, **options: Any) -> None:
        super().__init__(manager, **options)
        self.patience = patience
        self._unauthenticated = unauthenticated
        self._late: asyncio.TimerHandle | None = None
        self._head = 0
        """Bytes of a request whose headers are not complete."""
        self._body: StreamReader | None = None
        """That of the newest request."""
        self._is_upgraded = False

    def data_received(self, data: bytes) -> None:
        """Take what the client sends. Headers are counted as they come: the parser holds them until the last."""
        is_head, requests = self._body is None or self._body.is_eof(), self._request_count
        super().data_received(data)
        if self._request_count != requests and self._messages:
            message, self._body = self._messages[-1]
            self._head, self._is_upgraded = 0, bool(getattr(message, "upgrade", False))
        elif is_head and not self._is_upgraded and not self._force_close:
            self._head += len(data)
            if self._head > MAX_HEADERS:
                self._reject_headers()

    def _reject_headers(self) -> None:
        log.debug("too many headers bytes=%d", self._head)
        if self.transport is not None and self._current_request is None:  # else an answer is being sent
            self.transport.write(_REJECTED)
        self.force_close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._late = asyncio.get_running_loop().call_later(self.patience, self.force_close)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client has gone."""
        self.begun()
        super().connection_lost(exc)

    def begun(self) -> None:
        """Record that a request has begun. Idempotent."""
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def authenticated(self) -> None:
        """A request with valid credentials has come. Idempotent."""
        self._unauthenticated.discard(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """A Status for what the client did wrong (no HTTP, lines too long); our own faults are aiohttp's to log."""
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        what = _described(exc)
        log.debug("not a request: %s", what)
        error = ApiError(what, code=status, reason=_REASONS.get(status, "BadRequest"))
        response = web.Response(status=status, body=error_response(error).body, headers={"Content-Type": JSON})
        response.force_close()
        return response


class Server(web.Server):
    """aiohttp's server with our connections."""

    def __init__(self, handler: Any, *, patience: float, request_factory: Any) -> None:
        super().__init__(handler, request_factory=request_factory, handler_cancellation=True)
        self._patience = patience
        self.unauthenticated = Unauthenticated()

    def __call__(self) -> HttpConnection:
        """The protocol of one more connection."""
        return HttpConnection(
            self,
            self._patience,
            self.unauthenticated,
            loop=asyncio.get_running_loop(),
            access_log=None,
            keepalive_timeout=KEEPALIVE_SECONDS,
            lingering_time=min(LINGER_SECONDS, self._patience),
            max_line_size=MAX_LINE,
            max_field_size=MAX_LINE,
            auto_decompress=False,  # a body of 3 MiB may unfold to gigabytes
        )


def _described(error: HttpProcessingError) -> str:
    """The error, without the received bytes: they may contain a token."""
    first = error.message.strip().partition("\n")[0].partition(": b")[0].partition(": bytearray")[0]
    return f"the request cannot be read as HTTP: {type(error).__name__}: {first.rstrip(':')[:120]}"
