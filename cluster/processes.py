"""Processes that outlive the command that started them: found again by pid and start time, ended on request."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_GRACE = 20.0
_PORTS = range(20000, 30000)
_MOST_RESERVED = 256
_reserved: deque[socket.socket] = deque()


class Failed(Exception):
    """A part of the cluster did not come up; the message holds the end of its log."""


class Processes:
    """The processes of one cluster: a file with pid and start time for each in `folder`, logs beside them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def log(self, name: str) -> Path:
        """Where a process writes to."""
        return self._folder / f"{name}.log"

    def start(self, name: str, command: Sequence[str | Path], *, environment: Mapping[str, str] | None = None) -> int:
        """Start a program in a session of its own; its pid."""
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        (self._folder / f"{name}.pid").write_text(f"{process.pid} {_started(process.pid)}")
        return process.pid

    def pid(self, name: str) -> int | None:
        """The pid of a process that still runs, None when it does not."""
        try:
            pid, started = (self._folder / f"{name}.pid").read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if _started(int(pid)) == started else None

    def names(self) -> list[str]:
        """All that were started, the newest last."""
        found = sorted(self._folder.glob("*.pid"), key=lambda path: path.stat().st_mtime_ns)
        return [path.stem for path in found]

    def end(self, name: str, *, sign: signal.Signals = signal.SIGTERM) -> None:
        """End a process, by force when it does not go. May be repeated."""
        pid = self.pid(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, sign)
            if not until(lambda: self.pid(name) is None, _GRACE):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                until(lambda: self.pid(name) is None, _GRACE)
        (self._folder / f"{name}.pid").unlink(missing_ok=True)

    def wait(self, name: str, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until ready() holds. Raises Failed when the process ends or the time is over."""
        if until(lambda: ready() or self.pid(name) is None, seconds) and self.pid(name) is not None:
            return
        tail = self.log(name).read_text(errors="replace")[-3000:]
        state = "ended" if self.pid(name) is None else f"is not ready after {seconds:g} s"
        raise Failed(f"{name} {state}; the end of {self.log(name)}:\n{tail}")


def until(done: Callable[[], bool], seconds: float) -> bool:
    """Ask until it holds or the time is over; whether it does."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def free_port(ports: range = _PORTS) -> int:
    """A port of 127.0.0.1 for a server that starts later. No other process gets it until this one has 256 more.

    It is below the ports that the kernel gives to outgoing connections (ip_local_port_range), and below NodePorts: a
    server may need seconds until it listens. Raises Failed when all are taken.
    """
    for port in random.sample(ports, len(ports)):
        reserved = socket.socket(socket.AF_UNIX)  # abstract: of this network namespace, freed with the process
        try:
            reserved.bind(f"\0tonnage port {port}")
            with socket.socket() as listening:
                listening.bind(("127.0.0.1", port))
        except OSError:
            reserved.close()
        else:
            _reserved.append(reserved)
            if len(_reserved) > _MOST_RESERVED:  # descriptors are few, and their servers listen by now
                _reserved.popleft().close()
            return port
    raise Failed(f"127.0.0.1: all ports from {ports.start} to {ports.stop - 1} are taken: end what has them")


def _started(pid: int) -> str:
    """When a process began, in clock ticks since boot; "" when it is gone or a zombie."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
