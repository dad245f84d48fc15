"""Attach: a client at the standard streams of a container's own process, in addition to its log."""

from __future__ import annotations

import asyncio
import os

from tonnage.base.errors import PreconditionError
from tonnage.kubernetes.api.pods import Container
from tonnage_box.api.remote_command import STDERR, STDOUT, StreamOptions, Streams
from tonnage_box.kubelet.containers.log_writer import LogPump
from tonnage_box.kubelet.containers.process import ContainerProcess
from tonnage_box.kubelet.streaming.stream_copy import resize, write_all

_WAITING_BYTES = 256 << 10
"""Bytes that wait for a client; then the container waits, too."""
_CHANNELS = {"stdout": STDOUT, "stderr": STDERR}


class AttachedOutput:
    """Output that waits for one client (OutputTap)."""

    def __init__(self, pump: LogPump) -> None:
        self._pump = pump
        self._parts: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        self._waiting = 0

    def feed(self, stream: str, data: bytes) -> None:
        """See OutputTap."""
        self._waiting += len(data)
        self._parts.put_nowait((_CHANNELS[stream], data))
        if self._waiting > _WAITING_BYTES:
            self._pump.pause(self)

    def end(self) -> None:
        """See OutputTap."""
        self._parts.put_nowait(None)

    async def send(self, streams: Streams) -> None:
        """Send everything until the container's end. Raises: ConnectionError."""
        while (part := await self._parts.get()) is not None:
            await streams.send(*part)
            self._waiting -= len(part[1])
            if self._waiting <= _WAITING_BYTES // 2:
                self._pump.resume(self)


async def attach(process: ContainerProcess, container: Container, options: StreamOptions, streams: Streams) -> int:
    """Serve a client until the container ends or the client is done; 0. Raises: PreconditionError, ConnectionError."""
    if process.pump is None or (options.stdin and container.stdin and process.stdin < 0):
        raise PreconditionError(
            f"container {container.name}: cannot attach: its input was closed, by a first client (stdinOnce) or by a "
            "restart of the box; delete the pod, or attach without -i"
        )
    output = AttachedOutput(process.pump)
    process.pump.taps.add(output)
    stdin = _Input(process)
    sending = asyncio.ensure_future(output.send(streams))
    reading = asyncio.ensure_future(_copy_input(stdin, container, options, streams))
    try:
        await asyncio.wait({sending, reading}, return_when=asyncio.FIRST_COMPLETED)
        for task in (sending, reading):
            if task.done():
                task.result()
        return 0
    finally:
        process.pump.taps.discard(output)
        process.pump.resume(output)
        for task in (sending, reading):
            task.cancel()
        await asyncio.gather(sending, reading, return_exceptions=True)
        stdin.close()
        if options.stdin and container.stdin_once and not container.tty:
            process.close_stdin()


class _Input:
    """The container's input for one client. A descriptor of its own: the container may end during a write."""

    def __init__(self, process: ContainerProcess) -> None:
        self._process = process
        self.fd = os.dup(process.stdin) if process.stdin >= 0 else -1

    def close(self) -> None:
        """Stop writing. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def end(self) -> None:
        """End the container's input. Idempotent."""
        self.close()
        self._process.close_stdin()


async def _copy_input(stdin: _Input, container: Container, options: StreamOptions, streams: Streams) -> None:
    """Write a client's input until the client is done. The end of the input ends it, unless it is the container's."""
    while (message := await streams.receive()) is not None:
        if message.size is not None and container.tty and stdin.fd >= 0:
            resize(stdin.fd, message.size)
        if message.data and container.stdin and stdin.fd >= 0:
            try:
                await write_all(stdin.fd, message.data)
            except OSError:  # the container does not read any more; its output goes on
                stdin.end()
        if message.is_end and options.stdin:
            if not container.stdin_once or container.tty:
                return
            stdin.end()
    raise ConnectionResetError("the client is gone")
