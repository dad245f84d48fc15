"""HTTP GET of probes and hooks: one answer, bounded in time and size (Kubernetes' probe/http).

Certificates are not verified, proxies not used; redirects are followed on the same host only, at most ten. The content
is read up to 10 kB.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from tonnage.base.errors import InvalidError, TonnageError

MOST = 10 << 10
"""Bytes of the content that are read."""
_HEAD = 1 << 16
_REDIRECTS = 10
_MOVED = (301, 302, 303, 307, 308)
_SAFE = "%/:=&?~#+!$,;'@()*[]"


class HttpGetError(TonnageError):
    """No answer came. The text is that of Go's net/http."""


class ContentError(TonnageError):
    """An answer began, and its content did not come within the time."""


@dataclass(frozen=True)
class HttpAnswer:
    """Status code and the beginning of the content."""

    code: int
    content: bytes
    location: str = ""


Headers = Sequence[tuple[str, str]]


async def get(url: str, headers: Headers, *, timeout: float | None) -> HttpAnswer:
    """Get url and follow redirects on its host.

    timeout: seconds for all of it. Raises: HttpGetError, ContentError, InvalidError (headers).
    """
    deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
    first = current = urlsplit(url)
    try:
        for _ in range(_REDIRECTS):
            answer = await _once(current, headers, deadline)
            if answer.code not in _MOVED or not answer.location:
                return answer
            current = urlsplit(urljoin(current.geturl(), answer.location))
            if current.hostname != first.hostname:
                return answer
    except TimeoutError:
        text = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        raise HttpGetError(f'Get "{current.geturl()}": {text}') from None
    except (OSError, ValueError, asyncio.IncompleteReadError) as failure:
        raise HttpGetError(f'Get "{current.geturl()}": {_cause(failure, current)}') from failure
    raise HttpGetError(f'Get "{current.geturl()}": stopped after {_REDIRECTS} redirects')


def _cause(failure: Exception, url: SplitResult) -> str:
    if isinstance(failure, ConnectionRefusedError):
        return f"dial tcp {url.netloc}: connect: connection refused"
    if isinstance(failure, asyncio.IncompleteReadError):
        return "EOF"
    return str(failure)


@cache
def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _once(url: SplitResult, headers: Headers, deadline: float | None) -> HttpAnswer:
    """One request. Raises: TimeoutError, OSError, ValueError, IncompleteReadError, ContentError, InvalidError."""
    context = _unverified() if url.scheme == "https" else None
    port = url.port or (443 if context is not None else 80)
    async with asyncio.timeout_at(deadline):
        reader, writer = await asyncio.open_connection(url.hostname, port, ssl=context, limit=_HEAD)
    try:
        async with asyncio.timeout_at(deadline):
            writer.write(_request(url, headers))
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                raise ValueError("net/http: server response headers exceeded the limit") from None
        code, fields = _head(head)
        if code in _MOVED and (location := fields.get("location")):
            return HttpAnswer(code, b"", location)
        return HttpAnswer(code, await _content(reader, fields, deadline))
    finally:
        writer.transport.abort()


def _request(url: SplitResult, headers: Headers) -> bytes:
    """The request's head. Raises: InvalidError for a header that would end its line."""
    path = quote(url.path or "/", safe=_SAFE) + (f"?{quote(url.query, safe=_SAFE)}" if url.query else "")
    given = {name.lower() for name, _ in headers}
    wanted = [("Host", url.netloc), ("User-Agent", "kube-probe/1.36"), ("Accept", "*/*")]
    lines = [(name, value) for name, value in wanted if name.lower() not in given]
    lines += [(name, value) for name, value in headers if value or name.lower() != "accept"]
    lines.append(("Connection", "close"))
    for name, value in lines:
        if any(sign in name + value for sign in "\r\n\0") or not name or ":" in name:
            raise InvalidError(f"header {name!r}: not a valid HTTP header")
    text = "".join(f"{name}: {value}\r\n" for name, value in lines)
    return f"GET {path} HTTP/1.1\r\n{text}\r\n".encode("utf-8", "surrogateescape")


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status code and headers. Raises: ValueError."""
    status, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = status.partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not code.isdecimal() or len(code) != 3:
        raise ValueError(f"net/http: malformed HTTP response {status[:100]!r}")
    pairs = (line.partition(":") for line in lines)
    return int(code), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _content(reader: asyncio.StreamReader, fields: dict[str, str], deadline: float | None) -> bytes:
    """The first 10 kB, or what there is. Chunks are not taken apart: people read it. Raises: ContentError."""
    length = fields.get("content-length", "")
    most = min(int(length), MOST) if length.isdecimal() and len(length) < 20 else MOST
    chunked = fields.get("transfer-encoding", "").lower() == "chunked"
    data = b""
    try:
        async with asyncio.timeout_at(deadline):
            while len(data) < most and not (chunked and data.endswith(b"0\r\n\r\n")):
                part = await reader.read(most - len(data))
                if not part:
                    break
                data += part
    except TimeoutError:
        text = "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
        raise ContentError(text) from None
    return data
