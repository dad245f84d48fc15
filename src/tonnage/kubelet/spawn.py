"""Starting bwrap, in the pod's cgroup from its first process on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from tonnage.host.iolimits import Group


def spawn(
    command: Sequence[str],
    options: Sequence[str],
    argv: Sequence[str],
    *,
    outputs: tuple[int, int],
    keep: int,
    program: bytes,
    group: Group | None,
) -> subprocess.Popen[bytes]:
    """Start `command` (bwrap and what it must be told first) with more options, to run argv. Blocking.

    outputs: its standard output and error. keep: a descriptor that it inherits. program: a seccomp filter, b"" for
    none. group: the cgroup it shall be in. Raises OSError; then nothing runs.

    bwrap reads its options from a pipe before it makes any process. So they are written only when it is in its cgroup,
    and nothing of the container has ever been outside.
    """
    given, writer = os.pipe2(os.O_CLOEXEC)
    filters = [_in_memory(program)] if program else []
    try:
        child = subprocess.Popen(
            [
                *command,
                *("--args", str(given)),
                *(text for fd in filters for text in ("--seccomp", str(fd))),
                "--",
                *argv,
            ],
            stdin=subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            env={},
            cwd="/",
            pass_fds=(keep, given, *filters),
            start_new_session=True,  # Ctrl-C at the terminal is for the kubelet, which then ends its containers
        )
    except OSError:
        os.close(writer)
        raise
    finally:
        for fd in (given, *filters):
            os.close(fd)
    _let_go(child, writer, b"".join(os.fsencode(option) + b"\0" for option in options), group)
    return child


def _let_go(child: subprocess.Popen[bytes], writer: int, options: bytes, group: Group | None) -> None:
    with os.fdopen(writer, "wb", buffering=0) as pipe:
        try:
            if group is not None:
                group.add(child.pid)
        except OSError:
            child.kill()
            child.wait()
            raise
        left = memoryview(options)
        with suppress(BrokenPipeError):  # it has ended already, and its log says why
            while left:
                left = left[pipe.write(left) :]


def _in_memory(data: bytes) -> int:
    """A descriptor from which bwrap reads a filter."""
    fd = os.memfd_create("filter", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
