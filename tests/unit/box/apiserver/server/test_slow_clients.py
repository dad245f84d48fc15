"""Clients that do not read, and connections that never ask: what they take is bounded, and others are served."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yarl

from tonnage.aio.clock import RealClock
from tonnage.box.apiserver.server import auth, connection, https
from tonnage.box.apiserver.server.server import ApiServer, extractor
from tonnage.box.apiserver.storage import watch
from tonnage.box.apiserver.storage.store import MemoryStore
from tonnage.kube.transport import JSON, Request

MAPS = "/api/v1/namespaces/default/configmaps"
MIB = 1 << 20


def config(name: str, size: int) -> bytes:
    return json.dumps({"metadata": {"name": name}, "data": {"a": "x" * size}}).encode()


async def changed(api: Any, name: str, size: int) -> None:
    """One more event of so many bytes."""
    await api.send("POST", MAPS, config(name, size))
    await api.send("DELETE", f"{MAPS}/{name}")


async def test_watchers_that_do_not_read_hold_64_mib_together(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "BUFFER_EVENTS", 10**9)
    hub = api.server.hub
    async with AsyncExitStack() as stack:
        for _ in range(1000):
            stream = api.transport.stream(Request("GET", MAPS, {"watch": "1"}))
            await stack.enter_async_context(stream)
        reading = await stack.enter_async_context(api.watch(MAPS))
        peak = 0
        for n in range(300):
            await changed(api, f"x{n}", 1000)
            assert await reading.names(2) == [("ADDED", f"x{n}"), ("DELETED", f"x{n}")]
            peak = max(peak, hub.buffers.total)
        assert 32 * MIB < peak <= watch.BUFFERS_BYTES
        assert 0 < sum(w.dropped for w in hub._watchers) < 1000
        for n in range(30):
            await changed(api, f"y{n}", MIB)
            assert await reading.names(2) == [("ADDED", f"y{n}"), ("DELETED", f"y{n}")]
        assert sum(w.dropped for w in hub._watchers) == 1000
        assert hub.buffers.total < 3 * MIB
        await changed(api, "last", 10)
        assert await reading.names(2) == [("ADDED", "last"), ("DELETED", "last")]
    assert len(hub) == 0
    assert hub.buffers.total == 0


async def test_those_that_lag_most_are_dropped_first(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "BUFFERS_BYTES", 4 * MIB)
    async with AsyncExitStack() as stack:
        streams = []
        for n in range(3):
            await api.create(MAPS, config(f"x{n}", 600_000))
            now = (await api.get(MAPS))["metadata"]["resourceVersion"]
            query = {"watch": "1", "resourceVersion": now}
            streams.append(await stack.enter_async_context(api.transport.stream(Request("GET", MAPS, query))))
        first, second, third = list(api.server.hub._watchers)
        await api.create(MAPS, config("a", 1_000_000))
        assert b'"a"' in await anext(streams[2])
        for n in range(3):
            await api.create(MAPS, config(f"b{n}", 900_000))
            if n == 0:
                assert b'"b0"' in await anext(streams[2])
        await api.create(MAPS, config("c", 900_000))
        assert (first.dropped, second.dropped, third.dropped) == (True, True, False)
        assert api.server.hub.buffers.total <= 4 * MIB


async def test_a_chunk_counts_until_it_has_been_sent(api: Any) -> None:
    buffers = api.server.hub.buffers
    async with api.transport.stream(Request("GET", MAPS, {"watch": "1"})) as chunks:
        await api.create(MAPS, config("x", 1_000_000))
        assert buffers.total > 1_000_000
        assert b'"x"' in await anext(chunks)
        assert buffers.total > 1_000_000
        waiting = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0)
        assert buffers.total == 0
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_many_small_events_are_handed_out_in_chunks(api: Any) -> None:
    async with api.transport.stream(Request("GET", MAPS, {"watch": "1"})) as chunks:
        for n in range(200):
            await api.create(MAPS, config(f"x{n}", 1000))
        sizes: list[int] = []
        while sum(sizes) < 200_000:
            sizes.append(len(await anext(chunks)))
        assert max(sizes) <= watch.CHUNK_BYTES


# Over HTTPS


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    served = ApiServer(MemoryStore(extractor()), credentials=auth.ensure(tmp_path, RealClock()))
    await served.start()
    await served.listen()
    yield served
    await served.stop()


@functools.cache
def context() -> ssl.SSLContext:
    made = ssl.create_default_context()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


def port(server: ApiServer) -> int:
    return yarl.URL(server.url).port or 0


def strangers(server: ApiServer) -> int:
    assert server._shell is not None
    assert server._shell._server is not None
    return len(server._shell._server.unauthenticated)


async def ask(server: ApiServer) -> int:
    """The status that a new connection with valid credentials is answered."""
    assert server.credentials is not None
    headers = {"Authorization": f"Bearer {server.credentials.token}"}
    async with (
        aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=context())) as session,
        session.get(server.url + MAPS) as answer,
    ):
        await answer.read()
        return answer.status


@pytest.mark.parametrize("size", [50_000, 1_000_000])
async def test_a_client_that_does_not_read_fills_no_buffer_of_the_server(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(watch, "BUFFERS_BYTES", 4 * MIB)
    assert server.credentials is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", port(server), ssl=context(), limit=1024)
    writer.write(
        f"GET {MAPS}?watch=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.credentials.token}\r\n\r\n".encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    (watcher,) = server.hub._watchers
    (served,) = server._shell._server.connections  # type: ignore[union-attr]
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


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "handshake"])
async def test_connections_that_never_ask_keep_nobody_out(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(connection, "TURN_SECONDS", 0.05)
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


async def test_requests_that_trickle_keep_nobody_out(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TURN_SECONDS", 0.05)
    idle = []
    for n in range(300):
        reader, writer = await asyncio.open_connection("127.0.0.1", port(server), ssl=context())
        writer.write(b"GET /api HTTP/1.1\r\nHost: x\r\n" if n % 2 else b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n")
        idle.append((reader, writer))
    assert await ask(server) == 200
    assert strangers(server) <= connection.MAX_UNAUTHENTICATED
    for _, writer in idle:
        writer.transport.abort()


async def test_connections_with_credentials_are_not_counted(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_UNAUTHENTICATED", 4)
    assert server.credentials is not None
    headers = {"Authorization": f"Bearer {server.credentials.token}"}
    connector = aiohttp.TCPConnector(ssl=context(), limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session, AsyncExitStack() as stack:
        for _ in range(20):
            watching = session.get(server.url + MAPS, params={"watch": "1"})
            assert (await stack.enter_async_context(watching)).status == 200
        assert strangers(server) == 0
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
        while strangers(server):
            await asyncio.sleep(0.01)


async def test_without_descriptors_the_oldest_goes(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, real = asyncio.get_running_loop(), asyncio.get_running_loop().sock_accept
    reader, writer = await asyncio.open_connection("127.0.0.1", port(server))
    async with asyncio.timeout(60):
        while not strangers(server):
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


async def test_many_headers_are_refused(server: ApiServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port(server), ssl=context())
    writer.write(b"GET /api HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(1000)) + b"\r\n")
    async with asyncio.timeout(60):
        assert b" 400 " in (await reader.read()).splitlines()[0]
    writer.close()


async def test_an_answer_that_is_not_read_is_not_kept(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(12):
        await server.transport().request(Request("POST", MAPS, body=config(f"x{n}", 1_000_000)))
    assert server.credentials is not None
    assert server._shell is not None
    server._shell._patience = 0.2
    reader, writer = await asyncio.open_connection("127.0.0.1", port(server), ssl=context(), limit=1024)
    head = f"GET {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.credentials.token}\r\n\r\n"
    writer.write(head.encode())
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    connections = server._shell._server.connections  # type: ignore[union-attr]
    async with asyncio.timeout(60):
        while server._shell._server.connections:  # type: ignore[union-attr]
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


async def test_lists_that_are_not_read_give_way_to_others(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(https, "ANSWERS_BYTES", 10 * MIB)
    monkeypatch.setattr(https, "SLOW_SECONDS", -1.0)  # whoever has not read all is too slow
    for n in range(4):
        await server.transport().request(Request("POST", MAPS, body=config(f"x{n}", 1_000_000)))
    assert server._shell is not None
    answers, idle = server._shell.answers, []
    for n in range(6):
        idle.append(await asks(server))
        assert 0 < answers.total <= 10 * MIB
        assert len(answers._sending) == min(n + 1, 2)
    assert await listed(server) == (200, 4)
    for _, writer in idle:
        writer.transport.abort()
    async with asyncio.timeout(60):
        while answers.total:
            await asyncio.sleep(0.01)


async def test_a_list_waits_for_those_that_are_being_read(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(https, "ANSWERS_BYTES", 3 * MIB)
    monkeypatch.setattr(https, "SLOW_SECONDS", 1e9)
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
