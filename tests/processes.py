"""The machine's processes, as /proc has them. A process may end between any two looks: it is then one that is not there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_ENDED = (b"Z", b"X")


def read(pid: int, file: str) -> bytes:
    """A file of /proc/PID, b"" of a process that is not there. Once it is open, reading it fails with ESRCH."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{file}").read_bytes()
    return b""


def pids() -> Iterator[int]:
    """All processes."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def arguments(pid: int) -> list[str]:
    """The command line; [] of a process that is not there, and of a zombie."""
    return read(pid, "cmdline").decode(errors="replace").split("\0")[:-1]


def with_text(text: str) -> list[int]:
    """Processes with a text in their command line."""
    return [pid for pid in pids() if text.encode() in read(pid, "cmdline")]


def with_argument(argument: str) -> list[int]:
    """Processes that have exactly this among their arguments."""
    return [pid for pid in pids() if argument in arguments(pid)]


def with_variable(variable: str) -> list[int]:
    """Processes that have NAME=VALUE in the environment they were started with."""
    return [pid for pid in pids() if variable.encode() in read(pid, "environ").split(b"\0")]


def children(pid: int) -> list[int]:
    """Child processes of its first thread."""
    return [int(child) for child in read(pid, f"task/{pid}/children").split()]


def is_running(pid: int) -> bool:
    """A zombie has ended."""
    return read(pid, "stat").rpartition(b")")[2][1:2] not in (b"", *_ENDED)


def kill(victims: Iterable[int]) -> None:
    """SIGKILL to each that is still there."""
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
