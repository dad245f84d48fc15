"""A small HTTP server for downloads: files, redirects, breaks in the middle, versions, and signed buckets."""

from __future__ import annotations

import hashlib
import hmac
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape


@dataclass
class Files:
    """What a server has. breaks: bytes after which the next answers end; resumes: whether it answers Range."""

    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    breaks: list[int] = field(default_factory=list)
    resumes: bool = True
    says_size: bool = True
    status: list[int] = field(default_factory=list)
    auth: str = ""
    keys: tuple[str, str] | None = None
    page: int = 1000
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    changes: Callable[[], None] = lambda: None
    hold: threading.Event | None = None
    held: str = ""
    """Which paths wait for `hold` before their last byte: those with this in them."""
    port: int = 0
    challenge: str = ""
    """WWW-Authenticate of a 401, where auth is not what came. {url} in it is this server."""
    token: str = ""
    basic: str = ""
    """/token answers with this token, to those with this Authorization."""
    retry_after: str = ""
    has_etag: bool = True

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"


class _Handler(BaseHTTPRequestHandler):
    files: Files

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        files, path = self.files, unquote(urlsplit(self.path).path)
        headers = {key.lower(): value for key, value in self.headers.items()}
        files.seen.append((self.path, headers))
        if files.status:
            self._end(files.status.pop(0), {"Retry-After": files.retry_after} if files.retry_after else {})
        elif path == "/token":
            self._token(headers)
        elif path in files.redirects:
            self.send_response(302)
            self.send_header("Location", files.redirects[path])
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif files.challenge and headers.get("authorization") != files.auth:
            self._end(401, {"WWW-Authenticate": files.challenge.format(url=files.url)})
        elif (files.auth and headers.get("authorization") != files.auth) or (
            files.keys is not None and not is_signed(files.keys, "GET", self.path, headers)
        ):
            self._end(403)
        elif "list-type" in dict(parse_qsl(urlsplit(self.path).query)):
            self._list(path)
        elif path not in files.files:
            self._end(404)
        else:
            self._send(files.files[path], headers)

    def _token(self, headers: dict[str, str]) -> None:
        if headers.get("authorization", "") != self.files.basic:
            self._end(401)
            return
        body = json.dumps({"token": self.files.token}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _end(self, status: int, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, body: bytes, headers: dict[str, str]) -> None:
        files = self.files
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        start = 0
        if files.resumes and "range" in headers and headers.get("if-range", etag) == etag:
            start = int(headers["range"].removeprefix("bytes=").partition("-")[0])
        # Before the client sees the answer: it may give up there, and the test sets what breaks next.
        end = start + files.breaks.pop(0) if files.breaks else len(body)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if files.says_size:
            self.send_header("Content-Length", str(len(body) - start))
        if files.has_etag:
            self.send_header("ETag", etag)
        self.end_headers()
        last = max(end - 1, start)  # is held back
        self.wfile.write(body[start:last])
        self.wfile.flush()
        if files.hold is not None and files.held in self.path:
            files.hold.wait(30)
        self.wfile.write(body[last:end])
        if end < len(body):
            files.changes()
        self.close_connection = True

    def _list(self, path: str) -> None:
        query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        bucket = path.strip("/")
        after = query.get("continuation-token", "")
        keys = sorted(
            key[len(bucket) + 2 :] for key in self.files.files if key.startswith(f"/{bucket}/{query.get('prefix', '')}")
        )
        keys = [key for key in keys if key > after]
        shown = keys[: self.files.page]
        items = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.files.files[f'/{bucket}/{key}'])}</Size></Contents>"
            for key in shown
        )
        cut = len(shown) < len(keys)
        more = f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>" if cut else ""
        body = (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<IsTruncated>{'true' if cut else 'false'}</IsTruncated>{more}{items}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def is_signed(keys: tuple[str, str], method: str, path: str, headers: dict[str, str]) -> bool:
    """Check a Signature Version 4 from what arrived, written apart from the client: from the standard's own steps."""
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    parts = dict(item.strip().split("=", 1) for item in rest.split(",")) if rest else {}
    if scheme != "AWS4-HMAC-SHA256" or not parts.get("Credential", "").startswith(keys[0] + "/"):
        return False
    _, day, region, service, end = parts["Credential"].split("/")
    url = urlsplit(path)
    pairs = sorted((quote(k, safe="-_.~"), quote(v, safe="-_.~")) for k, v in parse_qsl(url.query, True))
    names = parts["SignedHeaders"].split(";")
    if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names):
        return False
    request = method + "\n" + quote(unquote(url.path), safe="/-_.~") + "\n"
    request += "&".join(f"{k}={v}" for k, v in pairs) + "\n"
    request += "".join(f"{name}:{headers[name].strip()}\n" for name in names) + "\n"
    request += parts["SignedHeaders"] + "\n" + headers["x-amz-content-sha256"]
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{day}/{region}/{service}/{end}\n{digest}"
    key = b"AWS4" + keys[1].encode()
    for word in (day, region, service, end):
        key = hmac.digest(key, word.encode(), "sha256")
    return hmac.new(key, text.encode(), "sha256").hexdigest() == parts["Signature"]


@contextmanager
def served(files: Files, tls: ssl.SSLContext | None = None) -> Iterator[Files]:
    """Serve files on a free port of localhost."""
    handler = type("Handler", (_Handler,), {"files": files})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that had enough
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    files.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield files
    finally:
        if files.hold is not None:
            files.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
