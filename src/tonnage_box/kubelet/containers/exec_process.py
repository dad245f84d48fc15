"""Process of an exec: started in a running container by a helper, watched by its pidfd."""

from __future__ import annotations

import asyncio
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from tonnage.base.errors import HostError
from tonnage.host.encoding import encode
from tonnage_box.kubelet.containers import seccomp
from tonnage_box.kubelet.containers.context import ContainerContext, load
from tonnage_box.kubelet.containers.process import ROOT, ContainerProcess
from tonnage_box.kubelet.pod_cgroups import PodCgroup, PodCgroups

_HELPER = os.path.join(os.path.dirname(__file__), "join.py")
_START_SECONDS = 30.0
_END_SECONDS, _TRACED_SECONDS = 1.0, 0.1
_MESSAGE, _CHUNK = 8 << 10, 64 << 10
_ROOT_SECONDS, _PAUSE = 10.0, 0.01
_NOT_RUNNING = "container is not running"
_STARTS = 4
"""Commands that are being started at one time."""
_TERM = b"xterm"


@dataclass(frozen=True)
class JoinRequest:
    """A command to run in a container. anchor: a pidfd of the container's first process; root: its root's folder."""

    argv: Sequence[str]
    context: ContainerContext
    root: str
    anchor: int
    group: PodCgroup | None = None
    stdin: bool = False
    tty: bool = False

    def plan(self) -> bytes:
        """What the helper reads. Raises: InvalidError, UnsupportedError, OSError."""
        root, context, machine = os.stat(self.root), self.context, os.uname().machine
        environment = {encode(key, "name of a variable"): value for key, value in context.environment.items()}
        if self.tty:
            environment[b"TERM"] = _TERM
        return marshal.dumps(
            {
                "argv": [encode(text, "an argument of the command") for text in self.argv],
                "environment": environment,
                "folder": encode(context.working_dir, "workingDir"),
                "root": (root.st_dev, root.st_ino),
                "uid": context.uid,
                "gid": context.gid,
                "groups": list(context.groups),
                "capabilities": context.capabilities,
                "filter": seccomp.program(machine, unconfined=context.unconfined),
                "keyctl": seccomp.keyctl_number(machine),
                "tty": self.tty,
            }
        )


@dataclass
class ExecProcess:
    """A process in a container. Descriptors of its streams, not blocking; -1: none. A terminal is stdin and stdout."""

    pid: int
    stdin: int = -1
    stdout: int = -1
    stderr: int = -1
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    code: int = -1
    """As a shell reports it, once ended is set."""
    _pidfd: int = -1
    _later: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Wait for its end from now on; in the loop's thread."""
        self._pidfd = os.pidfd_open(self.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._gone)

    def _gone(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:  # a process of the container traces it, and learns of its end first
            self._unwatch()
            self._later = asyncio.get_running_loop().call_later(_TRACED_SECONDS, self._gone)
            return
        code = os.waitstatus_to_exitcode(status)
        self.code = code if code >= 0 else 128 - code
        self._unwatch()
        self.ended.set()

    def _unwatch(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def kill(self) -> None:
        """Kill it and its process group. It is our child: its number is its own until it is waited for."""
        if not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close_stdin(self) -> None:
        """End its input; a terminal stays open. Idempotent."""
        if self.stdin >= 0 and self.stdin != self.stdout:
            os.close(self.stdin)
            self.stdin = -1

    async def close(self) -> None:
        """Kill it if it runs, close its streams, wait a moment for its end. Idempotent."""
        self.kill()
        for fd in {self.stdin, self.stdout, self.stderr} - {-1}:
            os.close(fd)
        self.stdin = self.stdout = self.stderr = -1
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self.ended.wait()


class CommandStarter:
    """Starts commands in containers, a few at one time, each by a thread and a process."""

    def __init__(self) -> None:
        self._cgroups = PodCgroups()
        self._threads = ThreadPoolExecutor(_STARTS, thread_name_prefix="exec")  # a thread begins when it is needed
        self._dropped: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def command(
        self, uid: str, container: ContainerProcess, argv: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> AsyncIterator[ExecProcess]:
        """A command that runs in a pod's container, killed at the end. Raises: HostError, InvalidError, OSError."""
        anchor = await _anchor(container)
        work = partial(self._start, uid, container.folder, anchor, argv, stdin=stdin, tty=tty)
        starting = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._drop)
            raise
        process.watch()
        try:
            yield process
        finally:
            await process.close()

    def _start(self, uid: str, folder: str, anchor: int, argv: Sequence[str], *, stdin: bool, tty: bool) -> ExecProcess:
        """Start a command; closes the anchor. Blocking. Raises: HostError, InvalidError, UnsupportedError, OSError."""
        try:
            if (own := load(folder)) is None:
                raise HostError(_NOT_RUNNING)
            group = self._cgroups.own_pod(uid)
            return start(JoinRequest(argv, own, f"{folder}/{ROOT}", anchor, group=group, stdin=stdin, tty=tty))
        finally:
            os.close(anchor)

    def _drop(self, starting: asyncio.Future[ExecProcess]) -> None:
        """End a command whose client went while it was being started."""
        if not starting.cancelled() and starting.exception() is None:
            process = starting.result()
            process.watch()
            closing = asyncio.ensure_future(process.close())
            self._dropped.add(closing)
            closing.add_done_callback(self._dropped.discard)

    def close(self) -> None:
        """Start no more. Idempotent."""
        self._threads.shutdown(wait=False)


async def _anchor(container: ContainerProcess) -> int:
    """A pidfd by which the container is joined, once its root is complete. Raises: HostError."""
    loop = asyncio.get_running_loop()
    late = loop.time() + _ROOT_SECONDS
    while (anchor := container.anchor()) is None:
        if container.ended is not None or loop.time() > late:
            raise HostError(_NOT_RUNNING)
        await asyncio.sleep(_PAUSE)
    return anchor


async def run(process: ExecProcess, *, timeout: float | None, limit: int) -> tuple[int, bytes]:
    """Wait for the end of a command: its exit code and the first `limit` bytes that it printed.

    timeout: seconds. Raises: TimeoutError.
    """
    output = _Output([process.stdout, process.stderr], limit)
    try:
        async with asyncio.timeout(timeout):
            await process.ended.wait()
    finally:
        output.close()
    return process.code, bytes(output.data)


class _Output:
    """Reads all that is printed, and stores the beginning."""

    def __init__(self, files: Sequence[int], limit: int) -> None:
        self._open, self._limit = set(files), limit
        self.data = bytearray()
        for fd in files:
            asyncio.get_running_loop().add_reader(fd, self._read, fd)

    def _read(self, fd: int) -> bool:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        self.data += data[: self._limit - len(self.data)]
        if not data:
            self._stop(fd)
        return bool(data)

    def _stop(self, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        self._open.discard(fd)

    def close(self) -> None:
        """Take what is there already, and no more: a process in the background may hold the other end."""
        for fd in list(self._open):
            while len(self.data) < self._limit and self._read(fd):
                pass
            self._stop(fd)


def start(request: JoinRequest) -> ExecProcess:
    """Start a command in a container. Blocking.

    Raises: HostError (with the runtime's words for the client), InvalidError, UnsupportedError, OSError.
    """
    plan = request.plan()
    with ExitStack() as theirs, ExitStack() as ours:
        control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.callback(control.close)
        theirs.callback(far.close)
        gate, writer = os.pipe2(os.O_CLOEXEC)
        theirs.callback(os.close, gate)
        files = {} if request.tty else _pipes(request, theirs, ours)
        helper = subprocess.Popen(
            [sys.executable, "-I", "-S", _HELPER, *map(str, (far.fileno(), gate, request.anchor))],
            stdin=files["stdin"][0] if "stdin" in files else subprocess.DEVNULL,
            stdout=files["stdout"][0] if files else subprocess.DEVNULL,
            stderr=files["stderr"][0] if files else subprocess.DEVNULL,
            env={},
            cwd="/",
            pass_fds=(far.fileno(), gate, request.anchor),
        )
        theirs.close()
        try:
            with os.fdopen(writer, "wb", closefd=True) as out, suppress(BrokenPipeError):
                if request.group is not None:
                    request.group.add(helper.pid)
                out.write(plan)
            process = _follow(control)
        except BaseException:
            helper.kill()
            raise
        finally:
            helper.wait()
        for name, (_, fd) in files.items():
            setattr(process, name, fd)
        control.close()
        ours.pop_all()
        return process


def _pipes(request: JoinRequest, theirs: ExitStack, ours: ExitStack) -> dict[str, tuple[int, int]]:
    """Pipes of the streams: their end and ours."""
    files = {}
    for name in ("stdin", "stdout", "stderr") if request.stdin else ("stdout", "stderr"):
        reader, writer = os.pipe2(os.O_CLOEXEC)
        far, near = (reader, writer) if name == "stdin" else (writer, reader)
        theirs.callback(os.close, far)
        ours.callback(os.close, near)
        os.set_blocking(near, False)
        files[name] = (far, near)
    return files


def _follow(control: socket.socket) -> ExecProcess:
    """Read the helper's reports until the command runs or is not started. Raises: HostError."""
    control.settimeout(_START_SECONDS)
    process, terminal, why = ExecProcess(-1), -1, ""
    try:
        while (message := socket.recv_fds(control, _MESSAGE, 1))[0]:
            word, _, rest = message[0].partition(b" ")
            if word == b"pid":
                process.pid = int(rest)
            elif word == b"terminal":
                terminal = message[1][0]
            else:
                why = rest.decode(errors="replace")
    except TimeoutError:
        why = f"the command did not start within {_START_SECONDS:g} s"
    if why or process.pid < 0:
        if terminal >= 0:
            os.close(terminal)
        _end(process.pid)
        raise HostError(why or "the helper that joins the container has ended")
    if terminal >= 0:
        os.set_blocking(terminal, False)
        process.stdin = process.stdout = terminal
    return process


def _end(pid: int) -> None:
    """Kill and wait for a process that did not become the command."""
    if pid > 0:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
