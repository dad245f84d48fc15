"""The transport over HTTP, with aiohttp."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote, urlencode

import aiohttp

from tonnage.errors import Unavailable
from tonnage.kube.client import status_error
from tonnage.kube.kubeconfig import Access
from tonnage.kube.transport import Request, Response

_LOST = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError, TimeoutError)


class HttpTransport:
    """Speaks to the server of an Access. seconds: how long a request may take; watches may last for ever."""

    def __init__(self, access: Access, *, seconds: float = 30.0, user_agent: str = "tonnage") -> None:
        self._access = access
        self._timeout = aiohttp.ClientTimeout(total=seconds)
        self._endless = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        self._headers = {"User-Agent": user_agent, **access.headers}
        self._open: aiohttp.ClientSession | None = None

    def _session(self) -> aiohttp.ClientSession:
        if self._open is None:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._access.tls or True)
            self._open = aiohttp.ClientSession(connector=connector, auto_decompress=True)
        return self._open

    async def request(self, request: Request) -> Response:
        """See Transport. Raises Unavailable when there is no connection or no answer in time."""
        async with self._send(request, self._timeout) as answer:
            try:
                return Response(answer.status, await answer.read(), answer.headers)
            except _LOST as failure:
                raise self._unavailable(failure) from failure

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """See Transport."""
        async with self._send(request, self._endless) as answer:
            if answer.status != 200:
                raise status_error(await answer.read(), answer.status)
            yield self._chunks(answer)

    async def _chunks(self, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for chunk in answer.content.iter_any():  # not by lines: aiohttp refuses long ones
                yield chunk
        except _LOST as failure:
            raise self._unavailable(failure) from failure

    @asynccontextmanager
    async def _send(self, request: Request, timeout: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {**self._headers, "Accept": request.accept}
        if request.body:
            headers["Content-Type"] = request.content_type
        if token := await self._access.token():
            headers["Authorization"] = f"Bearer {token}"
        url = (
            self._access.server
            + quote(request.path, safe="/:")
            + ("?" + urlencode(request.query) if request.query else "")
        )
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
            raise self._unavailable(failure) from failure
        try:
            yield answer
        finally:
            answer.close() if answer.status == 200 and timeout is self._endless else answer.release()

    def _unavailable(self, failure: BaseException) -> Unavailable:
        return Unavailable(f"API server {self._access.server}: {str(failure) or type(failure).__name__}")

    async def close(self) -> None:
        """Close all connections."""
        if self._open is not None:
            await self._open.close()
            self._open = None
