"""The embedded API server: durable creates, fan-out, writes beside idle watchers, memory.

The load comes from another process (this file, run as a program), as it would in life. Server and load share the
machine's cores, so the figures are those of a box, not of a server alone.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import os
import re
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
from benchmarks.figure import Figure

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.client.transport import JSON, MERGE_PATCH, PROTOBUF, Request
from tonnage_box.apiserver.protobuf import envelope
from tonnage_box.apiserver.server import auth
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.sqlite import SqliteStore
from tonnage_box.apiserver.storage.store import Store

MAPS = "/api/v1/namespaces/default/configmaps"
CREATES, WRITERS, WATCHERS, IDLE, PODS = 10_000, 64, 1000, 5000, 10_000
POD_CREATES = 1000
NAME = "x{:06}"
"""Of objects; all of one length, so that a body is made once."""


def config(name: str, **labels: str) -> bytes:
    """A small object."""
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels},
        "data": {"a": "b" * 200},
    }
    return json.dumps(body).encode()


def pod(name: str, settings: int = 12) -> bytes:
    """A pod of some 3 KB; with 32 settings, of 4."""
    container = {
        "name": "c",
        "image": "registry.example/app:1",
        "env": [{"name": f"SETTING_{n}", "value": "x" * 40} for n in range(settings)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    volumes = [{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}]
    annotations = {f"example.dev/note-{n}": "y" * 60 for n in range(8)}
    meta = {"name": name, "labels": {"app": "bench"}, "annotations": annotations}
    spec = {"containers": [container], "volumes": volumes}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}).encode()


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[ApiServer]:
    """A durable server on a free port."""
    credentials = auth.ensure(folder / "auth", RealClock())
    server = ApiServer(SqliteStore(folder / "state.db", extractor()), credentials=credentials)
    await server.start()
    await server.listen()
    try:
        yield server
    finally:
        await server.stop()


async def load(server: ApiServer, verb: str, *args: str) -> asyncio.subprocess.Process:
    """Start this file as a program that loads the server."""
    assert server.credentials is not None
    environment = os.environ | {"BENCH_TOKEN": server.credentials.token}
    arguments = ("-m", "benchmarks.apiserver.load", verb, server.url, str(server.credentials.certificate), *args)
    return await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment
    )


async def said(process: asyncio.subprocess.Process) -> str:
    """The next line of the load."""
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def durable_creates(folder: Path) -> list[Figure]:
    """Creates a second over HTTPS with 64 writers, each answered when durable: in JSON, and in protobuf."""
    rates = []
    for content_type in (JSON, PROTOBUF):
        async with served(folder / content_type) as server:
            process = await load(server, "create", str(CREATES), content_type)
            rates.append(float(await said(process)))
            await process.wait()
    plain, protobuf = rates
    name = "durable creates, 64 writers over HTTPS"
    return [
        Figure(name, plain, "a second", at_least=2000),
        Figure(f"{name}, protobuf", protobuf, "a second", other=plain, other_name="JSON", at_least=0.5),
    ]


async def pod_creates(folder: Path) -> list[Figure]:
    """Median create of a pod of 4 kB in this process, without disk: in protobuf, beside JSON."""
    server = ApiServer(Store(extractor()))
    await server.start()
    transport, times = server.transport(), dict[str, list[float]](((JSON, []), (PROTOBUF, [])))
    for n in range(POD_CREATES):
        for content_type, taken in times.items():
            body = pod(f"p{n}-{len(content_type)}", settings=32)
            if content_type == PROTOBUF:
                body = envelope.encode(json.loads(body))
            start = time.perf_counter()
            path = MAPS.replace("configmaps", "pods")
            answer = await transport.request(Request("POST", path, {}, body, content_type, content_type))
            taken.append((time.perf_counter() - start) * 1000)
            assert answer.status == 201, answer.body
    await server.stop()
    plain, protobuf = (statistics.median(taken) for taken in times.values())
    name = "create of a pod of 4 kB"
    return [
        Figure(f"{name} in protobuf", protobuf, "ms", at_most=2),
        Figure(f"{name} in protobuf, beside JSON", protobuf, "ms", other=plain, other_name="JSON", at_most=2),
    ]


async def fan_out(folder: Path) -> Figure:
    """From the answer of a write to the last of 1,000 watchers over HTTPS having its event."""
    async with served(folder) as server:
        process = await load(server, "watch", str(WATCHERS))
        assert await said(process) == "ready"
        times = []
        for n in range(7):
            start = time.monotonic()
            await server.transport().request(Request("POST", MAPS, body=config(f"x{n}")))
            times.append(float(await said(process)) - start)
        process.kill()
        await process.wait()
    return Figure("event to 1,000 watchers over HTTPS", statistics.median(times) * 1000, "ms", at_most=100)


async def write_times(server: ApiServer, count: int = 1500) -> float:
    """Median seconds of one write after the other."""
    transport, times = server.transport(), []
    await transport.request(Request("POST", MAPS, body=config("w")))
    for n in range(count):
        patch = b'{"data":{"n":"%d-%d"}}' % (n, time.monotonic_ns())
        start = time.perf_counter()
        await transport.request(Request("PATCH", f"{MAPS}/w", body=patch, content_type=MERGE_PATCH))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


async def beside_idle_watchers(folder: Path) -> Figure:
    """Median write with 5,000 watchers that do not match, against none."""
    async with served(folder) as server:
        alone = await write_times(server)
        opened = []
        for n in range(IDLE):
            query = {"watch": "1", "labelSelector": f"tonnage.dev/node=n{n}"}
            opened.append(server.transport().stream(Request("GET", MAPS, query)))
            await opened[-1].__aenter__()
        beside = await write_times(server)
        for watch in opened:
            await watch.__aexit__(None, None, None)
    return Figure("write p50 beside 5,000 watchers that do not match", beside / alone, "x alone", at_most=1.3)


async def memory(folder: Path) -> Figure:
    """RSS of a process that serves 10,000 pods, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.apiserver.load", "memory", str(folder), stdout=asyncio.subprocess.PIPE
    )
    size = float(await said(process))
    await process.wait()
    return Figure("RSS with 10,000 pods", size, "MiB", at_most=150)


async def run() -> list[Figure]:
    """All figures."""
    rows: list[Figure] = []
    for bench in (durable_creates, pod_creates, fan_out, beside_idle_watchers, memory):
        with tempfile.TemporaryDirectory() as folder:
            found = await bench(Path(folder))
            rows += found if isinstance(found, list) else [found]
    return rows


# The load


def _session(certificate: str, limit: int) -> aiohttp.ClientSession:
    context = ssl.create_default_context(cafile=certificate)
    headers = {"Authorization": f"Bearer {os.environ['BENCH_TOKEN']}", "Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=limit, ssl=context)
    return aiohttp.ClientSession(connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=None))


class _Writer(asyncio.Protocol):
    """One connection that sends the next create when the last is answered; costs the machine as little as may be."""

    def __init__(self, host: str, kind: str, left: Iterator[int], done: asyncio.Future[None]) -> None:
        self._head = (
            f"POST {MAPS} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {os.environ['BENCH_TOKEN']}\r\n"
            f"Accept: {kind}\r\nContent-Type: {kind}\r\n"
        )
        body = config(NAME.format(0))
        self._body = envelope.encode(json.loads(body)) if kind == PROTOBUF else body
        self._left = left
        self._done = done
        self._got = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        number = next(self._left, None)
        if number is None:
            self._done.set_result(None)
            return
        body = self._body.replace(NAME.format(0).encode(), NAME.format(number).encode())
        head = f"{self._head}Content-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, blank, body = self._got.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if blank and length is not None and len(body) >= int(length[1]):
            assert head.startswith(b"HTTP/1.1 201"), self._got
            self._got = b""
            self._send()


async def _load_create(url: str, certificate: str, count: str, kind: str) -> None:
    host, _, port = url.removeprefix("https://").rpartition(":")
    context, loop = ssl.create_default_context(cafile=certificate), asyncio.get_running_loop()
    left, done = iter(range(int(count))), [loop.create_future() for _ in range(WRITERS)]
    start = time.perf_counter()
    for end in done:
        await loop.create_connection(functools.partial(_Writer, host, kind, left, end), host, int(port), ssl=context)
    await asyncio.gather(*done)
    print(int(count) / (time.perf_counter() - start), flush=True)


async def _load_watch(url: str, certificate: str, count: str) -> None:
    ready, seen = 0, 0
    async with _session(certificate, 0) as session:

        async def watcher() -> None:
            nonlocal ready, seen
            async with session.get(url + MAPS, params={"watch": "1"}) as answer:
                ready += 1
                if ready == int(count):
                    print("ready", flush=True)
                async for _ in answer.content:
                    seen += 1
                    if seen % int(count) == 0:
                        print(time.monotonic(), flush=True)

        await asyncio.gather(*(watcher() for _ in range(int(count))))


async def _load_turns(url: str, certificate: str, tries: str, *, send: bool) -> None:
    """A list of all pods, or a body of 3 MiB, each time a line comes."""
    async with _session(certificate, 1) as session:
        for n in range(int(tries)):
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            if send:
                data = json.dumps({"metadata": {"name": f"s{n}"}, "data": {"a": "x" * (3 << 20)}})[: -(1 << 10)]
                answering = session.post(url + MAPS, data=data)
            else:
                answering = session.get(url + MAPS.replace("configmaps", "pods"))
            async with answering as answer:
                await answer.read()
            print("done", flush=True)


async def _load_memory(folder: str) -> None:
    async with served(Path(folder)) as server:
        transport = server.transport()

        async def writer(names: Any) -> None:
            for n in names:
                answer = await transport.request(Request("POST", "/api/v1/namespaces/default/pods", body=pod(f"p{n}")))
                assert answer.status == 201, answer.body

        names = iter(range(PODS))
        await asyncio.gather(*(writer(names) for _ in range(WRITERS)))
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        print(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), flush=True)


def main() -> None:
    """Run one load, named by the first argument."""
    verb, *arguments = sys.argv[1:]
    loads: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
        "create": _load_create,
        "watch": _load_watch,
        "memory": _load_memory,
        "list": functools.partial(_load_turns, send=False),
        "send": functools.partial(_load_turns, send=True),
    }
    try:
        import uvloop

        uvloop.install()
    except ImportError:
        pass
    asyncio.run(loads[verb](*arguments))


if __name__ == "__main__":
    main()
