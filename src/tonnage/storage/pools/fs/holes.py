"""Where a file has data and where it has holes. Blocking."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator


def data_ranges(fd: int) -> Iterator[tuple[int, int]]:
    """The start and end of each part of an open file that is no hole. Moves its position. Raises: OSError."""
    at, end = 0, os.fstat(fd).st_size
    while at < end:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as failure:
            if failure.errno == errno.ENXIO:  # nothing but a hole up to the end
                return
            raise
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at


def pieces(fd: int, size: int) -> Iterator[tuple[int, bytes]]:
    """All data of a file with its offsets, without holes, at most `size` bytes at a time. Raises: OSError."""
    for start, end in data_ranges(fd):
        for offset in range(start, end, size):
            yield offset, os.pread(fd, min(size, end - offset), offset)
