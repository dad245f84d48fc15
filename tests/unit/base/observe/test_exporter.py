"""The metrics responder: what it answers, and what it does not let happen."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from tonnage.base.errors import InvalidError
from tonnage.base.observe.exporter import Address, Exporter, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9100", Address("127.0.0.1", 9100)),
        (":9100", Address("127.0.0.1", 9100)),
        ("0.0.0.0:0", Address("0.0.0.0", 0)),
        ("[::1]:9100", Address("::1", 9100)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("host", "others"), [("127.0.0.1", False), ("::1", False), ("0.0.0.0", True), ("10.0.0.1", True)]
)
def test_who_reaches_it(host: str, others: bool) -> None:
    assert Address(host, 1).open_to_others is others


@pytest.mark.parametrize("text", ["", "x", "1:2:", "65536", "-1", "localhost:9100", "٣"])
def test_rejected_addresses(text: str) -> None:
    with pytest.raises(InvalidError, match=re.escape(f"metrics address {text!r}")):
        parse_address(text)


class _Asked:
    def __init__(self) -> None:
        self.times = 0

    async def refresh(self) -> None:
        self.times += 1


@pytest.fixture
def asked() -> _Asked:
    """Counts refreshes."""
    return _Asked()


@pytest.fixture
async def exporter(asked: _Asked) -> AsyncIterator[Exporter]:
    """One that listens."""
    exporter = Exporter(Address("127.0.0.1", 0), asked.refresh)
    await exporter.start()
    yield exporter
    await exporter.stop()


async def _send(exporter: Exporter, request: bytes) -> bytes:
    host, port = exporter.url.removeprefix("http://").removesuffix("/metrics").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def test_metrics_are_brought_up_to_date_and_sent(exporter: Exporter, asked: _Asked) -> None:
    head, _, body = (await _send(exporter, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 200 OK")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"# TYPE tonnage_pool_free_bytes gauge" in body
    assert asked.times == 1


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /healthz HTTP/1.1", b"200 OK"),
        (b"GET / HTTP/1.1", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1", b"405 Method Not Allowed"),
        (b"nonsense", b"405 Method Not Allowed"),
    ],
)
async def test_other_requests(exporter: Exporter, asked: _Asked, request_line: bytes, status: bytes) -> None:
    assert (await _send(exporter, request_line + b"\r\n\r\n")).startswith(b"HTTP/1.1 " + status)
    assert asked.times == 0


async def test_an_endless_head_is_cut_off_and_others_are_still_served(exporter: Exporter) -> None:
    with suppress(ConnectionError):
        assert await _send(exporter, b"GET /" + b"x" * 100_000) == b""
    assert (await _send(exporter, b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"ok\n")
