"""Container logs for `kubectl logs`: reads the CRI log files and follows them by inotify."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from tonnage.base.aio.clock import Clock, parse_rfc3339
from tonnage.base.errors import ApiError
from tonnage.host.inotify import CLOSE_WRITE, CREATE, DELETE_SELF, MODIFY, MOVED_TO, Inotify
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.number import signed
from tonnage.kubernetes.api.pods import Container, ContainerStatus, Pod
from tonnage.kubernetes.client.client import Client
from tonnage_box.kubelet.containers.log_writer import stamp
from tonnage_box.kubelet.folder import names
from tonnage_box.kubelet.pods.worker import KubeletParts, PodWorkers

_CHUNK = 64 << 10
_MASK = MODIFY | CLOSE_WRITE | CREATE | MOVED_TO | DELETE_SELF
_KNOWN = frozenset(
    {
        "container",
        "follow",
        "previous",
        "sinceSeconds",
        "sinceTime",
        "timestamps",
        "tailLines",
        "limitBytes",
        "stream",
        "pretty",
        "insecureSkipTLSVerifyBackend",
    }
)


@dataclass(frozen=True)
class Options:
    """PodLogOptions. tail, limit: None for all; since: only lines since this timestamp, b"" for all."""

    container: str = ""
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    limit: int | None = None
    since: bytes = b""
    stream: bytes = b""


def parse(query: Mapping[str, str], clock: Clock) -> Options:
    """Read the query of pods/log. Raises: ApiError 400 and 422."""
    if unknown := sorted(query.keys() - _KNOWN - {"timeout"}):  # `kubectl --request-timeout` adds that to each request
        raise _bad(f"logs: unknown option {', '.join(unknown)}")
    stream = query.get("stream", "All")
    if stream not in ("All", "Stdout", "Stderr"):
        raise _invalid(f"stream: Unsupported value: {stream!r}: supported values: All, Stdout, Stderr")
    return Options(
        query.get("container", ""),
        _flag(query, "follow"),
        _flag(query, "previous"),
        _flag(query, "timestamps"),
        _number(query, "tailLines", least=0),
        _number(query, "limitBytes", least=1),
        _since(query, clock),
        b"" if stream == "All" else stream.lower().encode(),
    )


def _since(query: Mapping[str, str], clock: Clock) -> bytes:
    seconds = _number(query, "sinceSeconds", least=1)
    text = query.get("sinceTime", "")
    if seconds is not None and text:
        raise _invalid("at most one of `sinceTime` or `sinceSeconds` may be specified")
    if seconds is not None:
        return stamp(max(0, int((clock.time() - seconds) * 1e9)))
    if not text:
        return b""
    try:
        return stamp(max(0, int(parse_rfc3339(text) * 1e9)))
    except ValueError:
        raise _bad(f"sinceTime {text[:60]!r} is not an RFC 3339 time") from None


def _flag(query: Mapping[str, str], key: str) -> bool:
    text = query.get(key, "false")
    if text not in ("true", "false", "1", "0"):
        raise _bad(f"{key}={text[:20]!r}: want true or false")
    return text in ("true", "1")


def _number(query: Mapping[str, str], key: str, *, least: int) -> int | None:
    text = query.get(key, "")
    if not text:
        return None
    number = signed(text)
    if number is None:
        raise _bad(f"{key}={text[:20]!r} is not a number")
    if number < least:
        raise _invalid(f"{key}: Invalid value: {number}: must be greater than {'or equal to ' if least == 0 else ''}0")
    return number


def choose(pod: Pod, name: str) -> Container:
    """The container that is meant. Raises: ApiError 400 in Kubernetes' words."""
    if name:
        for container in pod.all_containers:
            if container.name == name:
                return container
        raise _bad(f"container {name} is not valid for pod {pod.metadata.name}")
    if len(pod.spec.containers) == 1:
        return pod.spec.containers[0]
    text = f"a container name must be specified for pod {pod.metadata.name}, choose one of: "
    text += f"[{' '.join(c.name for c in pod.spec.containers)}]"
    if pod.spec.init_containers:
        text += f" or one of the init containers: [{' '.join(c.name for c in pod.spec.init_containers)}]"
    if pod.spec.ephemeral_containers:
        text += f" or one of the ephemeral containers: [{' '.join(c.name for c in pod.spec.ephemeral_containers)}]"
    raise _bad(text)


def _bad(message: str) -> ApiError:
    return ApiError(message, code=400, reason="BadRequest")


def _invalid(message: str) -> ApiError:
    return ApiError(f"PodLogOptions is invalid: {message}", code=422, reason="Invalid")


class PodLogs:
    """Logs of the pods of one node."""

    def __init__(self, parts: KubeletParts, workers: PodWorkers) -> None:
        self._client, self._clock, self._paths = parts.client, parts.clock, parts.paths
        self._runtime, self._workers = parts.runtime.name, workers

    async def read(self, namespace: str, name: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The log in chunks, followed until the container ends. Raises: ApiError at the first chunk."""
        options = parse(query, self._clock)
        pod = await self._client.get(PODS, name, namespace)
        container = choose(pod, options.container)
        if self._runtime == "none":
            raise ApiError(
                f"there are no logs on node {pod.spec.node_name}: its containers do not run (--runtime none)",
                code=501,
                reason="NotImplemented",
            )
        path = self._file(pod, container, options)
        budget = options.limit
        async for chunk in self._lines(path, pod, container, options):
            if budget is None:
                yield chunk
                continue
            yield chunk[:budget]
            budget -= len(chunk)
            if budget <= 0:
                return

    def _file(self, pod: Pod, container: Container, options: Options) -> str:
        meta = pod.metadata
        folder = f"{self._paths.pod_logs(meta.namespace, meta.name, meta.uid)}/{container.name}"
        attempts = sorted(int(n[:-4]) for n in names(folder) if n.endswith(".log") and n[:-4].isdigit())
        status = next((s for s in pod.all_container_statuses if s.name == container.name), ContainerStatus())
        if options.previous:
            # Between two starts the last one is the previous one, as kubectl's users know it.
            back = 1 if status.state.waiting and status.last_state.terminated else 2
            if len(attempts) < back:
                raise _bad(f'previous terminated container "{container.name}" in pod "{meta.name}" not found')
            return f"{folder}/{attempts[-back]}.log"
        if not attempts:
            reason = (status.state.waiting or {}).get("reason", "ContainerCreating")
            raise _bad(f'container "{container.name}" in pod "{meta.name}" is waiting to start: {reason}')
        return f"{folder}/{attempts[-1]}.log"

    async def _lines(self, path: str, pod: Pod, container: Container, options: Options) -> AsyncIterator[bytes]:
        """Formatted lines of a file and its rotated predecessor, then what follows."""
        skip = tail_start(path, options.tail)
        with Inotify() as inotify:
            if options.follow and not options.previous:
                inotify.add(os.path.dirname(path), _MASK)
            file = _Reader(path, skip)
            try:
                while True:
                    # Asked before the last read: what was written before the end is then surely read.
                    ended = self._ended(pod, container)
                    for chunk in file.chunks(options):
                        yield chunk
                    if not options.follow or options.previous or ended or file.vanished:
                        return
                    await inotify.wait()
            finally:
                file.close()

    def _ended(self, pod: Pod, container: Container) -> bool:
        record = self._workers.find(pod.metadata.namespace, pod.metadata.name)
        if record is None or record.containers is None:
            return True
        run = next((r for r in record.containers.all if r.container.name == container.name), None)
        return run is None or not run.running


def tail_start(path: str, lines: int | None) -> tuple[int, int]:
    """From where to read: offset in `<path>.1` (-1: leave it out) and in path, for the last lines of both."""
    if lines is None:
        return (0 if os.path.exists(f"{path}.1") else -1), 0
    offset, missing = _from_end(path, lines)
    if missing <= 0 or not os.path.exists(f"{path}.1"):
        return -1, offset
    before, _ = _from_end(f"{path}.1", missing)
    return before, 0


def _from_end(path: str, lines: int) -> tuple[int, int]:
    """Offset of the last lines of a file, and how many it lacks to that number. Reads only the end."""
    with open(path, "rb") as file:
        end = at = file.seek(0, os.SEEK_END)
        if lines == 0:
            return end, 0
        seen = 0
        while at > 0:
            size = min(_CHUNK, at)
            at -= size
            file.seek(at)
            block = file.read(size)
            position = len(block) - (1 if at + size == end and block.endswith(b"\n") else 0)
            while (position := block.rfind(b"\n", 0, position)) >= 0:
                seen += 1
                if seen == lines:
                    return at + position + 1, 0
        return 0, lines - seen - (1 if end else 0)


class _Reader:
    """Reads whole lines as they are written, across rotations."""

    def __init__(self, path: str, start: tuple[int, int]) -> None:
        self._path = path
        before, offset = start
        self._before = open(f"{path}.1", "rb") if before >= 0 else None  # noqa: SIM115
        if self._before is not None:
            self._before.seek(before)
        self._file = open(path, "rb")  # noqa: SIM115
        self._file.seek(offset)
        self._rest = b""
        self.vanished = False

    def chunks(self, options: Options) -> Iterator[bytes]:
        """All that has come, formatted."""
        if self._before is not None:
            yield from self._read(self._before, options)
            self._before.close()
            self._before = None
        yield from self._read(self._file, options)
        while self._rotated():
            yield from self._read(self._file, options)

    def _rotated(self) -> bool:
        """Whether the path is another file by now, which is then opened."""
        try:
            now = os.stat(self._path).st_ino
        except FileNotFoundError:
            self.vanished = not os.path.exists(os.path.dirname(self._path))
            return False
        if now == os.fstat(self._file.fileno()).st_ino:
            return False
        self._file.close()
        self._file = open(self._path, "rb")  # noqa: SIM115
        return True

    def _read(self, file: BinaryIO, options: Options) -> Iterator[bytes]:
        while data := file.read(_CHUNK):
            *lines, self._rest = (self._rest + data).split(b"\n")
            if out := b"".join(text for line in lines if (text := show(line, options))):
                yield out

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._before is not None:
            self._before.close()


def show(line: bytes, options: Options) -> bytes:
    """A CRI line as asked for; empty when it is left out."""
    parts = line.split(b" ", 3)
    if len(parts) != 4 or parts[0] < options.since or (options.stream and parts[1] != options.stream):
        return b""
    end = b"\n" if parts[2] == b"F" else b""
    return parts[0] + b" " + parts[3] + end if options.timestamps else parts[3] + end


class LogRouter:
    """Logs of all pods of a box: asks the node of the pod."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._nodes: dict[str, PodLogs] = {}

    def add(self, node: str, logs: PodLogs) -> None:
        """Make a node's logs known."""
        self._nodes[node] = logs

    async def read(self, namespace: str, name: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """See PodLogs.read; what the API server wants as pod_logs."""
        pod = await self._client.get(PODS, name, namespace)
        node = pod.spec.node_name
        if not node:
            raise _bad(f"pod {name} does not have a host assigned")
        if node not in self._nodes:
            raise ApiError(f"node {node} of pod {name} is not served here", code=503, reason="ServiceUnavailable")
        async for chunk in self._nodes[node].read(namespace, name, query):
            yield chunk
