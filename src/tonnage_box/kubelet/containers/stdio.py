"""Standard streams of a container: FIFOs for its output, a pipe for its input, or a terminal for all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from tonnage.kubernetes.api.pods import Container


@dataclass
class Stdio:
    """theirs: the container's standard input, output and error. stdin: where its input is written, -1: nowhere."""

    theirs: tuple[int, int, int]
    stdin: int = -1
    _opened: set[int] = field(default_factory=set)

    @classmethod
    def open(cls, container: Container, uid: int, fifos: Sequence[str]) -> Stdio:
        """Open what a container asks for. fifos: of its output and error. Raises: OSError."""
        if container.tty:
            ours, terminal = os.openpty()
            os.fchown(terminal, uid, -1)
            os.set_blocking(ours, False)
            return cls((terminal, terminal, terminal), ours, {terminal})
        # Open for reading too: the container never sees a broken pipe while no kubelet is there to read.
        out, error = (os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in fifos)
        if not container.stdin:
            return cls((subprocess.DEVNULL, out, error), -1, {out, error})
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(writer, False)
        return cls((reader, out, error), writer, {reader, out, error})

    def close_theirs(self) -> None:
        """Close the container's ends, which it has inherited. Idempotent."""
        while self._opened:
            os.close(self._opened.pop())

    def close(self) -> None:
        """Close everything. Idempotent."""
        self.close_theirs()
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1
