"""Connections without valid credentials: their number and time are bounded."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from tests.unit.box.apiserver.server.listening import ask, context, port

from tonnage_box.apiserver.server import connection
from tonnage_box.apiserver.server.server import ApiServer

MAPS = "/api/v1/namespaces/default/configmaps"


def unauthenticated(server: ApiServer) -> connection.Unauthenticated:
    """The connections that nobody has shown valid credentials on."""
    assert server._https is not None
    assert server._https._server is not None
    return server._https._server.unauthenticated


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "handshake"])
async def test_connections_that_never_ask_keep_nobody_out(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    unauthenticated(server).turn = 0.05
    counts, add = [], connection.Unauthenticated.add

    def counted(self: connection.Unauthenticated, *arguments: Any) -> None:
        add(self, *arguments)
        counts.append(len(self))

    monkeypatch.setattr(connection.Unauthenticated, "add", counted)
    idle = []
    for _ in range(600):
        idle.append(await asyncio.open_connection("127.0.0.1", port(server)))
        idle[-1][1].write(begun)
    assert await ask(server) == 200
    assert len(counts) == 601
    assert max(counts) == connection.MAX_UNAUTHENTICATED
    for _, writer in idle:
        writer.transport.abort()


async def test_a_fault_of_one_connection_keeps_nobody_else_out(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin, begun = connection.Tls.__init__, list[None]()

    def fails_once(self: connection.Tls, *arguments: Any) -> None:
        begun.append(None)
        if len(begun) == 1:
            raise ValueError("a fault")
        begin(self, *arguments)

    monkeypatch.setattr(connection.Tls, "__init__", fails_once)
    reader, writer = await asyncio.open_connection("127.0.0.1", port(server))
    assert await reader.read() == b"", "it is closed"
    writer.close()
    assert await ask(server) == 200
    assert "cannot serve a connection" in caplog.text


@pytest.mark.slow
async def test_requests_that_trickle_keep_nobody_out(server: ApiServer) -> None:
    unauthenticated(server).turn = 0.05
    idle = []
    for n in range(300):
        reader, writer = await asyncio.open_connection("127.0.0.1", port(server), ssl=context())
        writer.write(b"GET /api HTTP/1.1\r\nHost: x\r\n" if n % 2 else b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n")
        idle.append((reader, writer))
    assert await ask(server) == 200
    assert len(unauthenticated(server)) <= connection.MAX_UNAUTHENTICATED
    for _, writer in idle:
        writer.transport.abort()


async def test_connections_with_credentials_are_not_counted(server: ApiServer) -> None:
    unauthenticated(server).most = 4
    assert server.credentials is not None
    headers = {"Authorization": f"Bearer {server.credentials.token}"}
    connector = aiohttp.TCPConnector(ssl=context(), limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session, AsyncExitStack() as stack:
        for _ in range(20):
            watching = session.get(server.url + MAPS, params={"watch": "1"})
            assert (await stack.enter_async_context(watching)).status == 200
        assert len(unauthenticated(server)) == 0
        assert len(server.hub) == 20
        assert await ask(server) == 200
    assert await ask(server) == 200


async def test_a_request_without_credentials_is_the_last_of_its_connection(server: ApiServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port(server), ssl=context())
    writer.write(b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
    async with asyncio.timeout(60):
        answer = await reader.read()
    assert answer.count(b"HTTP/1.1 401 ") == 1
    writer.close()
    async with asyncio.timeout(60):
        while len(unauthenticated(server)):
            await asyncio.sleep(0.01)


async def test_without_descriptors_the_oldest_goes(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, real = asyncio.get_running_loop(), asyncio.get_running_loop().sock_accept
    reader, writer = await asyncio.open_connection("127.0.0.1", port(server))
    async with asyncio.timeout(60):
        while not len(unauthenticated(server)):
            await asyncio.sleep(0.01)
    failures = [errno.EMFILE, errno.ECONNABORTED]

    async def accept(listening: socket.socket) -> Any:
        if failures:
            raise OSError(failures.pop(), "injected")
        return await real(listening)

    monkeypatch.setattr(loop, "sock_accept", accept)
    assert await ask(server) == 200  # accepted by the call under way
    assert await ask(server) == 200
    assert failures == []
    assert await reader.read() == b""
    writer.close()


async def test_many_headers_are_rejected(server: ApiServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port(server), ssl=context())
    writer.write(b"GET /api HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(1000)) + b"\r\n")
    async with asyncio.timeout(60):
        assert b" 400 " in (await reader.read()).splitlines()[0]
    writer.close()


def headers(count: int, size: int) -> bytes:
    return b"".join(b"X-%d: %s\r\n" % (n, b"y" * size) for n in range(count))


@pytest.mark.parametrize("before", [b"", b"GET /api HTTP/1.1\r\nHost: x\r\n%s\r\n"], ids=["first", "second"])
async def test_the_headers_of_a_request_are_bounded_before_they_are_complete(server: ApiServer, before: bytes) -> None:
    assert server.credentials is not None
    assert server._https is not None
    token = b"Authorization: Bearer %s\r\n" % server.credentials.token.encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port(server), ssl=context())
    if before:
        writer.write(before % token)
        assert b" 200 " in await reader.readline()
        while (await reader.readline()).strip():
            pass
    writer.write(b"GET /api HTTP/1.1\r\nHost: x\r\n" + headers(3, 50_000))
    async with asyncio.timeout(60):
        rest = await reader.read()
        assert b"HTTP/1.1 431 " in rest
        assert b"have more than 131072 bytes" in rest
        while len(unauthenticated(server)) or server._https._server.connections:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
    writer.transport.abort()


async def test_a_request_may_have_many_bytes_of_headers_and_a_body(server: ApiServer) -> None:
    assert server.credentials is not None
    token = b"Authorization: Bearer %s\r\n" % server.credentials.token.encode()
    body = b'{"metadata": {"name": "x"}, "data": {"a": "%s"}}' % (b"x" * 500_000)
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % (MAPS.encode(), len(body))
    reader, writer = await asyncio.open_connection("127.0.0.1", port(server), ssl=context())
    for status in (b" 201 ", b" 409 "):
        writer.write(head + token + headers(100, 1_000) + b"\r\n" + body)
        assert status in await reader.readline()
        size = 0
        while line := (await reader.readline()).strip():
            if line.lower().startswith(b"content-length:"):
                size = int(line.partition(b":")[2])
        await reader.readexactly(size)
    writer.transport.abort()
