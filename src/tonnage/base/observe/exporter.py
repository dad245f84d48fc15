"""A small HTTP server for metrics, so a driver needs no web framework."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tonnage.base.errors import InvalidError, host_errors
from tonnage.base.observe import metrics

log = logging.getLogger(__name__)
_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = 5.0
_LONGEST_HEAD = 16 * 1024


@dataclass(frozen=True)
class Address:
    """Listen address. port 0: any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def open_to_others(self) -> bool:
        """Whether other machines can connect."""
        return not ipaddress.ip_address(self.host).is_loopback


def parse_address(text: str) -> Address:
    """Parse `[ADDRESS:]PORT`; the default address is loopback. Raises: InvalidError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidError(f"metrics address {text[:80]!r}: want [ADDRESS:]PORT, as 9100 or 0.0.0.0:9100")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise InvalidError(f"metrics address {text[:80]!r}: {host[:60]!r} is not an IP address") from None
    return Address(host, int(port))


async def _nothing() -> None:
    """Default refresh: all gauges are always up to date."""


class Exporter:
    """Serves GET /metrics and GET /healthz over HTTP/1.1, one request per connection.

    address: None to serve nothing. refresh: awaited before each response, to update gauges. There is no authentication:
    listen on loopback unless the network is trusted.
    """

    def __init__(self, address: Address | None, refresh: Callable[[], Awaitable[None]] = _nothing) -> None:
        self._address, self._refresh = address, refresh
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The URL of the metrics, "" if they are not served."""
        if self._server is None:
            return ""
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{Address(host, port)}/metrics"

    async def start(self) -> None:
        """Listen. Raises: HostError when the address cannot be bound."""
        if self._address is None:
            return
        host, port = self._address.host, self._address.port
        with host_errors(f"cannot serve metrics at {self._address}", advice="choose another address"):
            self._server = await asyncio.start_server(self._serve, host, port, limit=_LONGEST_HEAD)
        log.info("serving metrics url=%s", self.url)

    async def stop(self) -> None:
        """Stop listening; requests under way are closed. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as failure:
            log.debug("metrics request dropped error=%r", failure)
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        method, path, *_ = [*head.split(b"\r\n", 1)[0].decode("latin-1").split(" "), "", ""]
        path = path.partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"only GET\n")
        if path == "/healthz":
            return _response("200 OK", b"ok\n")
        if path != "/metrics":
            return _response("404 Not Found", b"there is /metrics and /healthz\n")
        await self._refresh()
        return _response("200 OK", await asyncio.to_thread(metrics.render), head_only=method == "HEAD")


def _response(status: str, body: bytes, *, head_only: bool = False) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (b"" if head_only else body)
