"""A database with a log and its data on two volumes, and what a pair of them must show.

Run as a program: append a record to the log, sync it, write the same number to the data, sync that, and so on.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

RECORD = 512
_SLOTS = 64


def write(log: Path, data: Path) -> None:
    """Write forever."""
    first = os.open(log / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    second = os.open(data / "data", os.O_WRONLY | os.O_CREAT)
    for number in count(1):
        record = struct.pack("=Q", number).ljust(RECORD, b"\1")
        os.write(first, record)
        os.fsync(first)
        os.pwrite(second, record, number % _SLOTS * RECORD)
        os.fsync(second)


@contextmanager
def running(log: Path, data: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A database that writes while the body runs."""
    process = subprocess.Popen([sys.executable, __file__, str(log), str(data)])
    try:
        yield process
        assert process.poll() is None, "it could write until the end"
    finally:
        process.kill()
        process.wait()


def numbers(log: Path, data: Path) -> tuple[int, int]:
    """The last number in the log and in the data; the log must have all that the data has."""
    logged = _numbers(log / "log")
    assert logged == list(range(1, len(logged) + 1)), "the log has all records, and each once"
    written = [number for number in _numbers(data / "data") if number]
    assert set(written) <= set(logged)
    return len(logged), max(written, default=0)


def _numbers(path: Path) -> list[int]:
    content = path.read_bytes() if path.exists() else b""
    return [struct.unpack_from("=Q", content, at)[0] for at in range(0, len(content) // RECORD * RECORD, RECORD)]


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
