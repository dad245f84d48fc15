"""A bucket of objects in memory, spoken to as S3 with paths: as much of it as programs need that keep backups there.

Requests are not checked for who sent them: it is reachable on this machine's loopback alone.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_OPEN = '<?xml version="1.0" encoding="UTF-8"?>'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if "list-type" in self._query():
            self._end(200, self._listing().encode())
        else:
            self._object()

    def do_HEAD(self) -> None:
        self._object(with_body=False)

    def do_PUT(self) -> None:
        self.objects[self._key()] = self._body()
        self._end(200, etag=_etag(self.objects[self._key()]))

    def do_DELETE(self) -> None:
        self.objects.pop(self._key(), None)
        self._end(204)

    def _object(self, *, with_body: bool = True) -> None:
        content = self.objects.get(self._key())
        if content is None:
            missing = f"{_OPEN}<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
            self._end(404, missing.encode(), with_body=with_body)
        else:
            self._end(200, content, with_body=with_body, etag=_etag(content))

    def _key(self) -> str:
        """The object's key, without the bucket, which is the path's first part."""
        return unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]

    def _query(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {key: values[0] for key, values in found.items()}

    def _body(self) -> bytes:
        """What was sent: as it is, or in chunks, each headed by a line with its size."""
        if not self.headers.get("x-amz-content-sha256", "").startswith("STREAMING"):
            return self.rfile.read(int(self.headers["Content-Length"]))
        sent, content = io.BytesIO(self.rfile.read(int(self.headers["Content-Length"]))), b""
        while size := int(sent.readline().partition(b";")[0], 16):
            content += sent.read(size)
            sent.readline()
        return content

    def _listing(self) -> str:
        query = self._query()
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        keys, folders = [], set()
        for key in sorted(key for key in self.objects if key.startswith(prefix)):
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if found:
                folders.add(prefix + head + delimiter)
            else:
                keys.append(key)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size></Contents>" for key in keys
        )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(folders)
        )
        return (
            f"{_OPEN}<ListBucketResult><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>"
            f"<KeyCount>{len(keys) + len(folders)}</KeyCount>{contents}{common}</ListBucketResult>"
        )

    def _end(self, status: int, body: bytes = b"", *, with_body: bool = True, etag: str = "") -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        if etag:
            self.send_header("ETag", etag)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _etag(content: bytes) -> str:
    return f'"{md5(content, usedforsecurity=False).hexdigest()}"'


@contextmanager
def served(objects: dict[str, bytes]) -> Iterator[str]:
    """The address of a server that has these objects, by their keys."""
    handler = type("Handler", (_Handler,), {"objects": objects})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
