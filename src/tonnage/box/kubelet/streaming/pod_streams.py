"""Sessions of one node: exec and attach for its pods' containers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from tonnage.api.pods import Container, Pod
from tonnage.api.remote_command import STDERR, STDOUT, Session, StreamOptions, Streams
from tonnage.box.kubelet.containers import context
from tonnage.box.kubelet.containers.logs import choose
from tonnage.box.kubelet.containers.process import ROOT, ContainerProcess
from tonnage.box.kubelet.pods.worker import KubeletParts, PodWorkers
from tonnage.box.kubelet.streaming.attach import attach
from tonnage.box.kubelet.streaming.exec_process import ExecProcess, JoinRequest, start
from tonnage.box.kubelet.streaming.stream_copy import copy_input, copy_output
from tonnage.errors import ApiError, HostError, TonnageError
from tonnage.host.iolimits import Cgroups

_ROOT_SECONDS, _PAUSE = 10.0, 0.01
_NOT_RUNNING = "container is not running"
_STARTS = 4
"""Commands that are being started at one time, each by a thread and a process."""


def _internal(message: str) -> ApiError:
    return ApiError(f"Internal error occurred: {message}", code=500, reason="InternalError")


class PodStreams:
    """Exec and attach for the pods of one node."""

    def __init__(self, parts: KubeletParts, workers: PodWorkers) -> None:
        self._runtime, self._workers = parts.runtime.name, workers
        self._cgroups = Cgroups()
        self._threads = ThreadPoolExecutor(_STARTS, thread_name_prefix="exec")  # a thread begins when it is needed
        self._open: set[asyncio.Task[int]] = set()
        self._is_closed = False

    def open(self, pod: Pod, options: StreamOptions) -> Session:
        """What serves a client. Raises ApiError in Kubernetes' words."""
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
        """The container's running process. Raises ApiError."""
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
        """A command that runs in a container, killed at the end. Raises ApiError."""
        anchor = await _anchor(container)
        work = partial(self._start, pod.metadata.uid, container.folder, anchor, options)
        starting = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_drop)
            raise
        except (TonnageError, OSError) as failure:
            why = failure.strerror or failure if isinstance(failure, OSError) else failure
            raise _internal(f"error executing command in container: {why}") from None
        process.watch()
        try:
            yield process
        finally:
            await process.close()

    def _start(self, uid: str, folder: str, anchor: int, options: StreamOptions) -> ExecProcess:
        """Start a command; closes the anchor. Blocking. Raises HostError, InvalidError, UnsupportedError, OSError."""
        try:
            if (own := context.load(folder)) is None:
                raise HostError(_NOT_RUNNING)
            group = self._cgroups.own_pod(uid)
            root, stdin, tty = f"{folder}/{ROOT}", options.stdin, options.tty
            return start(JoinRequest(options.command, own, root, anchor, group=group, stdin=stdin, tty=tty))
        finally:
            os.close(anchor)

    async def close(self) -> None:
        """End all sessions. Idempotent."""
        self._is_closed = True
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        self._threads.shutdown(wait=False)


async def _anchor(container: ContainerProcess) -> int:
    """A pidfd by which the container is joined, once its root is complete. Raises ApiError."""
    loop = asyncio.get_running_loop()
    late = loop.time() + _ROOT_SECONDS
    while (anchor := container.anchor()) is None:
        if container.ended is not None or loop.time() > late:
            raise _internal(f"error executing command in container: {_NOT_RUNNING}")
        await asyncio.sleep(_PAUSE)
    return anchor


def _drop(starting: asyncio.Future[ExecProcess]) -> None:
    """End a command whose client went while it was being started."""
    if not starting.cancelled() and starting.exception() is None:
        process = starting.result()
        process.watch()
        closing = asyncio.ensure_future(process.close())
        _DROPPED.add(closing)
        closing.add_done_callback(_DROPPED.discard)


_DROPPED: set[asyncio.Future[None]] = set()


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
