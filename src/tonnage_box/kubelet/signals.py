"""Signals of programs that are started here: each at its default, none blocked.

A program inherits both from its parent: nohup, and a script's `&`, ignore signals for all that is started below them.
It is a program as well, which runs another one: it imports nothing of tonnage.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_RESTORED = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
"""The interpreter ignores these; subprocess restores them."""
_OF_THREADS = frozenset({32, 33})
"""The C library's own (nptl(7)): posix_spawn(3) ignores them for what it starts; threads need no default of them."""


def ignored(pid: int | str = "self") -> frozenset[int]:
    """Return the numbers of the signals that a process ignores, without the C library's own. Raises: OSError."""
    with open(f"/proc/{pid}/status", "rb") as file:
        mask = next(int(line[7:], 16) for line in file if line.startswith(b"SigIgn:"))
    return frozenset(number + 1 for number in range(mask.bit_length()) if mask >> number & 1) - _OF_THREADS


def reset_by() -> list[str]:
    """Return what a command of subprocess has to begin with, nothing where this process ignores no more than usual.

    It starts the interpreter once more: subprocess can do so itself only by a fork of the whole process.
    """
    return [sys.executable, "-I", "-S", __file__] if ignored() - _RESTORED else []


@contextmanager
def none_blocked() -> Iterator[None]:
    """Let no signal be blocked in this thread, and so in what it starts."""
    before = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main(command: list[str]) -> None:
    """Become the command, with an empty environment."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError):  # the C library's own
            signal.signal(number, signal.SIG_DFL)
    os.execve(command[0], command, {})


if __name__ == "__main__":
    main(sys.argv[1:])
