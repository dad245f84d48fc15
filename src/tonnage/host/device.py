"""The content of a device or file: size, signatures and superblocks, read in-process, so mkfs never overwrites data.

It mounts and writes nothing. `is_unused` decides whether a file system may be made again, so if in doubt it was used.
Layouts: fs/ext4/ext4.h, fs/xfs/libxfs/xfs_format.h, include/uapi/linux/btrfs_tree.h. Blocking.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from tonnage.base.errors import host_errors, ignore_errno
from tonnage.host.descriptor import opened

_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
_BLKGETSIZE64 = 0x80081272
_HEAD = 0x11000  # far enough for btrfs' superblock at 64 KiB
_EXT4, _BTRFS = 1024, 0x10000  # bytes before the superblock
_EXT4_JOURNAL, _EXT4_RECOVER, _EXT4_64BIT = 0x4, 0x4, 0x80
_XFS_MADE = 3  # inodes of a new xfs: its root and two for the realtime section
_XFS_FIRST = 8192  # bytes of the log that mkfs.xfs may write, zeros behind them
_XFS_LOOK = 65536
_BTRFS_TREES = 12  # trees of a new btrfs, a node each


@dataclass(frozen=True)
class Signature:
    """A signature at the start of a device. uuid: of the file system, None where it has none."""

    kind: str
    uuid: UUID | None = None


def size(fd: int) -> int:
    """Bytes of an open block device or file. Raises: OSError."""
    found = os.fstat(fd)
    if stat.S_ISBLK(found.st_mode):
        answer = fcntl.ioctl(fd, _BLKGETSIZE64, b"\0" * 8)
        return int(struct.unpack("=Q", answer)[0])
    return found.st_size


def find(path: str | os.PathLike[str], *, follow: bool = True) -> os.stat_result | None:
    """os.stat() of path, None when nothing is there. Raises: HostError for any other error."""
    with host_errors(f"cannot look at {path}", advice="look at the kernel's log"), ignore_errno(*_NOTHING):
        return os.stat(path, follow_symlinks=follow)
    return None


def wait_for(path: Path) -> None:
    """Read from a block device and flush it, by the device itself: returns when it answers, also with an error."""
    with suppress(OSError), opened(path, os.O_RDONLY | os.O_DIRECT) as fd, mmap.mmap(-1, mmap.PAGESIZE) as page:
        os.preadv(fd, [page], 0)
        os.fsync(fd)


def is_pristine(fd: int) -> bool:
    """Whether no byte was ever written to an open sparse or preallocated file. Raises: OSError."""
    return not has_data(fd, 0)


def has_data(fd: int, start: int) -> bool:
    """Whether anything was written to an open sparse or preallocated file from an offset on. Raises: OSError."""
    with ignore_errno(errno.ENXIO):
        os.lseek(fd, start, os.SEEK_DATA)
        return True
    return False


_MAGICS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"LUKS\xba\xbe", "LUKS"),
    (4096 - 10, b"SWAPSPACE2", "swap"),
    (512 + 24, b"LVM2 001", "LVM"),
    (512, b"EFI PART", "GPT"),
    (4096, b"EFI PART", "GPT"),
    (4096, b"\xfc\x4e\x2b\xa9", "MD RAID"),
    (0x8001, b"CD001", "ISO 9660"),
    (0, b"hsqs", "squashfs"),
    (1024, b"\xe2\xe1\xf5\xe0", "erofs"),
    (1024, b"\x10\x20\xf5\xf2", "f2fs"),
    (54, b"FAT1", "FAT"),
    (82, b"FAT32", "FAT"),
    (3, b"NTFS    ", "NTFS"),
    (3, b"EXFAT   ", "exFAT"),
    (24, b"bcache", "bcache"),
    (0, b"\x1f\x8b\x08", "gzip data"),
    (510, b"\x55\xaa", "partition table"),
)


_FILE_SYSTEMS = ((0, b"XFSB", "xfs"), (_EXT4 + 56, b"\x53\xef", "ext4"), (_BTRFS + 0x40, b"_BHRfS_M", "btrfs"))
_UUID_AT = {"xfs": 32, "ext4": _EXT4 + 104, "btrfs": _BTRFS + 0x20}


def _fstype(head: bytes) -> str:
    """The file system that a device begins with, "" for none of the three."""
    return next((fstype for offset, magic, fstype in _FILE_SYSTEMS if head.startswith(magic, offset)), "")


def probe(fd: int) -> Signature | None:
    """The file system, volume manager or partition table on an open device or file, None for none known.

    Raises: OSError.
    """
    head = os.pread(fd, _HEAD, 0)
    if fstype := _fstype(head):
        at = _UUID_AT[fstype]
        return Signature(fstype, UUID(bytes=head[at : at + 16]))
    for offset, magic, kind in _MAGICS:
        if head.startswith(magic, offset):
            return Signature(kind)
    return None


def filesystem_length(fd: int) -> int:
    """Bytes of the file system on its device, 0 where it is not ext4, xfs or btrfs. Raises: OSError."""
    head = os.pread(fd, _HEAD, 0)
    fstype = _fstype(head)
    if fstype == "xfs":
        size, blocks = struct.unpack_from(">IQ", head, 4)
        return int(size * blocks)
    if fstype == "ext4":
        low, shift, high = (struct.unpack_from("<I", head, _EXT4 + at)[0] for at in (0x4, 0x18, 0x150))
        is_long = _ext4_incompat(head) & _EXT4_64BIT
        blocks = int(low) + (int(high) << 32 if is_long else 0)
        return blocks << (10 + min(int(shift), 6))
    if fstype == "btrfs":
        return int(struct.unpack_from("<Q", head, _BTRFS + 0x70)[0])
    return 0


def survives_power_cuts(fd: int) -> bool:
    """Whether a device's file system is whole after a power cut: it has a log, or never overwrites. Raises: OSError."""
    head = os.pread(fd, _HEAD, 0)
    fstype = _fstype(head)
    return bool(fstype) and (fstype != "ext4" or bool(struct.unpack_from("<I", head, _EXT4 + 0x5C)[0] & _EXT4_JOURNAL))


def is_unused(fd: int) -> bool:
    """Whether a file system was never mounted writable and holds no file except `lost+found`. Raises: OSError."""
    head = os.pread(fd, _HEAD, 0)
    fstype = _fstype(head)
    if fstype == "xfs":
        return _is_unused_xfs(fd, head)
    if fstype == "ext4":
        return _is_unused_ext4(head)
    return fstype == "btrfs" and _is_unused_btrfs(head)


def _ext4_incompat(head: bytes) -> int:
    return int(struct.unpack_from("<I", head, _EXT4 + 0x60)[0])


def _is_unused_ext4(head: bytes) -> bool:
    inodes, free, mounted, first = (struct.unpack_from("<I", head, _EXT4 + at)[0] for at in (0x0, 0x10, 0x2C, 0x54))
    count = struct.unpack_from("<H", head, _EXT4 + 0x34)[0]
    orphans = struct.unpack_from("<I", head, _EXT4 + 0x280)[0]  # a file of the file system's own
    made = max(first, orphans)  # lost+found is the first that is not reserved
    return not mounted and not count and not _ext4_incompat(head) & _EXT4_RECOVER and inodes - free <= made


def _is_unused_xfs(fd: int, head: bytes) -> bool:
    if head[126]:  # mkfs has not come to its end: the kernel does not mount it
        return True
    size, (start,) = struct.unpack_from(">I", head, 4)[0], struct.unpack_from(">Q", head, 48)
    (blocks,), shift = struct.unpack_from(">I", head, 84), head[124]
    inodes, free = struct.unpack_from(">QQ", head, 128)
    (sequence,) = struct.unpack_from(">Q", head, 240)
    if sequence or inodes - free != _XFS_MADE or not start:
        return False
    # Before anything else is written to a mounted xfs, its log is cleared behind what mkfs has written there.
    log = ((start >> shift) * blocks + (start & ((1 << shift) - 1))) * size
    return not any(os.pread(fd, _XFS_LOOK, log + _XFS_FIRST))


def _is_unused_btrfs(head: bytes) -> bool:
    log_root, used = (struct.unpack_from("<Q", head, _BTRFS + at)[0] for at in (0x60, 0x78))
    (node,) = struct.unpack_from("<I", head, _BTRFS + 0x94)
    (committed,) = struct.unpack_from("<Q", head, _BTRFS + 0x233)  # uuid_tree_generation: the kernel's last commit
    return not log_root and not committed and used <= _BTRFS_TREES * node
