"""Files and folders written so that a kill or a power cut leaves the old or the new. Blocking."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from tonnage.host.descriptor import opened


def sync(path: Path, flags: int = 0) -> None:
    """Make a file's content, or a folder's entries, durable. flags: additional ones of open(2). Raises: OSError."""
    with opened(path, os.O_RDONLY | flags) as fd:
        os.fsync(fd)


def replace(path: Path, data: bytes) -> None:
    """Write or replace a file that only its owner may read, at once; not durable. Raises: OSError."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    os.rename(new, path)


def try_lock(fd: int) -> bool:
    """Lock an open file or device for its descriptor alone; False while another one has it. Raises: OSError."""
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def is_at(path: str | Path, fd: int) -> bool:
    """Whether a path leads to an open file. Raises: OSError."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(fd))
    return False
