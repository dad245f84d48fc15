"""Disk usage of an untrusted directory tree, to enforce limits of pods. Blocking.

It follows no symlink and enters no other file system. Memory and open files do not grow with the tree.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import closing, suppress

from tonnage.base.errors import ignore_errno
from tonnage.host import descriptor, mount, tree

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512  # the unit of st_blocks
_HELD = 64  # levels whose folders stay open, so that a pod hides nothing by moving them meanwhile
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)
_CHUNK = 1024  # entries between two questions whether to go on


def disk_usage(root: str, *, limit: int, cancelled: Callable[[], bool] = lambda: False) -> int:
    """Bytes of a directory tree, as du counts them; 0 if it does not exist. Raises: OSError.

    limit: bytes; counting stops above it. cancelled: polled now and then; True stops counting.
    """
    try:
        top = os.open(root, _FOLDER)
    except FileNotFoundError:
        return 0
    with descriptor.closing(top):
        found = os.fstat(top)
        used = _size(found)
        with closing(_below(top, found.st_dev, 0)) as sizes:
            for count, size in enumerate(sizes):
                used += size
                if used > limit or (count % _CHUNK == 0 and cancelled()):
                    break
        return used


def _size(found: os.stat_result) -> int:
    """Bytes of a file. One with several names counts its share at each: no memory is needed to count it once."""
    links = 1 if stat.S_ISDIR(found.st_mode) else max(found.st_nlink, 1)
    return -(-found.st_blocks * _BLOCK // links)


def _below(at: int, device: int, depth: int) -> Generator[int, None, None]:
    """The sizes of all entries below an open directory on that device."""
    with os.scandir(at) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode):
                    yield _size(found)
                    continue
                if found.st_dev != device and mount.is_mount(f"/proc/self/fd/{at}/{entry.name}"):
                    continue  # else a subvolume of btrfs, which a pod may have made
                inner = os.open(entry.name, _FOLDER, dir_fd=at)
            except OSError as failure:
                if failure.errno in _GONE:
                    continue
                raise
            with descriptor.closing(inner):
                yield _size(found)
                yield from _below(inner, found.st_dev, depth + 1) if depth < _HELD else _deep(inner)


def _deep(at: int) -> Generator[int, None, None]:
    """The sizes of entries too deep to hold each directory open; a tree moved meanwhile counts in part."""
    with ignore_errno(*_GONE):
        for name, folder in tree.below(f"/proc/self/fd/{at}/."):
            with suppress(FileNotFoundError, NotADirectoryError):
                yield _size(os.stat(name, dir_fd=folder, follow_symlinks=False))
