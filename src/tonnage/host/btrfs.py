"""btrfs by ioctl (linux/btrfs.h): subvolumes with limits, quotas, commits. Blocking.

`at` is an open directory of the file system. All raise OSError: the pool converts the errno.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from tonnage.base.errors import ignore_errno
from tonnage.host import libc
from tonnage.host.descriptor import opened

_MAGIC = 0x94
_SYSFS = "/sys/fs/btrfs"
FIRST_INODE = 256
"""The inode number of every subvolume's root."""


def _ioctl(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | _MAGIC << 8 | number


_SYNC, _FS_INFO, _INO_LOOKUP = _ioctl(0, 8, 0), _ioctl(2, 31, 1024), _ioctl(3, 18, 4096)
_SUBVOL_CREATE_V2, _SNAP_DESTROY = _ioctl(1, 24, 4096), _ioctl(1, 15, 4096)
_SNAP_CREATE_V2 = _ioctl(1, 23, 4096)
_QUOTA_CTL, _QGROUP_CREATE, _QGROUP_LIMIT = _ioctl(3, 40, 16), _ioctl(1, 42, 16), _ioctl(2, 43, 48)
_QUOTA_RESCAN_WAIT = _ioctl(0, 46, 0)
_SUBVOL_SETFLAGS = _ioctl(1, 26, 8)
_INFO_SIZE, _INFO_OTRANSID = 504, 352  # struct btrfs_ioctl_get_subvol_info_args
_SUBVOL_INFO = _ioctl(2, 60, _INFO_SIZE)
_ENABLE, _ENABLE_SIMPLE = 1, 4
_FLAG_READONLY, _FLAG_INHERIT, _SET_LIMITS, _LIMIT_REFERENCED = 2, 4, 1, 1
_NAME_MAX = 255
_COMPRESSION = "btrfs.compression"


@dataclass(frozen=True)
class QgroupUsage:
    """Bytes a subvolume refers to, and its limit or None."""

    referenced: int
    limit: int | None


def fsid(at: int) -> UUID | None:
    """The id of the btrfs that holds an open directory, None when it is another file system."""
    buffer = bytearray(1024)
    with ignore_errno(errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP):
        fcntl.ioctl(at, _FS_INFO, buffer)
        return UUID(bytes=bytes(buffer[16:32]))
    return None


def _arguments(name: str, *, flags: int = 0, size: int = 0, pointer: int = 0, fd: int = 0) -> bytearray:
    """struct btrfs_ioctl_vol_args_v2."""
    encoded = os.fsencode(name)
    if len(encoded) > _NAME_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return bytearray(struct.pack("=qQQQQQQ", fd, 0, flags, size, pointer, 0, 0) + encoded.ljust(4040, b"\0"))


def create(at: int, name: str, limit: int) -> None:
    """Create a subvolume with a limit of `limit` bytes, by one ioctl, so it never exists without its limit."""
    inherit = struct.pack("=QQQQ5Q", _SET_LIMITS, 0, 0, 0, _LIMIT_REFERENCED, limit, 0, 0, 0)
    memory = ctypes.create_string_buffer(inherit, len(inherit))
    pointer = ctypes.addressof(memory)
    fcntl.ioctl(at, _SUBVOL_CREATE_V2, _arguments(name, flags=_FLAG_INHERIT, size=len(inherit), pointer=pointer))


def compress(fd: int, method: str) -> None:
    """Set how an open directory's new files are compressed, and those below it: `lzo`, `zlib`, `zstd`, "" for not.

    Files and directories that exist stay as they are. Nothing is written where it is so already, which a full quota
    would forbid. See btrfs-property(8).
    """
    present = b""
    with ignore_errno(errno.ENODATA):
        present = os.getxattr(fd, _COMPRESSION)
    if method and present != method.encode():
        os.setxattr(fd, _COMPRESSION, method.encode())
    elif present and not method:
        os.removexattr(fd, _COMPRESSION)


def snapshot(at: int, name: str, source: int, *, readonly: bool) -> None:
    """Create a snapshot of the subvolume `source` (an open directory) in the directory `at`.

    With full quotas it has the source's limit, with simple quotas none: call limit() then.
    """
    arguments = _arguments(name, flags=_FLAG_READONLY if readonly else 0, fd=source)
    libc.ioctl(at, _SNAP_CREATE_V2, arguments)  # it commits: other threads run meanwhile


def set_readonly(fd: int) -> None:
    """Make an open subvolume read-only."""
    fcntl.ioctl(fd, _SUBVOL_SETFLAGS, struct.pack("=Q", _FLAG_READONLY))


def made_in(fd: int) -> int:
    """The number of the transaction that an open subvolume was made in."""
    buffer = bytearray(_INFO_SIZE)
    fcntl.ioctl(fd, _SUBVOL_INFO, buffer)
    return int(struct.unpack_from("=Q", buffer, _INFO_OTRANSID)[0])


def delete(at: int, name: str) -> None:
    """Delete a subvolume with its content; ENOTEMPTY when it contains subvolumes."""
    fcntl.ioctl(at, _SNAP_DESTROY, bytearray(struct.pack("=q", 0) + os.fsencode(name).ljust(4088, b"\0")))


def subvolume_id(fd: int) -> int:
    """The id of the subvolume that holds an open file or directory."""
    buffer = bytearray(struct.pack("=QQ", 0, FIRST_INODE) + bytes(4080))
    fcntl.ioctl(fd, _INO_LOOKUP, buffer)
    return int(struct.unpack_from("=Q", buffer)[0])


def limit(at: int, subvolume: int, size: int) -> None:
    """Set the limit of a subvolume, effective at once."""
    fcntl.ioctl(at, _QGROUP_LIMIT, struct.pack("=Q5Q", subvolume, _LIMIT_REFERENCED, size, 0, 0, 0))


def commit(at: int) -> None:
    """Commit: write everything to the disk, and wake the cleaner that frees deleted subvolumes."""
    fcntl.ioctl(at, _SYNC, 0)


def has_quota(fs: UUID) -> bool:
    """Whether quotas are switched on."""
    return os.path.isdir(f"{_SYSFS}/{fs}/qgroups")


def has_simple_quota(fs: UUID) -> bool:
    """Whether quotas are simple: bytes are charged to the subvolume that wrote them, also if shared later."""
    with suppress(OSError), open(f"{_SYSFS}/{fs}/qgroups/mode") as file:
        return file.read().strip() == "squota"
    return False


def enable_quota(at: int) -> None:
    """Enable quotas: simple ones where the kernel has them (6.7), which cost nearly nothing, else full ones."""
    try:
        fcntl.ioctl(at, _QUOTA_CTL, bytearray(struct.pack("=QQ", _ENABLE_SIMPLE, 0)))
    except OSError as failure:
        if failure.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        fcntl.ioctl(at, _QUOTA_CTL, bytearray(struct.pack("=QQ", _ENABLE, 0)))
        fcntl.ioctl(at, _QUOTA_RESCAN_WAIT, 0)


def usage(fs: UUID, subvolume: int) -> QgroupUsage:
    """Usage of a subvolume, from the kernel's memory. ENOENT without a qgroup."""
    folder = f"{_SYSFS}/{fs}/qgroups/0_{subvolume}"
    limited = _number(f"{folder}/limit_flags") & _LIMIT_REFERENCED
    return QgroupUsage(_number(f"{folder}/referenced"), _number(f"{folder}/max_referenced") if limited else None)


def is_unused(fs: UUID, subvolume: int) -> bool:
    """Whether the qgroup of a subvolume counts nothing, or is gone."""
    folder = f"{_SYSFS}/{fs}/qgroups/0_{subvolume}"
    with ignore_errno(errno.ENOENT, errno.ENODEV):  # the latter while it goes
        return not _number(f"{folder}/referenced") and not _number(f"{folder}/exclusive")
    return True


def _number(path: str) -> int:
    with opened(path) as fd:
        return int(os.read(fd, 64), 0)


def remove_qgroup(at: int, subvolume: int) -> bool:
    """Remove the qgroup of a deleted subvolume; newer kernels do it themselves. False while it is in use."""
    with ignore_errno(errno.EBUSY):
        with ignore_errno(errno.ENOENT):
            fcntl.ioctl(at, _QGROUP_CREATE, struct.pack("=QQ", 0, subvolume))
        return True
    return False


def qgroups(fs: UUID) -> list[int]:
    """The ids of all subvolumes that have a qgroup, deleted ones included."""
    found = (entry.removeprefix("0_") for entry in os.listdir(f"{_SYSFS}/{fs}/qgroups") if entry.startswith("0_"))
    return sorted(int(number) for number in found if number.isdigit())
