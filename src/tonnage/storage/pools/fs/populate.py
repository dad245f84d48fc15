"""The class parameter `source`: populate a new volume from a directory of the node. Blocking.

The directory is opened without following a symlink anywhere in its path, and copied by cp(1). Owners, modes, times,
extended attributes, hard links, symlinks and holes stay as they are. Blocks are shared where the file system can.
Mounts inside it belong elsewhere and are rejected, and so are device nodes: a pod could use them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tonnage.base.errors import DoesNotFitError, HostError, InvalidError, OutOfRangeError, PreconditionError
from tonnage.host import libc, mount, nofollow, tree
from tonnage.host.descriptor import closing, opened
from tonnage.host.run import CommandError, run
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.pools.fs.holes import data_ranges

_BLOCK = 4096
_TIMEOUT = 6 * 3600.0  # seconds: as long as a disk takes to read what fits on it
_FULL = ("No space left on device", "Disk quota exceeded")
_HALF = "trusted.tonnage.filling"
"""The extended attribute of a root that is being populated; no pod can set it."""
_COPY = ("cp", "-dR", "--preserve=mode,ownership,timestamps,links,xattr", "--reflink=auto", "--sparse=auto", "-x")


def check(folder: Path, size: int) -> None:
    """Check that a directory is there and fits into `size` bytes.

    Raises: PreconditionError when it is missing or behind a symlink, InvalidError for what cannot be copied,
    OutOfRangeError when it is too large, HostError.
    """
    with _opened(folder) as at:
        _check(folder, at, size)


def fill(folder: Path, target: int, size: int, *, stop: int | None = None) -> None:
    """Copy a directory's content into the open directory target, durably, with owner and mode of its root.

    stop: a descriptor; copying ends when it can be read. Raises: as check(), and DoesNotFitError when it did not fit
    after all.
    """
    with _opened(folder) as at:
        _check(folder, at, size)
        try:
            command = [*_COPY, "--", nofollow.by_fd(at, "."), nofollow.by_fd(target, "")]
            run(command, timeout=_TIMEOUT, pass_fds=(at, target), stop=stop)
            with _writable(target) as fd:
                libc.syncfs(fd)
        except CommandError as failure:
            if any(words in failure.stderr for words in _FULL):
                raise DoesNotFitError(
                    f"source {folder} does not fit into {from_bytes(size)}: {failure.stderr[:200]}"
                ) from None
            raise
        except OSError as failure:
            raise HostError(f"cannot write the content of source {folder}: {failure.strerror}") from failure


def fill_once(folder: Path, target: int, size: int) -> None:
    """Populate the root of a volume's file system, which is empty or left by an interrupted call. Idempotent.

    A root with any other content was used and stays as it is.
    """
    with _writable(target) as fd:
        if _is_half_filled(fd):
            tree.empty(nofollow.by_fd(fd, "."))
        elif any(entry != "lost+found" for entry in os.listdir(fd)):
            return
        os.setxattr(fd, _HALF, b"")
        libc.syncfs(fd)
        fill(folder, target, size)
        os.removexattr(fd, _HALF)
        libc.syncfs(fd)


def _is_half_filled(fd: int) -> bool:
    try:
        os.getxattr(fd, _HALF)
    except OSError as failure:
        if failure.errno != errno.ENODATA:
            raise
        return False
    return True


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    try:
        at = nofollow.open_path(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PreconditionError:
        raise PreconditionError(f"source {folder} is a symlink or is behind one: name the folder itself") from None
    except OSError as failure:
        raise PreconditionError(
            f"source {folder} cannot be read: {failure.strerror}: make that folder on the node"
        ) from None
    with closing(at):
        yield at


def _writable(target: int) -> AbstractContextManager[int]:
    """Open the directory for writing: a descriptor of its path alone is not enough."""
    return opened(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=target)


def _check(folder: Path, at: int, size: int) -> None:
    try:
        needed = _needed(folder, at)
    except OSError as failure:
        if failure.errno == errno.ESTALE:
            raise PreconditionError(f"source {folder} changed while it was read; stop its writers") from failure
        raise HostError(f"cannot read source {folder}: {failure.strerror}") from failure
    if needed > size:
        raise OutOfRangeError(
            f"source {folder} holds {from_bytes(needed)}, the volume is to have {from_bytes(size)}: ask for more"
        )


def _needed(folder: Path, at: int) -> int:
    """Bytes of a copy, in whole blocks. Raises: InvalidError, OSError."""
    total, seen = _BLOCK, set[tuple[int, int]]()
    for name, parent in tree.below(nofollow.by_fd(at, ".")):
        try:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            continue  # gone meanwhile
        if stat.S_ISBLK(found.st_mode) or stat.S_ISCHR(found.st_mode):
            raise InvalidError(f"source {folder} has the device node {name[:80]!r}: no volume gets one")
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            if (found.st_dev, found.st_ino) in seen:
                continue
            seen.add((found.st_dev, found.st_ino))
        if stat.S_ISDIR(found.st_mode) and mount.is_mount(nofollow.by_fd(parent, name)):
            raise InvalidError(
                f"something is mounted in source {folder}, at {name[:80]!r}: only the folder itself is copied"
            )
        total += _rounded(_data(name, parent, found))
    return total


def _data(name: str, parent: int, found: os.stat_result) -> int:
    """Bytes of a file without holes; of a directory its own."""
    if not stat.S_ISREG(found.st_mode):
        return found.st_size if stat.S_ISDIR(found.st_mode) else 0
    if found.st_blocks * 512 >= found.st_size:
        return found.st_size
    with opened(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent) as fd:
        return sum(end - start for start, end in data_ranges(fd))


def _rounded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
