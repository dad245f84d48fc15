"""Clients that do not read, and connections that never ask: what they take is bounded, and others are served."""

from __future__ import annotations

import asyncio
import json
import logging

import aiohttp
import pytest
from tests.unit.box.apiserver.server.listening import ask, context, port

from tonnage.kubernetes.client.transport import JSON, Request
from tonnage_box.apiserver.server.server import ApiServer

MAPS = "/api/v1/namespaces/default/configmaps"
MIB = 1 << 20


def config(name: str, size: int) -> bytes:
    return json.dumps({"metadata": {"name": name}, "data": {"a": "x" * size}}).encode()


@pytest.mark.parametrize("size", [50_000, 1_000_000])
async def test_a_client_that_does_not_read_fills_no_buffer_of_the_server(server: ApiServer, size: int) -> None:
    server.hub.buffers.limit = 4 * MIB
    assert server.credentials is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", port(server), ssl=context(), limit=1024)
    writer.write(
        f"GET {MAPS}?watch=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.credentials.token}\r\n\r\n".encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    (watcher,) = server.hub._watchers
    (served,) = server._https._server.connections  # type: ignore[union-attr]
    transport = served.transport
    assert transport is not None
    held = sent = 0
    while not watcher.dropped:
        sent += 1
        assert sent < 100_000, "the watcher was never dropped"
        answer = await server.transport().request(Request("POST", MAPS, body=config(f"x{sent}", size)))
        assert answer.status == 201
        await asyncio.sleep(0)
        held = max(held, transport.get_write_buffer_size())
    assert 0 < held <= 64 << 10
    async with asyncio.timeout(60):
        while len(server.hub):
            await asyncio.sleep(0.01)
    assert server.hub.buffers.total == 0
    writer.transport.abort()


async def test_a_compressed_body_does_not_unfold(server: ApiServer) -> None:
    import gzip

    assert server.credentials is not None
    bomb = gzip.compress(b"\0" * (64 * MIB))
    headers = {"Authorization": f"Bearer {server.credentials.token}", "Content-Encoding": "gzip", "Content-Type": JSON}
    async with (
        aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=context())) as session,
        session.post(server.url + MAPS, data=bomb) as answer,
    ):
        assert answer.status == 400
        assert "not valid JSON" in (await answer.json())["message"]


async def test_a_large_answer_is_sent_in_parts(server: ApiServer) -> None:
    for n in range(12):
        await server.transport().request(Request("POST", MAPS, body=config(f"x{n}", MIB)))
    assert server.credentials is not None
    headers = {"Authorization": f"Bearer {server.credentials.token}"}
    async with (
        aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=context())) as session,
        session.get(server.url + MAPS) as answer,
    ):
        assert int(answer.headers["Content-Length"]) > 12 * MIB
        assert len((await answer.json())["items"]) == 12


async def test_an_answer_that_is_not_read_is_not_kept(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(12):
        await server.transport().request(Request("POST", MAPS, body=config(f"x{n}", 1_000_000)))
    assert server.credentials is not None
    assert server._https is not None
    server._https._patience = 0.2
    reader, writer = await asyncio.open_connection("127.0.0.1", port(server), ssl=context(), limit=1024)
    head = f"GET {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.credentials.token}\r\n\r\n"
    writer.write(head.encode())
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    connections = server._https._server.connections  # type: ignore[union-attr]
    async with asyncio.timeout(60):
        while server._https._server.connections:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
    assert len(connections) == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    writer.transport.abort()


async def asks(server: ApiServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for a list of 4 MiB, and stop to read after the head."""
    assert server.credentials is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", port(server), ssl=context(), limit=1024)
    head = f"GET {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.credentials.token}\r\n\r\n"
    writer.write(head.encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return reader, writer


async def listed(server: ApiServer) -> tuple[int, int]:
    """Status and items of the same list, read at once."""
    assert server.credentials is not None
    headers = {"Authorization": f"Bearer {server.credentials.token}"}
    async with (
        aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=context())) as session,
        session.get(server.url + MAPS) as answer,
    ):
        assert (answer.status == 429) == ("Retry-After" in answer.headers)
        return answer.status, len((await answer.json()).get("items", ()))


async def test_lists_that_are_not_read_give_way_to_others(server: ApiServer) -> None:
    assert server._https is not None
    server._https.answers.limit = 10 * MIB
    server._https.answers.slow = -1.0  # whoever has not read all is too slow
    for n in range(4):
        await server.transport().request(Request("POST", MAPS, body=config(f"x{n}", 1_000_000)))
    answers, idle = server._https.answers, []
    for n in range(6):
        idle.append(await asks(server))
        assert 0 < answers.total <= 10 * MIB
        assert len(answers._running) == min(n + 1, 2)
    assert await listed(server) == (200, 4)
    for _, writer in idle:
        writer.transport.abort()
    async with asyncio.timeout(60):
        while answers.total:
            await asyncio.sleep(0.01)


async def test_a_list_waits_for_those_that_are_being_read(server: ApiServer) -> None:
    assert server._https is not None
    server._https.answers.limit = 3 * MIB
    server._https.answers.slow = 1e9
    for n in range(4):
        await server.transport().request(Request("POST", MAPS, body=config(f"x{n}", 1_000_000)))
    assert await listed(server) == (200, 4)  # alone, it may be larger
    reader, writer = await asks(server)
    assert await listed(server) == (429, 0)
    assert await ask(server) == 429
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    await reader.readexactly(4_000_000)
    async with asyncio.timeout(60):
        while (await listed(server))[0] != 200:
            await asyncio.sleep(0.01)
    writer.transport.abort()
