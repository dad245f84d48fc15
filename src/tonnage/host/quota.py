"""Project quotas: ioctl for a directory's project, quotactl_fd(2) for limits and usage. Blocking.

The same calls serve xfs and ext4. Needs Linux 5.14. All raise OSError.
"""

from __future__ import annotations

import ctypes
import fcntl
import struct
from contextlib import suppress
from dataclasses import dataclass

from tonnage.host import libc

_FSGETXATTR, _FSSETXATTR = 0x801C581F, 0x401C5820  # linux/fs.h
_FSXATTR = struct.Struct("=5I8s")
_PROJINHERIT = 0x200
_QUOTACTL_FD = 443
_PROJECT = 2  # PRJQUOTA
_GETQUOTA, _SETQUOTA = 0x800007, 0x800008  # linux/quota.h
_GETSTATE = (ord("X") << 8) + 5  # Q_XGETQSTAT
_DQBLK = struct.Struct("=8QI4x")  # struct if_dqblk
_LIMITS = 1  # QIF_BLIMITS
_UNIT = 1024
_COUNTED, _ENFORCED = 0x10, 0x20  # FS_QUOTA_PDQ_ACCT, FS_QUOTA_PDQ_ENFD


@dataclass(frozen=True)
class Quota:
    """A project's limit and usage in bytes, its inodes. limit 0 is none."""

    limit: int
    used: int
    inodes: int


def set_project(fd: int, project: int) -> None:
    """Put an open empty directory, and all new files in it, into a project."""
    flags, extent, extents, _, cow, pad = _FSXATTR.unpack(fcntl.ioctl(fd, _FSGETXATTR, bytes(_FSXATTR.size)))
    fcntl.ioctl(fd, _FSSETXATTR, _FSXATTR.pack(flags | _PROJINHERIT, extent, extents, project, cow, pad))


def project(fd: int) -> int:
    """The project of an open file or directory, 0 for none."""
    return int(_FSXATTR.unpack(fcntl.ioctl(fd, _FSGETXATTR, bytes(_FSXATTR.size)))[3])


def _call(fd: int, command: int, identity: int, data: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(data, 256)
    libc.syscall(_QUOTACTL_FD, fd, (command << 8) | _PROJECT, identity, buffer)
    return buffer.raw


def set_limit(fd: int, identity: int, size: int) -> None:
    """Set a project's limit in bytes, rounded up to whole KiB, on the file system of fd; 0 removes it."""
    _call(fd, _SETQUOTA, identity, _DQBLK.pack(-(-size // _UNIT), 0, 0, 0, 0, 0, 0, 0, _LIMITS))


def get(fd: int, identity: int) -> Quota:
    """Limit and usage of a project."""
    hard, _, used, _, _, inodes, *_ = _DQBLK.unpack_from(_call(fd, _GETQUOTA, identity, b""))
    return Quota(hard * _UNIT, used, inodes)


def is_enforced(fd: int) -> bool:
    """Whether the file system counts and enforces project quotas."""
    with suppress(OSError):
        flags = int(struct.unpack_from("=H", _call(fd, _GETSTATE, 0, b"\x01"), 2)[0])
        return flags & (_COUNTED | _ENFORCED) == _COUNTED | _ENFORCED
    return False
