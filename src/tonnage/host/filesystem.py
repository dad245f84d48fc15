"""A mounted file system as a whole, by ioctl: freeze, thaw, grow, trim. Blocking.

`fd` is an open directory of the file system. All raise OSError: the pool converts the errno.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
from pathlib import Path

from tonnage.base.errors import ignore_errno

_FREEZE, _THAW = 0xC0045877, 0xC0045878  # linux/fs.h: FIFREEZE, FITHAW
_EXT4_RESIZE = 0x40086610  # fs/ext4/ext4.h: EXT4_IOC_RESIZE_FS
_XFS_GEOMETRY, _XFS_GROW = 0x80705864, 0x4010586E  # xfs_fs.h: FSGEOMETRY_V1, FSGROWFSDATA
_BTRFS_RESIZE = 0x50009403  # linux/btrfs.h: BTRFS_IOC_RESIZE
_TRIM = 0xC0185879  # linux/fs.h: FITRIM
_CAP_SYS_RESOURCE = 24
_EXPEDITED = Path("/sys/kernel/rcu_expedited")


def freeze(fd: int) -> None:
    """Freeze: write everything to the device and block all writers until thaw(). EBUSY when frozen already."""
    fcntl.ioctl(fd, _FREEZE, 0)


def thaw(fd: int) -> bool:
    """Thaw. False when it was not frozen."""
    with ignore_errno(errno.EINVAL):
        fcntl.ioctl(fd, _THAW, 0)
        return True
    return False


def is_expedited() -> bool:
    """Whether the kernel shortens its waits for readers (RCU grace periods), of which a freeze has three."""
    return _EXPEDITED.read_text().strip() != "0"


def expedite(*, on: bool) -> None:
    """Shorten those waits, of the whole machine, from 10 ms and more to less than one; or no longer."""
    _EXPEDITED.write_text("1" if on else "0")


def freezes_nest() -> bool:
    """Whether a device under a frozen ext4 or xfs can be suspended, which freezes it once more: since Linux 6.8."""
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (6, 8)


def grow(fd: int, fstype: str, length: int) -> None:
    """Grow an ext4, xfs or btrfs to `length` bytes, a multiple of 4096, of its device. Idempotent.

    EPERM for ext4 without CAP_SYS_RESOURCE, EROFS through a read-only mount.
    """
    if fstype == "ext4":
        fcntl.ioctl(fd, _EXT4_RESIZE, struct.pack("=Q", length // 4096))
    elif fstype == "xfs":
        _grow_xfs(fd, length)
    else:
        fcntl.ioctl(fd, _BTRFS_RESIZE, bytearray(struct.pack("=q", 0) + b"max".ljust(4088, b"\0")))


def _grow_xfs(fd: int, length: int) -> None:
    geometry = bytearray(112)
    fcntl.ioctl(fd, _XFS_GEOMETRY, geometry)
    block, most_inodes = struct.unpack_from("=I", geometry)[0], struct.unpack_from("=I", geometry, 28)[0]
    now, wanted = struct.unpack_from("=Q", geometry, 32)[0], length // block
    if wanted > now:
        fcntl.ioctl(fd, _XFS_GROW, bytearray(struct.pack("=QI4x", wanted, most_inodes)))


def trim(fd: int) -> None:
    """Discard the free blocks of a file system. EOPNOTSUPP where the file system or its disk cannot."""
    fcntl.ioctl(fd, _TRIM, bytearray(struct.pack("=QQQ", 0, 2**64 - 1, 0)))


def may_grow_ext4() -> bool:
    """Whether this process may grow a mounted ext4: the kernel requires CAP_SYS_RESOURCE."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) & 1 << _CAP_SYS_RESOURCE)
    return False
