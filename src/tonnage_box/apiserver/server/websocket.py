"""WebSocket of exec and attach: channels v5.channel.k8s.io and v4.channel.k8s.io over one connection (KEP-4006).

The first byte of each message is its channel. In v5 a client ends its input with a message on channel 255.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.web_ws import WebSocketResponse

from tonnage.base.errors import ApiError
from tonnage_box.api.remote_command import (
    CLOSE,
    ERROR,
    RESIZE,
    STDERR,
    STDIN,
    STDOUT,
    StreamInput,
    StreamOptions,
)
from tonnage_box.apiserver.request.errors import as_api_error, bad_request, status
from tonnage_box.apiserver.rest.output import encode, error_response
from tonnage_box.apiserver.rest.remote_command import Upgrade

log = logging.getLogger(__name__)
_V5, _V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
MAX_MESSAGE = 1 << 20
"""Bytes of a message, of all its fragments; a longer one ends the connection (1009) before it is read."""
IDLE_SECONDS = 4 * 3600.0
"""The kubelet's streamingConnectionIdleTimeout."""
_CLOSE_SECONDS = 1.0
_GREETING_SECONDS = 0.03
"""kubectl 1.30 to 1.32 reports a message that comes while it opens its streams, in the first moment, as an error."""
_SUCCESS = b'{"metadata":{},"status":"Success"}'


class _Size(msgspec.Struct, rename="pascal"):
    width: int = 0
    height: int = 0


_sizes = msgspec.json.Decoder(_Size)


class ChannelConnection:
    """The streams of one client (Streams). wakes: called when a message was sent or received."""

    def __init__(self, socket: WebSocketResponse, options: StreamOptions, idle: asyncio.Timeout) -> None:
        self._socket, self._options, self._idle = socket, options, idle

    async def receive(self) -> StreamInput | None:
        """See Streams. Messages of channels that are not open are ignored, as in Kubernetes."""
        while True:
            message = await self._socket.receive()
            self._wake()
            if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                return None
            data = message.data if isinstance(message.data, bytes) else message.data.encode()
            if data and (found := self._input(data[0], data[1:])) is not None:
                return found

    def _input(self, channel: int, data: bytes) -> StreamInput | None:
        if channel == STDIN and self._options.stdin:
            return StreamInput(data) if data else None
        if channel == RESIZE and self._options.tty:
            with suppress(msgspec.MsgspecError):
                size = _sizes.decode(data)
                return StreamInput(size=(size.width, size.height))
        if channel == CLOSE and data == bytes([STDIN]) and self._socket.ws_protocol == _V5:
            return StreamInput(is_end=True)
        return None

    async def send(self, channel: int, data: bytes) -> None:
        """See Streams."""
        if (channel == STDOUT and not self._options.stdout) or (channel == STDERR and not self._options.stderr):
            return
        self._wake()
        await self._socket.send_bytes(bytes([channel]) + data)

    def _wake(self) -> None:
        if not self._idle.expired():
            self._idle.reschedule(asyncio.get_running_loop().time() + IDLE_SECONDS)


async def serve(request: web.BaseRequest, upgrade: Upgrade) -> web.StreamResponse:
    """Upgrade the connection and serve the session; its end is a Status on the error channel."""
    offered = request.headers.get("Sec-WebSocket-Protocol", "")
    names = [name.strip() for name in offered.split(",")]
    if not {_V4, _V5} & set(names):
        return _reject(bad_request(f"subprotocol {offered[:80]!r}: this server speaks {_V5} and {_V4}"))
    socket = WebSocketResponse(
        timeout=_CLOSE_SECONDS, protocols=(_V5, _V4), compress=False, max_msg_size=MAX_MESSAGE + 2, decode_text=True
    )
    try:
        await socket.prepare(request)
    except web.HTTPException as failure:
        return _reject(bad_request(failure.text or "the WebSocket handshake is malformed"))
    try:
        ended = await _run(socket, upgrade)
        if not socket.closed:
            await socket.send_bytes(bytes([ERROR]) + ended)
            await socket.close(code=WSCloseCode.OK)
    except ConnectionError:
        log.debug("client of a remote command is gone")
    return socket


async def _run(socket: WebSocketResponse, upgrade: Upgrade) -> bytes:
    """Serve the session; the Status that ends it. Raises: ConnectionError."""
    try:
        async with asyncio.timeout(IDLE_SECONDS) as idle:
            connection = ChannelConnection(socket, upgrade.options, idle)
            greeting = asyncio.ensure_future(_greet(socket, upgrade.options))
            try:
                code = await upgrade.session(connection)
            finally:
                greeting.cancel()
                await asyncio.gather(greeting, return_exceptions=True)
    except TimeoutError:
        return encode(status(_internal(f"no data for {IDLE_SECONDS:g} s")))
    except ConnectionError:
        raise
    except Exception as failure:
        error = as_api_error(failure)
        if error.code == 500 and not isinstance(failure, ApiError):
            log.exception("remote command failed")
        return encode(status(error))
    return _SUCCESS if code == 0 else encode(exit_status(code))


async def _greet(socket: WebSocketResponse, options: StreamOptions) -> None:
    """Send an empty message: some clients wait for a first one, as Kubernetes sends one."""
    await asyncio.sleep(_GREETING_SECONDS)
    first = STDOUT if options.stdout else STDERR if options.stderr else ERROR
    await socket.send_bytes(bytes([first]))


def _internal(message: str) -> ApiError:
    return ApiError(f"Internal error occurred: {message}", code=500, reason="InternalError")


def exit_status(code: int) -> dict[str, Any]:
    """The Status of a command that has ended with another code than 0."""
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def _reject(error: ApiError) -> web.Response:
    answer = error_response(error)
    response = web.Response(status=answer.status, body=answer.body, headers=answer.headers)
    response.force_close()
    return response
