"""Run a program of the machine. No other code forks. Blocking.

The program gets no terminal, a small fixed environment and a process group of its own, which is killed at the timeout.
The first `keep` bytes of each output stream are returned, the rest is discarded.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from tonnage.base.errors import HostError
from tonnage.host.descriptor import closing

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OUTPUT_LIMIT = 64 * 1024
_GRACE = 5.0  # seconds a killed program may take to go; one that waits for a dead disk never does


class CommandError(HostError):
    """A program could not be started, failed, or timed out.

    `code` is its exit code, negative for a signal, None when there is none.
    """

    def __init__(self, command: Sequence[str], why: str, *, code: int | None = None, stderr: str = "") -> None:
        self.command = tuple(command)
        self.code = code
        self.stderr = stderr.strip()
        super().__init__(f"{' '.join(command)}: {why}" + (f": {self.stderr}" if self.stderr else ""))


def run(
    command: Sequence[str],
    *,
    timeout: float = 60.0,
    pass_fds: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    keep: int = OUTPUT_LIMIT,
    stop: int | None = None,
) -> str:
    """Run a program and return its output. timeout: seconds. Raises: CommandError.

    pass_fds: descriptors that it inherits by number. environment: variables in addition to PATH, LC_ALL and TZ. keep:
    maximum bytes to return of each output stream. stop: a descriptor; the program is killed when it can be read.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": PATH, "LC_ALL": "C", "TZ": "UTC", **(environment or {})},
            cwd="/",
            pass_fds=tuple(pass_fds),
            process_group=0,
        )
    except FileNotFoundError:
        raise CommandError(command, f"{command[0]} is not installed on this machine") from None
    except OSError as failure:
        raise CommandError(command, f"cannot be started: {failure.strerror}") from failure
    with process:
        stdout, stderr = _finish(process, command, timeout, (keep, stop))
    if process.returncode:
        why = f"exit code {process.returncode}" if process.returncode > 0 else f"killed by signal {-process.returncode}"
        raise CommandError(command, why, code=process.returncode, stderr=stderr or stdout)
    return stdout


def _finish(
    process: subprocess.Popen[bytes], command: Sequence[str], timeout: float, limits: tuple[int, int | None]
) -> tuple[str, str]:
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + timeout
    output = _drain((process.stdout, process.stderr), deadline, *limits)
    try:
        if output is not None:
            _wait(process, deadline)
    except subprocess.TimeoutExpired:
        output = None
    except BaseException:
        _kill(process)
        raise
    if output is None:
        _kill(process)
        why = f"not done after {timeout:g} s, killed" if time.monotonic() >= deadline else "stopped"
        raise CommandError(command, why)
    return output[0], output[1]


def _wait(process: subprocess.Popen[bytes], deadline: float) -> None:
    """Wait until the program has ended, without the polling of Popen.wait(). Raises: TimeoutExpired."""
    if process.poll() is not None:
        return
    with suppress(OSError), closing(os.pidfd_open(process.pid)) as fd:  # OSError: Linux before 5.3
        ended = select.poll()
        ended.register(fd, select.POLLIN)
        ended.poll(max(0.0, deadline - time.monotonic()) * 1000)
    process.wait(max(0.0, deadline - time.monotonic()))  # at once, unless a debugger hears of the end before us


def _drain(streams: Sequence[IO[bytes]], deadline: float, keep: int, stop: int | None) -> list[str] | None:
    """Read all streams to their ends; return the first `keep` bytes of each. None at the deadline, and at a stop."""
    output = [bytearray() for _ in streams]
    with selectors.DefaultSelector() as selector:
        for index, stream in enumerate(streams):
            selector.register(stream, selectors.EVENT_READ, output[index])
        if stop is not None:
            selector.register(stop, selectors.EVENT_READ)
        while len(selector.get_map()) > (stop is not None):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                return None
            if any(key.fd == stop for key, _ in ready):
                return None
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                key.data.extend(data[: keep - len(key.data)])
                if not data:
                    selector.unregister(key.fileobj)
    return [data.decode(errors="replace") for data in output]


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
