"""Downloads over HTTP(S): allowed hosts only, certificates verified, continued where a server breaks off. Blocking.

Redirects are followed to allowed hosts only, never from https to http, and take no credentials to another host. Nothing
here uses a proxy or a cookie. What was read is continued by Range where the server answers with the same version.
"""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.storage.content.hosts import FetchPolicy
from tonnage.storage.content.spec import shown

TIMEOUT = 30.0
"""Seconds without a byte after which a connection is given up."""
_REDIRECTS = 5
_MOVED = (301, 302, 303, 307, 308)
_TRIES = 5
"""Attempts to continue in a row, of which none brought a byte."""
_SLOWEST = 1024
"""Bytes a second, on average over _WINDOW seconds; less is given up. Each request counts as that many."""
_WINDOW = 600.0
_AGAIN = (408, 425, 429)
_BUSY = (429, 503)
_WAITS, _LONGEST_WAIT = 3, 60
"""How often, and for how many seconds, a server's Retry-After is waited for."""
_LARGEST = 1 << 62
Headers = Mapping[str, str]
Response = http.client.HTTPResponse
Watch = Callable[[socket.socket], None]
Sign = Callable[[str, Headers], Headers]
"""Called with the URL of a GET and its headers; returns them with those that authorize it."""


class RestartError(UnavailableError):
    """A download broke off and cannot be continued: it may be begun again."""


def credentials(secrets: Mapping[str, str]) -> Headers:
    """The header for a URL from a Secret's username and password, or token. Raises: InvalidError."""
    if token := secrets.get("token"):
        return {"Authorization": f"Bearer {one_line(token)}"}
    if user := secrets.get("username"):
        text = f"{one_line(user)}:{one_line(secrets.get('password', ''))}"
        return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}
    return {}


def one_line(text: str) -> str:
    """A value of a Secret that may be sent in a header. Raises: InvalidError, without the value."""
    if not text.isprintable():
        raise InvalidError("the Secret of the class has a value with a line break or control character")
    return text


class _Pinned(http.client.HTTPConnection):
    """A connection to one of the given addresses, which belong to its host."""

    def __init__(self, host: str, port: int, addresses: list[str], tls: ssl.SSLContext | None, watch: Watch) -> None:
        super().__init__(host, port, timeout=TIMEOUT)
        self._addresses, self._tls, self._watch = addresses, tls, watch

    def connect(self) -> None:
        failure: OSError = ConnectionRefusedError("it has no address")
        for address in self._addresses:
            try:
                self._connect(address)
                break
            except OSError as reason:
                failure = reason
        else:
            raise failure
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
            self._watch(self.sock)
            self.sock.do_handshake()

    def _connect(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(TIMEOUT)
            self._watch(self.sock)
            self.sock.connect((address, self.port))
            self._watch(self.sock)  # a shutdown between the watch before and connect() did nothing
        except BaseException:
            self.sock.close()
            raise


@dataclass
class Fetcher:
    """Opens downloads. tls: None for the machine's certificate authorities. sleep: seconds, between attempts.

    watch: called with each socket before it blocks, so that another thread can shut it down.
    """

    policy: FetchPolicy
    tls: ssl.SSLContext | None = None
    sleep: Callable[[float], None] = time.sleep
    watch: Watch = lambda connection: None
    monotonic: Callable[[], float] = time.monotonic
    _default: ssl.SSLContext | None = field(default=None, init=False)
    _begun: float | None = field(default=None, init=False)
    _bytes: int = field(default=0, init=False)

    def count(self, count: int, what: str) -> None:
        """Count bytes that arrived. Raises: UnavailableError where they are too few for their time."""
        now = self.monotonic()
        self._begun = now if self._begun is None else self._begun
        self._bytes += count
        if now - self._begun < _WINDOW:
            return
        if self._bytes < _SLOWEST * (now - self._begun):
            raise UnavailableError(f"{what}: slower than {_SLOWEST} bytes a second for {_WINDOW:.0f} s: given up")
        self._begun, self._bytes = now, 0

    def get(
        self, url: str, headers: Headers | None = None, *, sign: Sign | None = None, is_immutable: bool = False
    ) -> Download:
        """Begin a download. Raises: InvalidError (rejected, not there), UnavailableError (now).

        is_immutable: the URL has one content for ever, as that of a digest: no version is needed to continue.
        """
        return Download(self, url, dict(headers or {}), sign, is_immutable=is_immutable)

    def open(self, url: str, headers: Headers, sign: Sign | None) -> tuple[http.client.HTTPConnection, Response]:
        """One GET with its redirects, again where the server asks to wait. Raises: InvalidError, UnavailableError."""
        for left in reversed(range(_WAITS + 1)):
            connection, response = self._follow(url, headers, sign)
            seconds = _retry_after(response)
            if seconds is None or not left:
                break
            connection.close()
            self.sleep(seconds)
        return connection, response

    def _follow(self, url: str, headers: Headers, sign: Sign | None) -> tuple[http.client.HTTPConnection, Response]:
        at, sent = url, headers
        for _ in range(_REDIRECTS + 1):
            connection, response = self._ask(at, sign(at, sent) if sign is not None else sent)
            if response.status not in _MOVED:
                return connection, response
            connection.close()
            try:
                target = urljoin(at, response.headers.get("Location", ""))
                sent, sign = _redirected(at, target, sent, sign)
            except ValueError:
                raise InvalidError(f"{shown(at)}: it redirects to what is no URL") from None
            at = target
        raise InvalidError(f"{shown(url)}: more than {_REDIRECTS} redirects")

    def _ask(self, url: str, headers: Headers) -> tuple[_Pinned, http.client.HTTPResponse]:
        self.count(_SLOWEST, shown(url))
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        try:
            addresses = self.policy.addresses(host, port)
            tls = self._tls() if parts.scheme == "https" else None
            connection = _Pinned(host, port, addresses, tls, self.watch)
        except InvalidError as rejection:
            raise InvalidError(f"{shown(url)}: {rejection}") from None
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            # The host as it is signed: http.client would add the port of https.
            sent = {"Host": parts.netloc.lower(), "Accept-Encoding": "identity", **headers}
            connection.request("GET", target, headers=sent)
            return connection, connection.getresponse()
        except ssl.SSLCertVerificationError as failure:
            connection.close()
            raise InvalidError(f"{shown(url)}: its certificate is not valid here: {failure.verify_message}") from None
        except ValueError:  # its text has what was to be sent, perhaps of a Secret
            connection.close()
            raise InvalidError(f"{shown(url)}: the request has a character that no request may have") from None
        except (OSError, http.client.HTTPException) as failure:
            connection.close()
            raise UnavailableError(f"{shown(url)}: no answer: {_words(failure)}") from failure

    def _tls(self) -> ssl.SSLContext:
        self._default = self._default or self.tls or ssl.create_default_context()
        return self._default


def _redirected(at: str, target: str, headers: Headers, sign: Sign | None) -> tuple[Headers, Sign | None]:
    """What to send to where a redirect leads. Raises: InvalidError."""
    before, after = urlsplit(at), urlsplit(target)
    is_plain = after.scheme in ("http", "https") and after.hostname and "@" not in after.netloc
    if not is_plain or after.port == 0 or not target.isascii() or not target.isprintable() or " " in target:
        raise InvalidError(f"{shown(at)}: it redirects to {shown(target)[:200]}, which is not fetched")
    if before.scheme == "https" and after.scheme == "http":
        raise InvalidError(f"{shown(at)}: it redirects to {shown(target)[:200]}, without encryption")
    if (before.scheme, before.netloc) == (after.scheme, after.netloc):
        return headers, sign
    return {key: value for key, value in headers.items() if key.lower() != "authorization"}, None


def _retry_after(response: Response) -> float | None:
    """Seconds that a busy server asks to wait; None where it does not, or for longer than a call lasts."""
    text = response.headers.get("Retry-After", "")
    if response.status not in _BUSY or not (text.isascii() and text.isdigit()) or len(text) > 9:
        return None
    return float(text) if int(text) <= _LONGEST_WAIT else None


def _words(failure: Exception) -> str:
    return (failure.strerror if isinstance(failure, OSError) else "") or str(failure) or type(failure).__name__


class Download:
    """A stream of what is behind a URL. size: bytes, None where the server does not say; etag: its version or ""."""

    def __init__(
        self, fetcher: Fetcher, url: str, headers: dict[str, str], sign: Sign | None, *, is_immutable: bool = False
    ) -> None:
        self._fetcher, self._url, self._headers, self._sign = fetcher, url, headers, sign
        self._is_immutable = is_immutable
        self._connection, self._response = fetcher.open(url, headers, sign)
        self.what = shown(url)
        self.count = 0
        self._failures = 0
        try:
            _check_status(self._response, self.what, 200)
            self.size = _length(self._response, self.what)
        except BaseException:
            self.close()
            raise
        self.etag = self._response.headers.get("ETag", "")

    def close(self) -> None:
        """Close the connection. Idempotent."""
        with suppress(OSError):
            self._connection.close()

    def __enter__(self) -> Download:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, size: int, /) -> bytes:
        """At most size bytes, b"" at the end.

        Raises: RestartError where it broke off for good, InvalidError where it is longer than the server said.
        """
        while True:
            why = "the connection ended"
            try:
                data = self._response.read1(size)
            except (OSError, http.client.HTTPException) as failure:
                data, why = b"", _words(failure)
            else:
                if not data and (self.size is None or self.count >= self.size):
                    return b""
            if data:
                self._fetcher.count(len(data), self.what)
                self.count += len(data)
                self._failures = 0
                if self.size is not None and self.count > self.size:
                    raise InvalidError(f"{self.what}: longer than the {self.size} bytes that the server said")
                return data
            self._continue(why)

    def _continue(self, why: str) -> None:
        """Ask for the rest after what was read. Raises: RestartError."""
        self.close()
        version = self.etag if self.etag and not self.etag.startswith("W/") else ""
        broken = f"{self.what}: broke off after {self.count} bytes: {why}"
        if self.count and not version and not self._is_immutable:
            raise RestartError(f"{broken}; the server names no version (ETag) to continue with")
        while True:
            self._failures += 1
            if self._failures > _TRIES:
                raise RestartError(broken)
            self._fetcher.sleep(min(2.0 ** (self._failures - 2), 10.0))
            more = {"Range": f"bytes={self.count}-"} if self.count else {}
            if self.count and not self._is_immutable:
                more["If-Range"] = version
            try:
                self._connection, self._response = self._fetcher.open(self._url, {**self._headers, **more}, self._sign)
            except UnavailableError:
                continue
            if self._response.status >= 500 or self._response.status in _AGAIN:
                self.close()
                continue
            break
        if not self.count:
            _check_status(self._response, self.what, 200)
            self.size = _length(self._response, self.what)
            return
        given = self._response.headers.get("Content-Range", "")
        if self._response.status != 206 or not given.startswith(f"bytes {self.count}-"):
            self.close()
            raise RestartError(f"{broken}; the server does not continue")


def _check_status(response: http.client.HTTPResponse, what: str, wanted: int) -> None:
    status = response.status
    if status == wanted:
        if (coding := response.headers.get("Content-Encoding", "identity").lower()) != "identity":
            raise InvalidError(f"{what}: the server encodes it ({coding[:40]}) though that was not asked for")
        return
    if status >= 500 or status in _AGAIN:
        raise UnavailableError(f"{what}: the server answers {status} {response.reason}")
    more = ": the Secret has no right to it" if status in (401, 403) else ""
    raise InvalidError(f"{what}: the server answers {status} {response.reason}{more}")


def _length(response: http.client.HTTPResponse, what: str) -> int | None:
    text = response.headers.get("Content-Length")
    if text is None or response.headers.get("Transfer-Encoding"):
        return None
    if not text.isascii() or not text.isdigit() or int(text) > _LARGEST:
        raise InvalidError(f"{what}: Content-Length {text[:40]!r} is no number of bytes")
    return int(text)
