"""The HTTP transport to an API server, with aiohttp.

If the server rejects a token, it is read again, and the request is repeated once if it has changed. Lost authorization
is logged once, and its return once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp

from tonnage.base.errors import UnavailableError
from tonnage.base.observe import metrics
from tonnage.kubernetes.client.client import status_error
from tonnage.kubernetes.client.kubeconfig import Access
from tonnage.kubernetes.client.transport import Request, Response

log = logging.getLogger(__name__)
_LOST = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError, TimeoutError)
_UNAUTHORIZED = 401
SILENCE = 300.0
"""Seconds without events after which a watch counts as lost: servers send bookmarks each minute."""
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class HttpTransport:
    """HTTP to the server of an Access. seconds: timeout of a request; watches have none.

    at_once: maximum number of concurrent requests, and so of connections in addition to those of watches: each costs
    both sides a TLS handshake and memory. Others wait, and their timeout starts after that.
    """

    def __init__(
        self, access: Access, *, seconds: float = 30.0, user_agent: str = "tonnage", at_once: int = 100
    ) -> None:
        self._access = access
        self._turns = asyncio.Semaphore(at_once)
        self._timeout = aiohttp.ClientTimeout(total=seconds)
        self._endless = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=SILENCE)
        self._headers = {"User-Agent": user_agent, **access.headers}
        self._open: aiohttp.ClientSession | None = None
        self._rejected = False

    def _session(self) -> aiohttp.ClientSession:
        if self._open is None:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._access.tls or True, socket_factory=_lively_socket)
            self._open = aiohttp.ClientSession(connector=connector, auto_decompress=True)
        return self._open

    async def request(self, request: Request) -> Response:
        """Send a request. Raises: UnavailableError when there is no connection or no response in time."""
        async with self._turns, self._send(request, self._timeout) as answer:
            try:
                return Response(answer.status, await answer.read(), answer.headers)
            except _LOST as failure:
                raise self._unavailable(failure) from failure

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._send(request, self._endless) as answer:
            if answer.status != 200:
                raise status_error(await answer.read(), answer.status)
            yield self._chunks(answer)

    async def _chunks(self, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for chunk in answer.content.iter_any():  # not by lines: aiohttp rejects long ones
                yield chunk
        except _LOST as failure:
            raise self._unavailable(failure) from failure

    @asynccontextmanager
    async def _send(self, request: Request, timeout: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
        token = await self._access.token()
        answer = await self._send_as(token, request, timeout)
        if answer.status == _UNAUTHORIZED:
            self._access.token.forget()
            if (other := await self._access.token()) != token:
                answer.release()
                answer = await self._send_as(other, request, timeout)
        self._tell(rejected=answer.status == _UNAUTHORIZED)
        try:
            yield answer
        finally:
            answer.close() if answer.status == 200 and timeout is self._endless else answer.release()

    async def _send_as(self, token: str, request: Request, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        headers = {**self._headers, "Accept": request.accept}
        if request.body:
            headers["Content-Type"] = request.content_type
        if token:
            headers["Authorization"] = f"Bearer {token}"
        query = f"?{urlencode(request.query)}" if request.query else ""
        url = f"{self._access.server}{quote(request.path, safe='/:')}{query}"
        try:
            answer = await self._session().request(
                request.method,
                url,
                data=request.body or None,
                headers=headers,
                timeout=timeout,
                server_hostname=self._access.server_name or None,
            )
        except _LOST as failure:
            metrics.REQUESTS.labels("<error>", request.method).inc()
            raise self._unavailable(failure) from failure
        metrics.REQUESTS.labels(str(answer.status), request.method).inc()
        return answer

    def _tell(self, *, rejected: bool) -> None:
        """Log once when the server begins to reject us, and once when that is over."""
        if rejected == self._rejected:
            return
        self._rejected = rejected
        metrics.REJECTED.set(rejected)
        if rejected:
            log.error(
                "API server does not accept our credentials: nothing is made or removed until it does, mounts stay; the"
                " token has run out, or its account or pod is gone server=%s",
                self._access.server,
            )
        else:
            log.info("API server accepts our credentials again server=%s", self._access.server)

    def _unavailable(self, failure: BaseException) -> UnavailableError:
        return UnavailableError(f"API server {self._access.server}: {str(failure) or type(failure).__name__}")

    async def close(self) -> None:
        """Close all connections."""
        if self._open is not None:
            await self._open.close()
            self._open = None


def _lively_socket(address: Any) -> socket.socket:
    """A socket with TCP keepalive: a watch on a server that vanished would never end."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
