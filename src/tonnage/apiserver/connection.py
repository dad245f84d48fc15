"""One connection of a client, as aiohttp serves it: what is not HTTP is answered like all else, and waited for briefly.

aiohttp alone logs a traceback for every line that is no HTTP, and keeps a connection that never asks anything for
ever; both are open to anybody who reaches the port, with a token or without.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from tonnage.apiserver.errors import as_api_error, encode
from tonnage.errors import ApiError
from tonnage.kube.transport import JSON

log = logging.getLogger(__name__)
KEEPALIVE_SECONDS = 120.0
"""Longer than the 90 s for which Go's clients keep an idle connection, so that they close first."""
LINGER_SECONDS = 5.0
"""How long the rest of a body that was refused is still taken, so that its sender comes to read why."""
MAX_LINE = 64 << 10
_REASONS = {400: "BadRequest", 413: "RequestEntityTooLarge"}


class Connection(web.RequestHandler):
    """A connection that must begin its first request within `patience` seconds."""

    __slots__ = ("_late", "_patience")

    def __init__(self, manager: web.Server, patience: float, **options: Any) -> None:
        super().__init__(manager, **options)
        self._patience = patience
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._late = asyncio.get_running_loop().call_later(self._patience, self.force_close)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client has gone."""
        self.begun()
        super().connection_lost(exc)

    def begun(self) -> None:
        """A request has come. May be repeated."""
        if self._late is not None:
            self._late.cancel()
            self._late = None

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
        what = _told(exc)
        log.debug("not a request: %s", what)
        error = as_api_error(ApiError(what, code=status, reason=_REASONS.get(status, "BadRequest")))
        response = web.Response(status=status, body=encode(error), headers={"Content-Type": JSON})
        response.force_close()
        return response


class Server(web.Server):
    """aiohttp's, with connections of ours."""

    def __init__(self, handler: Any, *, patience: float, request_factory: Any) -> None:
        super().__init__(handler, request_factory=request_factory, handler_cancellation=True)
        self._patience = patience

    def __call__(self) -> web.RequestHandler:
        """The protocol of one more connection."""
        return Connection(
            self,
            self._patience,
            loop=asyncio.get_running_loop(),
            access_log=None,
            keepalive_timeout=KEEPALIVE_SECONDS,
            lingering_time=min(LINGER_SECONDS, self._patience),
            max_line_size=MAX_LINE,
            max_field_size=MAX_LINE,
        )


def _told(error: HttpProcessingError) -> str:
    """What is wrong, without the bytes that were sent: they may hold a token."""
    first = error.message.strip().partition("\n")[0].partition(": b")[0].partition(": bytearray")[0]
    return f"the request cannot be read as HTTP: {type(error).__name__}: {first.rstrip(':')[:120]}"
