"""Descriptors of open files, closed at the end of a body. Blocking."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """The same descriptor, closed at the end."""
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def opened(
    path: str | bytes | os.PathLike[str], flags: int = os.O_RDONLY, *, dir_fd: int | None = None
) -> Iterator[int]:
    """As os.open(), close-on-exec, and closed at the end. Raises: OSError."""
    fd = os.open(path, flags | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)
