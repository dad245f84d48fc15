"""The content of a device or file: size and signatures, read in-process, so mkfs never overwrites data."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from dataclasses import dataclass
from uuid import UUID

from tonnage.errors import host_errors, ignore_errno

_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
_BLKGETSIZE64 = 0x80081272
_HEAD = 0x11000  # far enough for btrfs' superblock at 64 KiB


@dataclass(frozen=True)
class Signature:
    """A signature at the start of a device. uuid: of the file system, None where it has none."""

    kind: str
    uuid: UUID | None = None


def size(fd: int) -> int:
    """Bytes of an open block device or file. Raises OSError."""
    found = os.fstat(fd)
    if stat.S_ISBLK(found.st_mode):
        answer = fcntl.ioctl(fd, _BLKGETSIZE64, b"\0" * 8)
        return int(struct.unpack("=Q", answer)[0])
    return found.st_size


def find(path: str | os.PathLike[str], *, follow: bool = True) -> os.stat_result | None:
    """os.stat() of path, None when nothing is there. Raises HostError for any other error."""
    with host_errors(f"cannot look at {path}"), ignore_errno(*_NOTHING):
        return os.stat(path, follow_symlinks=follow)
    return None


def is_pristine(fd: int) -> bool:
    """Whether no byte was ever written to an open sparse or preallocated file. Raises OSError."""
    return not has_data(fd, 0)


def has_data(fd: int, start: int) -> bool:
    """Whether anything was written to an open sparse or preallocated file from an offset on. Raises OSError."""
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


def probe(fd: int) -> Signature | None:
    """The file system, volume manager or partition table on an open device or file, None for none known.

    Raises OSError.
    """
    head = os.pread(fd, _HEAD, 0)
    if head[:4] == b"XFSB":
        return Signature("xfs", UUID(bytes=head[32:48]))
    if head[1024 + 56 : 1024 + 58] == b"\x53\xef":
        return Signature("ext4", UUID(bytes=head[1024 + 104 : 1024 + 120]))
    if head[0x10040:0x10048] == b"_BHRfS_M":
        return Signature("btrfs", UUID(bytes=head[0x10020:0x10030]))
    for offset, magic, kind in _MAGICS:
        if head.startswith(magic, offset):
            return Signature(kind)
    return None
