"""A command at a terminal, for pages that show what people type at a prompt."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PROMPT = "# "


def converse(
    command: Sequence[str], typed: Sequence[str], *, folder: Path, environment: Mapping[str, str], seconds: float
) -> tuple[int, str]:
    """Type a line at each prompt until the command ends; its exit code and what the terminal shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment)
    os.close(theirs)
    shown, answered, lines = b"", 0, list(typed)
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    shown += os.read(ours, 1 << 16)
                except OSError:  # the last process that had the terminal open has ended
                    break
            if lines and shown.endswith(PROMPT.encode()) and len(shown) > answered:
                answered = len(shown)
                os.write(ours, f"{lines.pop(0)}\n".encode())
        return process.wait(max(0.1, deadline - time.monotonic())), shown.decode().replace("\r\n", "\n")
    finally:
        process.kill()
        process.wait()
        os.close(ours)
