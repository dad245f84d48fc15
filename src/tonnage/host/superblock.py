"""Superblocks of ext4, xfs and btrfs on a device or image: length, and whether it was ever used. Blocking.

It mounts and writes nothing. All raise OSError. `is_unused` decides whether a file system may be made again, so if in
doubt it was used. Layouts: fs/ext4/ext4.h, fs/xfs/libxfs/xfs_format.h, include/uapi/linux/btrfs_tree.h.
"""

from __future__ import annotations

import os
import struct

_EXT4, _BTRFS = 1024, 0x10000  # bytes before the superblock
_EXT4_RECOVER, _EXT4_64BIT = 0x4, 0x80
_XFS_MADE = 3  # inodes of a new xfs: its root and two for the realtime section
_XFS_FIRST = 8192  # bytes of the log that mkfs.xfs may write, zeros behind them
_XFS_LOOK = 65536
_BTRFS_TREES = 12  # trees of a new btrfs, a node each


def length(fd: int) -> int:
    """Bytes of the file system on its device, 0 where it is none of the three."""
    head = os.pread(fd, _BTRFS + 4096, 0)
    if head[:4] == b"XFSB":
        size, blocks = struct.unpack_from(">IQ", head, 4)
        return int(size * blocks)
    if head[_EXT4 + 56 : _EXT4 + 58] == b"\x53\xef":
        low, shift, high = (struct.unpack_from("<I", head, _EXT4 + at)[0] for at in (0x4, 0x18, 0x150))
        is_long = _ext4_incompat(head) & _EXT4_64BIT
        blocks = int(low) + (int(high) << 32 if is_long else 0)
        return blocks << (10 + min(int(shift), 6))
    if head[_BTRFS + 0x40 : _BTRFS + 0x48] == b"_BHRfS_M":
        return int(struct.unpack_from("<Q", head, _BTRFS + 0x70)[0])
    return 0


def is_unused(fd: int) -> bool:
    """Whether a file system was never mounted writable and holds no file except `lost+found`."""
    head = os.pread(fd, _BTRFS + 4096, 0)
    if head[:4] == b"XFSB":
        return _is_unused_xfs(fd, head)
    if head[_EXT4 + 56 : _EXT4 + 58] == b"\x53\xef":
        return _is_unused_ext4(head)
    if head[_BTRFS + 0x40 : _BTRFS + 0x48] == b"_BHRfS_M":
        return _is_unused_btrfs(head)
    return False


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
