"""WebSockets of exec and attach: subprotocols, channels, limits and malformed frames, over real connections."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.box.apiserver.server.listening import Box, context, port

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import ApiError, UnsupportedError
from tonnage_box.api.remote_command import STDERR, STDOUT, Session, StreamInput, StreamOptions, Streams
from tonnage_box.apiserver.server import auth, websocket
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store

PODS = "/api/v1/namespaces/default/pods"
EXEC = f"{PODS}/p/exec"
V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"


async def opened(namespace: str, name: str, options: StreamOptions) -> Session:
    """Sessions by their command: `fail`, `exit N`, else the client's messages are echoed until the input ends."""
    if options.container == "none":
        raise ApiError("container none is not valid for pod p", code=400, reason="BadRequest")

    async def serve(streams: Streams) -> int:
        match options.command:
            case ("fail",):
                raise UnsupportedError("that is not to be")
            case ("break",):
                raise ValueError("a fault of ours")
            case ("exit", number):
                return int(number)
            case ("both",):
                await streams.send(STDOUT, b"out")
                await streams.send(STDERR, b"err")
                return 0
        while (message := await streams.receive()) not in (None, StreamInput(is_end=True)):
            text = f"size {message.size} " if message.size else ""
            await streams.send(STDOUT, text.encode() + message.data)
        return 0

    return serve


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    """A server with a pod, whose sessions are ours."""
    credentials = auth.ensure(tmp_path, RealClock())
    server = ApiServer(Store(extractor()), credentials=credentials, pod_streams=opened)
    await server.start()
    await server.listen()
    headers = {"Authorization": f"Bearer {credentials.token}"}
    tls = ssl.create_default_context(cafile=str(credentials.certificate))
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=tls)) as session:
        made = Box(server, session)
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        async with made.request("POST", PODS, json=pod) as answer:
            assert answer.status == 201
        yield made
    await server.stop()


def connect(box: Box, query: str, *protocols: str) -> Any:
    """A client of EXEC."""
    return box.session.ws_connect(f"{box.server.url}{EXEC}?{query}", protocols=protocols or (V5,), max_msg_size=0)


async def collect(client: aiohttp.ClientWebSocketResponse) -> dict[int, bytes]:
    """All that comes, by channel."""
    found: dict[int, bytes] = {}
    async for message in client:
        found[message.data[0]] = found.get(message.data[0], b"") + message.data[1:]
    return found


async def answer(client: aiohttp.ClientWebSocketResponse) -> bytes:
    """The next message that is not empty."""
    while len(data := (await client.receive()).data) < 2:
        pass
    return bytes(data)


async def test_output_and_success(box: Box) -> None:
    async with connect(box, "command=both&stdout=true&stderr=true") as client:
        assert client.protocol == V5
        found = await collect(client)
        assert (found[1], found[2]) == (b"out", b"err")
        assert json.loads(found[3]) == {"metadata": {}, "status": "Success"}
        assert client.close_code == 1000


async def test_outputs_that_are_not_asked_for_do_not_come(box: Box) -> None:
    async with connect(box, "command=both&stdout=true&stderr=false") as client:
        assert 2 not in await collect(client)


async def test_an_exit_code_is_a_status(box: Box) -> None:
    """A command of several words comes in order."""
    async with connect(box, "command=exit&command=7&stdout=true") as client:
        status = json.loads((await collect(client))[3])
    assert status["status"] == "Failure"
    assert status["reason"] == "NonZeroExitCode"
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "7"}]


async def test_failures_are_statuses(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    async with connect(box, "command=fail&stdout=true") as client:
        status = json.loads((await collect(client))[3])
    assert (status["code"], status["reason"], status["message"]) == (501, "NotImplemented", "that is not to be")
    assert not caplog.records
    async with connect(box, "command=break&stdout=true") as client:
        assert json.loads((await collect(client))[3])["code"] == 500


@pytest.mark.parametrize("protocols", [(V5, V4), (V4,)])
async def test_input_and_its_end(box: Box, protocols: tuple[str, ...]) -> None:
    """v4 cannot say that the input ends: the message means nothing there."""
    async with connect(box, "command=echo&stdin=true&stdout=true&tty=true", *protocols) as client:
        assert client.protocol == protocols[0]
        await client.send_bytes(b"\x00hello")
        await client.send_bytes(b'\x04{"Width": 80, "Height": 25}')
        await client.send_bytes(b"\x04no size")
        await client.send_bytes(b"\x09no channel")
        await client.send_bytes(b"")
        await client.send_bytes(b"\xff\x00")
        if protocols[0] == V4:
            await client.send_bytes(b"\x00more")
        assert [await answer(client) for _ in range(2)] == [b"\x01hello", b"\x01size (80, 25) "]
        if protocols[0] == V5:
            assert (await answer(client))[0] == 3
        else:
            assert await answer(client) == b"\x01more"


async def test_a_first_message_comes_by_itself(box: Box) -> None:
    async with connect(box, "command=echo&stdin=true&stdout=true") as client:
        assert (await client.receive()).data == bytes([STDOUT])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "headers", "said"),
    [
        ("stdout=true", {}, "you must specify at least 1 command"),
        ("command=", {}, "you must specify at least 1 command"),
        ("command=a&stdout=false&stderr=false", {}, "at least 1 of stdin, stdout, stderr"),
        ("command=a&stdin=perhaps", {}, "is not true or false"),
        ("command=a&container=none", {}, "container none is not valid for pod p"),
        ("command=a", {}, "Upgrade request required"),
        ("command=a", {"Upgrade": "SPDY/3.1", "Connection": "Upgrade"}, "SPDY is not served"),
        ("command=a", {"Upgrade": "websocket"}, "subprotocol"),
        ("command=a", {"Upgrade": "websocket", "Sec-WebSocket-Protocol": "channel.k8s.io"}, "this server speaks"),
        ("command=a", {"Upgrade": "websocket", "Sec-WebSocket-Protocol": V5}, "CONNECTION upgrade"),
    ],
)
async def test_rejections(box: Box, query: str, headers: dict[str, str], said: str) -> None:
    async with box.request("GET", f"{EXEC}?{query}", headers=headers) as answer:
        assert 400 <= answer.status < 500, await answer.text()
        assert said in await answer.text()


async def test_a_pod_that_is_not_there(box: Box) -> None:
    async with box.request("GET", f"{PODS}/no/exec?command=a") as answer:
        assert (answer.status, (await answer.json())["message"]) == (404, 'pods "no" not found')


@asynccontextmanager
async def raw(box: Box, query: str = "command=echo&stdin=true&stdout=true") -> AsyncIterator[Any]:
    """Reader and writer of a connection after its handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port(box.server), ssl=context())
    head = [
        f"GET {EXEC}?{query} HTTP/1.1",
        "Host: x",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Authorization: {box.session.headers['Authorization']}",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        f"Sec-WebSocket-Protocol: {V5}",
    ]
    writer.write("\r\n".join([*head, "", ""]).encode())
    async with asyncio.timeout(60):
        assert b" 101 " in (await reader.readuntil(b"\r\n\r\n")).splitlines()[0]
        assert await reader.readexactly(3) == b"\x82\x01\x01"
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def close_code(reader: asyncio.StreamReader) -> int:
    """Of the close frame that comes next."""
    head = await reader.readexactly(2)
    assert head[0] == 0x88, head
    return int(struct.unpack("!H", (await reader.readexactly(head[1]))[:2])[0])


@pytest.mark.parametrize("length", [websocket.MAX_MESSAGE + 3, 100 << 20, 1 << 62, (1 << 64) - 1])
async def test_a_huge_frame_is_rejected_by_its_length(box: Box, length: int) -> None:
    """Not one byte of it has come."""
    async with raw(box) as (reader, writer):
        writer.write(b"\x82\xff" + struct.pack("!Q", length) + b"\0\0\0\0")
        assert await close_code(reader) == 1009


async def test_a_huge_message_of_fragments_is_rejected(box: Box) -> None:
    part = 60_000
    frame = struct.pack("!BBH", 0, 0x80 | 126, part) + b"\0" * (4 + part)
    async with raw(box) as (reader, writer):
        writer.write(b"\x02" + frame[1:])
        for _ in range(20):
            writer.write(frame)
        assert await close_code(reader) == 1009


async def test_fragments_and_pings(box: Box) -> None:
    async with raw(box) as (reader, writer):
        writer.write(b"\x02\x83\0\0\0\0\0ab" + b"\x89\x82\0\0\0\0hi" + b"\x80\x82\0\0\0\0cd")
        assert await reader.readexactly(4) == b"\x8a\x02hi"
        assert await reader.readexactly(7) == b"\x82\x05\x01abcd"


@pytest.mark.parametrize("frame", [b"\x83\x80\0\0\0\0", b"\xf2\x80\0\0\0\0", b"\x09\x80\0\0\0\0", b"\x80\x80\0\0\0\0"])
async def test_malformed_frames(box: Box, frame: bytes) -> None:
    async with raw(box) as (reader, writer):
        writer.write(frame)
        assert await close_code(reader) == 1002


@examples(50, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=200))
async def test_any_bytes_end_nothing(box: Box, caplog: pytest.LogCaptureFixture, data: bytes) -> None:
    async with raw(box) as (_, writer):
        writer.write(data)
        writer.close()
    async with box.request("GET", "/version") as answer:
        assert answer.status == 200
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


async def test_a_client_that_goes(box: Box) -> None:
    for _ in range(3):
        async with raw(box):
            pass
    async with connect(box, "command=exit&command=0&stdout=true") as client:
        assert json.loads((await collect(client))[3])["status"] == "Success"
