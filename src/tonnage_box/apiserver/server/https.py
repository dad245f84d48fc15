"""HTTPS server: aiohttp around the request handler."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from aiohttp import web

from tonnage.base.aio.tasks import Background
from tonnage.base.errors import ApiError
from tonnage.kubernetes.client.transport import JSON, Request, Response
from tonnage_box.apiserver.access.access import ApiAccess
from tonnage_box.apiserver.request.errors import as_api_error
from tonnage_box.apiserver.request.negotiate import MAX_BODY, check_size
from tonnage_box.apiserver.rest.handler import Handler, Stream
from tonnage_box.apiserver.rest.output import error_response
from tonnage_box.apiserver.rest.remote_command import Upgrade
from tonnage_box.apiserver.server.auth import Credentials
from tonnage_box.apiserver.server.connection import HttpConnection, Server, Tls
from tonnage_box.apiserver.server.transfers import Transfer, Transfers
from tonnage_box.apiserver.storage.watch import Hub, Watcher

log = logging.getLogger(__name__)
_STOP_SECONDS = 0.5
_SEND_BUFFER = 128 << 10
"""Bytes that the kernel keeps for a client that does not read; it would be 4 MiB for each."""
_BACKLOG = 1024
_WATCH_PART = 16 << 10
_PART = 256 << 10
_SMALL = 16 << 10
"""Bytes of an answer or body that is not counted."""
ANSWERS_BYTES = 64 << 20
"""Bytes of all answers that are being sent. One alone may be larger."""
BODIES_BYTES = 64 << 20
"""Bytes of all bodies that are being received, by their announced length."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EXHAUSTED_SECONDS = 0.1
PATIENCE_SECONDS = 60.0
_FIRST_CHUNK_SECONDS = 0.1
_UNAUTHORIZED = ApiError("Unauthorized", code=401, reason="Unauthorized")


class HttpsServer:
    """One listening socket."""

    def __init__(
        self,
        handler: Handler,
        hub: Hub,
        credentials: Credentials,
        access: ApiAccess,
        *,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """patience: seconds for a first request to begin, and for a body to come whole."""
        self._patience = patience
        self._handler = handler
        self._hub = hub
        self._credentials = credentials
        self._access = access
        self._runner: web.ServerRunner | None = None
        self._server: Server | None = None
        self._sockets: list[socket.socket] = []
        self._tasks = Background("accept")
        self.answers = Transfers(ANSWERS_BYTES, "answers", "are being sent: try again, or ask for less (limit)")
        self.bodies = Transfers(BODIES_BYTES, "bodies", "are being received: try again")

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises: OSError."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, _, _, _, address in dict.fromkeys(found):
            listening = socket.create_server((address[0], port), family=family, backlog=_BACKLOG)
            listening.setblocking(False)
            self._sockets.append(listening)
            port = listening.getsockname()[1]
        self._server = Server(self._serve, patience=self._patience, request_factory=_request_factory())
        self._runner = web.ServerRunner(self._server, shutdown_timeout=_STOP_SECONDS)
        await self._runner.setup()
        context = self._credentials.ssl_context()
        for listening in self._sockets:
            self._tasks.start(self._accept(listening, self._server, context))
        return port

    async def _accept(self, listening: socket.socket, server: Server, context: ssl.SSLContext) -> None:
        """Accept connections for ever, while there are not too many without valid credentials."""
        loop = asyncio.get_running_loop()
        while True:
            await server.unauthenticated.wait_for_space()
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:  # the client has disconnected, or there are no descriptors left
                if error.errno in _EXHAUSTED:
                    log.warning("cannot accept a connection: %s", error.strerror)
                    server.unauthenticated.abort_oldest()
                    await asyncio.sleep(_EXHAUSTED_SECONDS)
                await asyncio.sleep(0)  # an error that stays must not hold the loop
                continue
            try:
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
                await loop.connect_accepted_socket(lambda: Tls(server(), context, server.unauthenticated), accepted)
            except OSError as error:
                log.debug("connection lost: %s", error)
                accepted.close()
            except Exception:  # a fault of one connection makes the API server deaf to no other
                log.exception("cannot serve a connection")
                accepted.close()

    async def stop(self) -> None:
        """Close the socket and open connections. Idempotent."""
        await self._tasks.close()
        while self._sockets:
            self._sockets.pop().close()
        if self._server is not None:
            self._server.unauthenticated.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if isinstance(request.protocol, HttpConnection):
            request.protocol.begun()
        user = await self._access.authenticator.header_user(request.headers.get("Authorization", ""))
        if user is None:
            return _http(error_response(_UNAUTHORIZED), close=True)
        if isinstance(request.protocol, HttpConnection):
            request.protocol.authenticated()
        try:
            user = self._access.impersonated(user, request.headers)
            asked = _head(request)
            if request.body_exists:
                if (rejected := await self._handler.rejected(asked, user)) is not None:
                    return _http(rejected, close=True)
                asked = replace(asked, body=await self._body(request))
        except ApiError as error:
            return _http(error_response(error), close=True)
        answer = await self._handler.handle(asked, user)
        if isinstance(answer, Response):
            return await self._send(request, answer)
        if isinstance(answer, Watcher):
            return await self._watch(request, answer)
        if isinstance(answer, Upgrade):
            from tonnage_box.apiserver.server.websocket import serve

            return await serve(request, answer)
        return await _stream(request, answer)

    async def _body(self, request: web.BaseRequest) -> bytes:
        """The body of a request. Raises: an ApiError (too large, cut short, too slow, too many at once)."""
        check_size(request.content_length or 0)
        size = MAX_BODY if request.content_length is None else request.content_length
        receiving = self.bodies.begin(size, request.transport) if size > _SMALL else None
        try:
            async with asyncio.timeout(self._patience):
                return await _received(request, receiving)
        except TimeoutError:
            raise ApiError(f"the body did not come within {self._patience:g} s", code=408, reason="Timeout") from None
        except (web.HTTPException, OSError, ValueError) as error:
            raise as_api_error(ApiError(f"cannot read the body: {error}", code=400, reason="BadRequest")) from None
        finally:
            if receiving is not None:
                self.bodies.end(receiving)

    async def _send(self, request: web.BaseRequest, answer: Response) -> web.StreamResponse:
        """Send an answer; a large one in parts, so that the loop turns in between, while its client reads it."""
        if len(answer.body) <= _SMALL:
            return _http(answer)
        try:
            sending = self.answers.begin(len(answer.body), request.transport)
        except ApiError as error:
            return _http(error_response(error))
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        response.content_length = len(answer.body)
        try:
            await response.prepare(request)
            for start in range(0, len(answer.body), _PART):
                async with asyncio.timeout(self._patience):
                    await response.write(answer.body[start : start + _PART])
                    await request.writer.drain()
                sending.moved = start + _PART
                await asyncio.sleep(0)
            await response.write_eof()
        except TimeoutError:
            log.debug("a client does not read its answer")
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            log.debug("client disconnected during an answer")
        finally:
            self.answers.end(sending)
        return response

    async def _watch(self, request: web.BaseRequest, watcher: Watcher) -> web.StreamResponse:
        transport = request.transport
        if transport is not None:
            watcher.on_drop = transport.abort
            # What a connection has taken is a copy of its own: of a client that does not read it is to be little.
            transport.set_write_buffer_limits(high=_WATCH_PART)
        response = web.StreamResponse(
            headers={"Content-Type": watcher.shape.content_type, "Cache-Control": "no-cache, private"}
        )
        response.enable_chunked_encoding()
        try:
            await response.prepare(request)
            while chunk := await watcher.read():
                for start in range(0, len(chunk), _WATCH_PART):
                    await response.write(chunk[start : start + _WATCH_PART])
                    await request.writer.drain()
            with suppress(ConnectionError):
                await response.write_eof()
        except ConnectionError:
            log.debug("watch client disconnected")
        finally:
            self._hub.close(watcher)
        return response


def _request_factory() -> Any:
    """aiohttp's own."""
    loop = asyncio.get_running_loop()

    def make(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, loop)

    return make


async def _received(request: web.BaseRequest, receiving: Transfer | None) -> bytes:
    """The body, part by part. Raises: a 413, and what aiohttp raises."""
    body = bytearray()
    while part := await request.content.readany():
        body += part
        check_size(len(body))
        if receiving is not None:
            receiving.moved = len(body)
    return bytes(body)


def _head(request: web.BaseRequest) -> Request:
    """The request without HTTP and without its body."""
    url, headers = request.rel_url, request.headers
    query = dict(reversed(list(url.query.items()))) if url.raw_query_string else {}
    return Request(
        request.method,
        url.raw_path,
        query,
        b"",
        headers.get("Content-Type", JSON),
        headers.get("Accept", JSON),
        *((upgrade.lower(), tuple(url.query.items())) if (upgrade := headers.get("Upgrade", "")) else ()),
    )


def _http(answer: Response, *, close: bool = False) -> web.Response:
    response = web.Response(status=answer.status, body=answer.body, headers=answer.headers)
    if close:
        response.force_close()
    return response


async def _stream(request: web.BaseRequest, stream: Stream) -> web.StreamResponse:
    """Send chunks as they come; an error before the first is a plain answer."""
    first = asyncio.ensure_future(_next(stream.chunks))
    try:
        await asyncio.wait({first}, timeout=_FIRST_CHUNK_SECONDS)
        if first.done() and (error := first.exception()) is not None:
            if not isinstance(error, Exception):
                raise error
            return _http(error_response(as_api_error(error)))
        response = web.StreamResponse(headers={"Content-Type": stream.content_type})
        response.enable_chunked_encoding()
        await response.prepare(request)
        chunk = await first
        while chunk is not None:
            if chunk:
                await response.write(chunk)
            chunk = await _next(stream.chunks)
        await response.write_eof()
    finally:
        first.cancel()
        closing = getattr(stream.chunks, "aclose", None)
        if closing is not None:
            with suppress(asyncio.CancelledError, RuntimeError):
                await asyncio.gather(first, return_exceptions=True)
                await closing()
    return response


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)
