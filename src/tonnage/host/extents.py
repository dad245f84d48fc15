"""Blocks of a file on its disk: where they are (FIEMAP), and sharing them with another file (ioctl_ficlonerange(2)).

Blocking. All raise OSError: the caller converts the errno.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_FICLONE, _FICLONERANGE, _FIEMAP = 0x40049409, 0x4020940D, 0xC020660B
_RANGE = struct.Struct("=qQQQ")  # file_clone_range
_HEAD = struct.Struct("=QQIIII")  # fiemap
_EXTENT = struct.Struct("=QQQ16xI12x")  # fiemap_extent
_SYNC = 1  # write out the file first
_LAST, _UNWRITTEN, _SHARED = 0x1, 0x800, 0x2000
_NO_ADDRESS = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400  # not written yet, encoded, or less than a block
_AT_ONCE = 1000


class Extent(NamedTuple):
    """Bytes of a file and where they are on the disk, None where equal addresses do not mean equal bytes."""

    start: int
    end: int
    address: int | None
    is_shared: bool = False
    """Whether another file may have these blocks, too."""


def share(fd: int, source: int) -> None:
    """Make the file fd share all blocks of source, which no write changes meanwhile."""
    fcntl.ioctl(fd, _FICLONE, source)


def share_range(fd: int, source: int, start: int, end: int) -> None:
    """As share(), for a range of whole blocks, at the same place in both; end may be past the end of source."""
    is_rest = end >= os.fstat(source).st_size
    fcntl.ioctl(fd, _FICLONERANGE, _RANGE.pack(source, start, 0 if is_rest else end - start, start))


def extents(fd: int) -> list[Extent]:
    """What a file has on the disk, in its order. Holes and blocks that were never written are left out."""
    found: list[Extent] = []
    at, is_last = 0, False
    while not is_last:
        buffer = bytearray(_HEAD.size + _AT_ONCE * _EXTENT.size)
        _HEAD.pack_into(buffer, 0, at, (1 << 64) - 1 - at, _SYNC, 0, _AT_ONCE, 0)
        fcntl.ioctl(fd, _FIEMAP, buffer)
        count = _HEAD.unpack_from(buffer)[3]
        is_last = not count
        for number in range(count):
            start, address, length, flags = _EXTENT.unpack_from(buffer, _HEAD.size + number * _EXTENT.size)
            at, is_last = start + length, bool(flags & _LAST)
            if not flags & _UNWRITTEN:
                found.append(Extent(start, at, None if flags & _NO_ADDRESS else address, bool(flags & _SHARED)))
    return found


def differences(left: Sequence[Extent], right: Sequence[Extent]) -> Iterator[tuple[int, int]]:
    """Ranges of bytes that two files on one file system may not share, from their extents; joined where they touch."""
    bounds = sorted({edge for extent in (*left, *right) for edge in extent[:2]})
    began: int | None = None
    for bound, ours, theirs in zip(bounds, _addresses(left, bounds), _addresses(right, bounds), strict=True):
        is_same = ours == theirs and ours is not None
        if not is_same and began is None:
            began = bound
        elif is_same and began is not None:
            yield began, bound
            began = None


def _addresses(found: Sequence[Extent], bounds: Sequence[int]) -> Iterator[int | None]:
    """The address of the byte at each bound, -1 in a hole."""
    rest = iter(found)
    extent = next(rest, None)
    for bound in bounds:
        while extent is not None and extent.end <= bound:
            extent = next(rest, None)
        if extent is None or bound < extent.start:
            yield -1
        else:
            yield None if extent.address is None else extent.address + bound - extent.start
