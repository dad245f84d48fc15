"""A program that writes 4 KiB and calls fdatasync until its standard input ends: `... writer FILE`.

It prints one byte when it begins, and when each write began and ended once it is over.
"""

from __future__ import annotations

import os
import select
import struct
import sys
from time import monotonic

SPAN = "=dd"
_BLOCK, _WRAP = 4096, 1 << 24


def main(file: str) -> None:
    """Write to the file, which is as long as it gets before the first measured write."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    block, at = os.urandom(_BLOCK), 0
    os.posix_fallocate(fd, 0, _WRAP)
    os.fsync(fd)
    spans: list[float] = []
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    while not select.select([0], [], [], 0)[0]:
        began = monotonic()
        os.pwrite(fd, block, at)
        os.fdatasync(fd)
        spans += (began, monotonic())
        at = (at + _BLOCK) % _WRAP
    sys.stdout.buffer.write(struct.pack(f"={len(spans)}d", *spans))


if __name__ == "__main__":
    main(sys.argv[1])
