"""Sessions of one node: exec and attach for its pods' containers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tonnage.base.errors import ApiError, TonnageError
from tonnage.kubernetes.api.pods import Container, Pod
from tonnage_box.api.remote_command import STDERR, STDOUT, Session, StreamOptions, Streams
from tonnage_box.kubelet.containers.exec_process import CommandStarter, ExecProcess
from tonnage_box.kubelet.containers.process import ContainerProcess
from tonnage_box.kubelet.pods.worker import KubeletParts, PodWorkers
from tonnage_box.kubelet.streaming.attach import attach
from tonnage_box.kubelet.streaming.logs import choose
from tonnage_box.kubelet.streaming.stream_copy import copy_input, copy_output


def _internal(message: str) -> ApiError:
    return ApiError(f"Internal error occurred: {message}", code=500, reason="InternalError")


class PodStreams:
    """Exec and attach for the pods of one node."""

    def __init__(self, parts: KubeletParts, workers: PodWorkers) -> None:
        self._runtime, self._workers = parts.runtime.name, workers
        self._starter = CommandStarter()
        self._open: set[asyncio.Task[int]] = set()
        self._is_closed = False

    def open(self, pod: Pod, options: StreamOptions) -> Session:
        """What serves a client. Raises: ApiError in Kubernetes' words."""
        container = choose(pod, options.container)
        if self._runtime == "none":
            raise ApiError(
                f"node {pod.spec.node_name} runs no containers (--runtime none): there is nothing to exec in",
                code=501,
                reason="NotImplemented",
            )

        async def serve(streams: Streams) -> int:
            task = asyncio.ensure_future(self._serve(pod, container, options, streams))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            try:
                return await task
            except asyncio.CancelledError:
                if self._is_closed:
                    why = f"node {pod.spec.node_name} is shutting down"
                    raise ApiError(why, code=503, reason="ServiceUnavailable") from None
                raise
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        return serve

    async def _serve(self, pod: Pod, container: Container, options: StreamOptions, streams: Streams) -> int:
        process = self.process(pod, container.name)
        if options.is_attach:
            return await attach(process, container, options, streams)
        async with self.command(pod, process, options) as running:
            return await _converse(running, options, streams)

    def process(self, pod: Pod, name: str) -> ContainerProcess:
        """The container's running process. Raises: ApiError."""
        record = self._workers.find(pod.metadata.namespace, pod.metadata.name)
        if record is None or record.uid != pod.metadata.uid or record.containers is None:
            raise _internal("unable to upgrade connection: pod does not exist")
        run = next((r for r in record.containers.all if r.container.name == name), None)
        if run is None or not run.running or not isinstance(run.process, ContainerProcess):
            raise _internal(f'unable to upgrade connection: container not found ("{name}")')
        return run.process

    @asynccontextmanager
    async def command(
        self, pod: Pod, container: ContainerProcess, options: StreamOptions
    ) -> AsyncIterator[ExecProcess]:
        """A command that runs in a container, killed at the end. Raises: ApiError."""
        starting = self._starter.command(
            pod.metadata.uid, container, options.command, stdin=options.stdin, tty=options.tty
        )
        async with AsyncExitStack() as stack:
            try:
                process = await stack.enter_async_context(starting)
            except (TonnageError, OSError) as failure:
                why = failure.strerror or failure if isinstance(failure, OSError) else failure
                raise _internal(f"error executing command in container: {why}") from None
            yield process

    async def close(self) -> None:
        """End all sessions. Idempotent."""
        self._is_closed = True
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        self._starter.close()


async def _converse(process: ExecProcess, options: StreamOptions, streams: Streams) -> int:
    """Copy between a client and a command until one of them ends; the command's exit code."""
    outputs = [
        asyncio.ensure_future(copy_output(fd, channel, streams, process.ended))
        for fd, channel in ((process.stdout, STDOUT), (process.stderr, STDERR))
        if fd >= 0
    ]
    terminal = process.stdout if options.tty else -1
    reading = asyncio.ensure_future(copy_input(streams, lambda: process.stdin, process.close_stdin, terminal))
    ending = asyncio.ensure_future(process.ended.wait())
    try:
        await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            reading.result()
            raise ConnectionResetError("the client is gone")
        await asyncio.gather(*outputs)
        return process.code
    finally:
        tasks = [*outputs, reading, ending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
