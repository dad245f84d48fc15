"""Commands inside running containers, for probes and hooks: bounded in time and in output.

The command gets the container's namespaces, user, capabilities, environment and cgroup; stdin is empty.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tonnage.api.pods import Container, Pod
from tonnage.box.kubelet.containers import enter, rootfs, seccomp
from tonnage.errors import HostError
from tonnage.host.encoding import encode
from tonnage.host.iolimits import Cgroup

_CAPABILITY_NUMBERS = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_SYS_CHROOT": 18,
    "CAP_AUDIT_WRITE": 29,
    "CAP_SETFCAP": 31,
}
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Inside:
    """A running container, seen from outside. pidfd: of its command, open; pid: the same."""

    pod: Pod
    container: Container
    pid: int
    pidfd: int
    group: Cgroup | None = None

    def request(self, argv: Sequence[str]) -> bytes:
        """What the helper program needs to know. Raises HostError (the container has ended), InvalidError."""
        who = rootfs.user(self.pod.spec.security_context, self.container.security_context)
        try:
            with open(f"/proc/{self.pid}/environ", "rb") as file:
                entries = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
            with open(f"/proc/{self.pid}/status", "rb") as file:
                filtered = b"\nSeccomp:\t2" in file.read()
        except OSError as failure:
            raise HostError(f"container {self.container.name}: not running: {failure.strerror}") from failure
        return marshal.dumps(
            {
                "pidfd": self.pidfd,
                "group": str(self.group.path / "cgroup.procs") if self.group is not None else "",
                "uid": who.uid,
                "gid": who.gid,
                "groups": list(who.groups),
                "capabilities": [_CAPABILITY_NUMBERS[name] for name in rootfs.CAPABILITIES],
                "program": seccomp.program(os.uname().machine) if filtered else b"",
                "argv": [encode(text, "command") for text in argv],
                "environment": {key: value for key, _, value in entries},
                "folder": encode(self.container.working_dir or "/", "workingDir"),
            }
        )


async def run(inside: Inside, argv: Sequence[str], *, timeout: float | None, limit: int) -> tuple[int, bytes]:
    """Run a command; its exit code (128 + signal) and the first `limit` bytes of what it printed.

    timeout: seconds, after which it is killed. Raises TimeoutError, HostError, InvalidError.
    """
    child, reader = _spawn(inside.pidfd, inside.request(argv))
    output = _Output(reader, limit)
    pidfd = os.pidfd_open(child.pid)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(timeout):
            await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # what it left behind too; its parent has not yet reaped it
        if ended.is_set():
            child.wait()
            os.close(pidfd)
        else:
            loop.add_reader(pidfd, _reap, child, pidfd)
        output.close()
    return child.returncode, bytes(output.kept)


def _reap(child: subprocess.Popen[bytes], pidfd: int) -> None:
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)
    child.wait()


def _spawn(pidfd: int, request: bytes) -> tuple[subprocess.Popen[bytes], int]:
    """Start the helper program; what it prints comes from the descriptor. Raises HostError."""
    wanted = os.memfd_create("request", os.MFD_CLOEXEC)
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(writer, True)
    try:
        os.write(wanted, request)
        os.lseek(wanted, 0, os.SEEK_SET)
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", enter.__file__, str(wanted)],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            env={},
            cwd="/",
            pass_fds=(wanted, pidfd),
            start_new_session=True,
        )
    except OSError as failure:
        os.close(reader)
        raise HostError(f"cannot run a command in a container: {failure.strerror}") from failure
    finally:
        os.close(wanted)
        os.close(writer)
    return child, reader


class _Output:
    """Reads all, keeps the beginning."""

    def __init__(self, fd: int, limit: int) -> None:
        self._fd, self._limit = fd, limit
        self.kept = bytearray()
        asyncio.get_running_loop().add_reader(fd, self._read)

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return False
        self.kept += data[: self._limit - len(self.kept)]
        if not data:
            asyncio.get_running_loop().remove_reader(self._fd)
        return bool(data)

    def close(self) -> None:
        """Take what is there already, and no more."""
        while len(self.kept) < self._limit and self._read():
            pass
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
