"""A proxy between an API server and its clients that delays each write at random; reads and watches pass at once.

Clients speak plain HTTP to it, so that it sees where a request begins. To the API server it speaks TLS: with the client
certificate of a kubeconfig, or with none for clients that have tokens.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import yaml

_WRITES = (b"POST", b"PUT", b"PATCH", b"DELETE")


class DelayingProxy:
    """Delays writes by up to `most` seconds. config: a kubeconfig with everything inside; folder: for its keys."""

    def __init__(self, config: Path, folder: Path, *, as_client: bool, most: float, seed: int) -> None:
        found = yaml.safe_load(config.read_text())
        cluster = found["clusters"][0]["cluster"]
        upstream = urlsplit(cluster["server"])
        self._host, self._port = upstream.hostname or "", upstream.port or 443
        ca = cluster.get("certificate-authority-data")
        self._tls = ssl.create_default_context(
            cadata=base64.b64decode(ca).decode() if ca else None, cafile=cluster.get("certificate-authority")
        )
        if as_client:
            user = found["users"][0]["user"]
            paths = []
            for part in ("client-certificate", "client-key"):
                path = Path(user.get(part) or folder / f"{config.stem}-{part}")
                if f"{part}-data" in user:
                    path.write_bytes(base64.b64decode(user[f"{part}-data"]))
                paths.append(path)
            self._tls.load_cert_chain(paths[0], paths[1])
        self._most, self._random = most, Random(seed)
        self.writes = 0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Its URL, while it works."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self._tasks: set[asyncio.Task[None]] = set()
        try:
            yield f"http://{host}:{port}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            to_server = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
            answers = asyncio.create_task(_copy(to_server[0], writer))
            try:
                while True:
                    await self._request(reader, to_server[1])
            finally:
                answers.cancel()
                to_server[1].close()
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        """One request with its body. The API server reads it when it is the turn of a delayed write."""
        head = await reader.readuntil(b"\r\n\r\n")
        headers = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:-2])
        assert b"chunked" not in headers.get(b"transfer-encoding", b"")
        body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
        if head.split(b" ", 1)[0] in _WRITES and b"/leases" not in head.split(b"\r\n", 1)[0]:
            self.writes += 1
            await asyncio.sleep(self._random.uniform(0.0, self._most))
        server.write(head + body)
        await server.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
            await writer.drain()
    writer.close()
