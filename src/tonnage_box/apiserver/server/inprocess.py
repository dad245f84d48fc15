"""In-process transport: requests reach the handler without HTTP and sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tonnage.base.errors import ApiError, UnavailableError
from tonnage.kubernetes.client.client import status_error
from tonnage.kubernetes.client.transport import Request, Response
from tonnage_box.apiserver.request.user import ApiUser
from tonnage_box.apiserver.rest.handler import Handler, Stream
from tonnage_box.apiserver.rest.remote_command import Upgrade
from tonnage_box.apiserver.storage.watch import Hub, Watcher

_TOGETHER = 16
"""Requests after which others get a turn of the event loop: most requests wait for nothing."""


class InProcess:
    """A kube.transport.Transport. `user` is the authenticated user of its requests."""

    def __init__(self, handler: Handler, hub: Hub, user: ApiUser) -> None:
        self._handler = handler
        self._hub = hub
        self._user = user
        self._open = True
        self._asked = 0

    async def request(self, request: Request) -> Response:
        """See Transport."""
        self._check()
        self._asked += 1
        if self._asked % _TOGETHER == 0:
            await asyncio.sleep(0)
            self._check()
        answer = await self._handler.handle(request, self._user)
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, Stream):
            return Response(200, b"".join([chunk async for chunk in answer.chunks]))
        if isinstance(answer, Upgrade):
            raise _no_upgrade()
        self._hub.close(answer)
        raise ApiError("a watch is asked for by stream(), not by request()", code=400, reason="BadRequest")

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """See Transport."""
        self._check()
        answer = await self._handler.handle(request, self._user)
        if isinstance(answer, Response):
            if answer.status != 200:
                raise status_error(answer.body, answer.status)
            yield _once(answer.body)
        elif isinstance(answer, Stream):
            yield answer.chunks
        elif isinstance(answer, Upgrade):
            raise _no_upgrade()
        else:
            try:
                yield _chunks(answer)
            finally:
                self._hub.close(answer)

    async def close(self) -> None:
        """See Transport."""
        self._open = False

    def _check(self) -> None:
        if not self._open:
            raise UnavailableError("this transport is closed")


def _no_upgrade() -> ApiError:
    return ApiError("connections of this process cannot be upgraded", code=400, reason="BadRequest")


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _chunks(watcher: Watcher) -> AsyncIterator[bytes]:
    while chunk := await watcher.read():
        yield chunk
