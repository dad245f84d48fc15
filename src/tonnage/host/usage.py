"""How much of its disk a tree of files takes, whatever a pod has put there. Used to hold pods to their limits.

No symlink is followed, no other file system is entered, and memory and open files do not grow with the tree. Blocking.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import closing, suppress

from tonnage.host import mount, tree

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512  # the unit of st_blocks
_HELD = 64  # levels whose folders stay open, so that a pod hides nothing by moving them meanwhile
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)
_CHUNK = 1024  # entries between two questions whether to go on


def disk_usage(root: str, *, limit: int, cancelled: Callable[[], bool] = lambda: False) -> int:
    """Bytes that a folder with all below it takes, as du counts them; 0 for one that is not there.

    limit: bytes; once the sum is above it, the rest is not looked at. cancelled: asked now and then; True ends it.
    Raises OSError.
    """
    try:
        top = os.open(root, _FOLDER)
    except FileNotFoundError:
        return 0
    try:
        found = os.fstat(top)
        used = _size(found)
        with closing(_below(top, found.st_dev, 0)) as sizes:
            for count, size in enumerate(sizes):
                used += size
                if used > limit or (count % _CHUNK == 0 and cancelled()):
                    break
        return used
    finally:
        os.close(top)


def _size(found: os.stat_result) -> int:
    """A file of several names counts at each with its share: no memory is needed to count it once."""
    links = 1 if stat.S_ISDIR(found.st_mode) else max(found.st_nlink, 1)
    return -(-found.st_blocks * _BLOCK // links)


def _below(at: int, device: int, depth: int) -> Generator[int, None, None]:
    """The sizes of all entries below an open folder, which lies on that device."""
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
            yield _size(found)
            try:
                yield from _below(inner, found.st_dev, depth + 1) if depth < _HELD else _deep(inner)
            finally:
                os.close(inner)


def _deep(at: int) -> Generator[int, None, None]:
    """The sizes of what lies too deep to hold each folder open; a tree that is moved meanwhile is counted in part."""
    try:
        for name, folder in tree.below(f"/proc/self/fd/{at}/."):
            with suppress(FileNotFoundError, NotADirectoryError):
                yield _size(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except OSError as failure:
        if failure.errno not in _GONE:
            raise
