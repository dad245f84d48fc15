"""HTTP GET of probes, against servers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tonnage.base.errors import InvalidError
from tonnage_box.kubelet.probes.http_get import MOST, ContentError, HttpGetError, get

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def _server(answer: Answer) -> AsyncIterator[str]:
    handlers = set[asyncio.Task[None] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        try:
            await answer(await reader.readuntil(b"\r\n\r\n"), writer)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        try:
            yield f"http://{host}:{port}"
        finally:
            for handler in filter(None, handlers):
                handler.cancel()  # from Python 3.12 on, the server waits for them


def _fixed(*parts: bytes, forever: bytes = b"", hold: bool = False) -> Answer:
    async def answer(_head: bytes, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        while forever:
            writer.write(forever)
            await writer.drain()
        while hold:
            await asyncio.sleep(3600)

    return answer


async def test_asks_as_the_kubelet_does() -> None:
    asked: list[str] = []

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        asked.extend(head.decode().split("\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with _server(answer) as url:
        found = await get(f"{url}/a b?c=d", [("X-Mine", "1"), ("Host", "other"), ("Accept", "")], timeout=30)
    assert found.code == 204
    assert asked[0] == "GET /a%20b?c=d HTTP/1.1"
    assert {"X-Mine: 1", "Host: other", "User-Agent: kube-probe/1.36", "Connection: close"} <= set(asked)
    assert not any(line.startswith("Accept") for line in asked)


async def test_reads_no_more_than_10_kb_of_an_answer_without_an_end() -> None:
    async with _server(_fixed(b"HTTP/1.1 200 OK\r\n\r\n", forever=b"x" * 65536)) as url:
        found = await get(url, [], timeout=60)
    assert (found.code, len(found.content)) == (200, MOST)


async def test_an_answer_that_does_not_come_ends_at_the_timeout() -> None:
    async with _server(_fixed(hold=True)) as url:
        with pytest.raises(HttpGetError, match="context deadline exceeded"):
            await get(url, [], timeout=0.1)


async def test_content_that_does_not_come_ends_at_the_timeout() -> None:
    async with _server(_fixed(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", hold=True)) as url:
        with pytest.raises(ContentError):
            await get(url, [], timeout=0.3)


async def test_headers_without_an_end_are_rejected() -> None:
    async with _server(_fixed(b"HTTP/1.1 200 OK\r\n", forever=b"A: b\r\n" * 1000)) as url:
        with pytest.raises(HttpGetError, match="headers exceeded"):
            await get(url, [], timeout=60)


@pytest.mark.parametrize("text", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 2xx OK\r\n\r\n", b"\xff" * 100 + b"\r\n\r\n"])
async def test_what_is_not_http_is_a_failure(text: bytes) -> None:
    async with _server(_fixed(text)) as url:
        with pytest.raises(HttpGetError):
            await get(url, [], timeout=60)


async def test_follows_redirects_on_the_same_host_only() -> None:
    asked: list[bytes] = []

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        asked.append(head.split()[1])
        away = {b"/": b"/next", b"/next": b"http://localhost:1/away", b"/loop": b"/loop"}
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: " + away[asked[-1]] + b"\r\n\r\n")

    async with _server(answer) as url:
        found = await get(url, [], timeout=60)
        assert (found.code, asked) == (302, [b"/", b"/next"])
        with pytest.raises(HttpGetError, match="stopped after 10 redirects"):
            await get(f"{url}/loop", [], timeout=60)


async def test_rejected_connections_have_gos_words() -> None:
    async with _server(_fixed()) as url:
        pass
    with pytest.raises(HttpGetError) as raised:
        await get(f"{url}/x", [], timeout=60)
    assert str(raised.value) == f'Get "{url}/x": dial tcp {url[7:]}: connect: connection refused'


async def test_headers_cannot_end_their_line() -> None:
    async with _server(_fixed()) as url:
        with pytest.raises(InvalidError, match="not a valid HTTP header"):
            await get(url, [("A", "b\r\nC: d")], timeout=60)
