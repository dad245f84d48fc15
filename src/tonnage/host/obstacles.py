"""Flags that keep root from removing files of others: immutable, append-only, read-only subvolume. Blocking.

A pod that is root in its container may make a subvolume of its volume read-only (btrfs requires only its owner). One
with CAP_LINUX_IMMUTABLE may make files immutable or append-only (chattr +i, +a). Neither may prevent the deletion of a
volume or the opening of a pool.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from contextlib import suppress

from tonnage.base.errors import ignore_errno
from tonnage.host import btrfs
from tonnage.host.descriptor import opened

_GETFLAGS, _SETFLAGS = 0x80086601, 0x40086602  # linux/fs.h
_IMMUTABLE, _APPEND = 0x10, 0x20
_SUBVOL_GETFLAGS, _SUBVOL_SETFLAGS = 0x80089419, 0x4008941A  # linux/btrfs.h
_READONLY = 2
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def clear(fd: int) -> None:
    """Clear the flags of an open file or directory, and of the subvolume that contains it.

    Does nothing where there are no such flags. Raises: OSError.
    """
    if _is_btrfs(fd):
        _make_writable(fd)
    with ignore_errno(errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL):
        (flags,) = struct.unpack("=I", fcntl.ioctl(fd, _GETFLAGS, bytes(8))[:4])
        if flags & (_IMMUTABLE | _APPEND):
            fcntl.ioctl(fd, _SETFLAGS, struct.pack("=II", flags & ~(_IMMUTABLE | _APPEND), 0))


def clear_entry(name: str, at: int) -> None:
    """Clear the flags of an entry of an open directory; only files and directories have flags.

    Raises: OSError.
    """
    with suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return
        with opened(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at) as fd:
            clear(fd)


def _is_btrfs(fd: int) -> bool:
    return stat.S_ISDIR(os.fstat(fd).st_mode) and btrfs.fsid(fd) is not None


def _make_writable(fd: int) -> None:
    """Make the subvolume of an open directory writable."""
    top = os.dup(fd)
    try:
        while os.fstat(top).st_ino != btrfs.FIRST_INODE:
            above = os.open("..", _FOLDER, dir_fd=top)
            os.close(top)
            top = above
        (flags,) = struct.unpack("=Q", fcntl.ioctl(top, _SUBVOL_GETFLAGS, bytes(8)))
        if flags & _READONLY:
            fcntl.ioctl(top, _SUBVOL_SETFLAGS, struct.pack("=Q", flags & ~_READONLY))
    finally:
        os.close(top)
