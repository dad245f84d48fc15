"""Templates of new ext4 file systems: mkfs runs once in memory, later file systems are copies.

mkfs syncs a disk several times. One write of some dozen blocks (the rest of a new file is zero anyway) and one sync are
faster. The template of a length that is used twice is cached, and each copy gets a UUID of its own in each superblock.
That works because the feature metadata_csum_seed makes all other checksums independent of the UUID. A template is
cached only if its superblocks are exactly as expected, so with an unknown mkfs it just runs each time.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from uuid import UUID

from tonnage.storage.pools.fs.holes import data_ranges, pieces

BLOCK = 4096
_GROUP = 32768 * BLOCK  # bytes between the places where superblocks are
_AT_ONCE = 16 * BLOCK  # bytes that are read at once
_PARTS = os.sysconf("SC_IOV_MAX")
_ZERO = bytes(BLOCK)
_PRIMARY = 1024
_LEAST = 64  # bytes that are stored of a block
_SIZE, _CHECKSUM, _UUID, _MAGIC, _NUMBER = 1024, 0x3FC, 0x68, 0x38, 0x5A
_INCOMPAT, _CSUM_SEED = 0x60, 0x2000


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_TABLE = _crc_table()


def crc32c(data: bytes, *, begin: int = 0xFFFFFFFF) -> int:
    """The Castagnoli CRC as ext4 uses it: initialized with all ones and not inverted at the end."""
    crc = begin
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc


@dataclass(frozen=True)
class _Run:
    """Blocks that are not all zero.

    superblock: offset of a superblock in it, -1 for none. lengths: bytes of each block without trailing zeros, which
    most of a block are.
    """

    offset: int
    superblock: int
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Template:
    """What mkfs wrote for a file system with that UUID. packed: the bytes of all runs, compressed."""

    uuid: bytes
    runs: tuple[_Run, ...]
    packed: bytes

    def apply(self, fd: int, uuid: UUID) -> None:
        """Make the file system on a pristine file of the template's length. Raises: OSError."""
        # The CRC is linear: changing the UUID changes the checksum of each superblock by the same bits.
        delta = bytes(old ^ new for old, new in zip(self.uuid, uuid.bytes, strict=True))
        change = crc32c(delta + bytes(_CHECKSUM - _UUID - 16), begin=0)
        stored = BytesIO(zlib.decompress(self.packed))
        for run in self.runs:
            parts = [part for size in run.lengths for part in (stored.read(size), _ZERO[size:])]
            if (at := run.superblock) >= 0:  # before it is written: a file never shows the UUID of another
                block = bytearray(parts[0].ljust(at + _SIZE, b"\0"))
                block[at + _UUID : at + _UUID + 16] = uuid.bytes
                checksum = struct.unpack_from("<I", block, at + _CHECKSUM)[0] ^ change
                struct.pack_into("<I", block, at + _CHECKSUM, checksum)
                parts[:2] = [bytes(block), _ZERO[len(block) :]]
            _write(fd, parts, run.offset)


def copy(source: int, target: int) -> None:
    """Copy the content of a file to a pristine one of the same length. Raises: OSError."""
    for start, end in data_ranges(source):
        os.lseek(target, start, os.SEEK_SET)
        while start < end:
            start += os.sendfile(target, source, start, end - start)


def read(fd: int) -> Template | None:
    """The template of a file on which mkfs just ran; None when it is not as expected. Raises: OSError."""
    uuid, before, stored, runs = b"", b"", [], []
    for offset, blocks in _runs(fd):
        data = blocks[0]
        at = _PRIMARY if offset == 0 else 0 if offset % _GROUP == 0 else -1
        if at >= 0 and data[at + _MAGIC : at + _MAGIC + 2] != b"\x53\xef":
            at = -1  # a group without a copy of the superblock begins with something else
        if at >= 0:
            block = data[at : at + _SIZE].ljust(_SIZE, b"\0")
            uuid = uuid or block[_UUID : _UUID + 16]
            if not _is_next(block, before) and not _is_expected(block, uuid):
                return None
            before = block
        runs.append(_Run(offset, at, tuple(map(len, blocks))))
        stored += blocks
    if not runs or runs[0].superblock != _PRIMARY:
        return None
    return Template(uuid, tuple(runs), zlib.compress(b"".join(stored), 1))


def _is_expected(block: bytes, uuid: bytes) -> bool:
    """Whether a superblock has that UUID, metadata_csum_seed and the checksum that we compute."""
    features, checksum = struct.unpack_from("<I", block, _INCOMPAT)[0], struct.unpack_from("<I", block, _CHECKSUM)[0]
    same = block[_UUID : _UUID + 16] == uuid
    return bool(same and features & _CSUM_SEED and checksum == crc32c(block[:_CHECKSUM]))


def _is_next(block: bytes, before: bytes) -> bool:
    """Whether a superblock equals the previous one except for its group's number and the checksum.

    Faster than _is_expected(), which then has the same result as for the previous one.
    """
    if block[:_NUMBER] != before[:_NUMBER] or block[_NUMBER + 2 : _CHECKSUM] != before[_NUMBER + 2 : _CHECKSUM]:
        return False
    number, other = (struct.unpack_from("<H", superblock, _NUMBER)[0] for superblock in (block, before))
    checksum, known = (struct.unpack_from("<I", superblock, _CHECKSUM)[0] for superblock in (block, before))
    return bool(checksum == known ^ _change_of_number(number ^ other))


@cache
def _change_of_number(bits: int) -> int:
    """The change of the checksum for a change of the group's number by these bits."""
    return crc32c(struct.pack("<H", bits) + bytes(_CHECKSUM - _NUMBER - 2), begin=0)


def _runs(fd: int) -> list[tuple[int, list[bytes]]]:
    """All runs of nonzero blocks; a run that reaches the start of a block group is split there."""
    runs: list[tuple[int, list[bytes]]] = []
    for start, found in pieces(fd, _AT_ONCE):
        for offset in range(start, start + len(found), BLOCK):
            data = _without_end(found[offset - start : offset - start + BLOCK])
            if not data:
                continue
            if runs and runs[-1][0] + len(runs[-1][1]) * BLOCK == offset and offset % _GROUP:
                runs[-1][1].append(data)
            else:
                runs.append((offset, [data]))
    return runs


def _without_end(data: bytes) -> bytes:
    """A block without the halves of it that are zero, b"" for a zero block. Faster than rstrip() on each byte."""
    length = len(data)
    if data == _ZERO[:length]:
        return b""
    while length > _LEAST and data[length // 2 : length] == _ZERO[: length - length // 2]:
        length //= 2
    return data[:length]


def _write(fd: int, parts: Sequence[bytes], offset: int) -> None:
    """Write parts in sequence without joining them: allocating fresh memory takes longer than the write."""
    for start in range(0, len(parts), _PARTS):
        some = parts[start : start + _PARTS]
        done, size = os.pwritev(fd, some, offset), sum(map(len, some))
        while done < size:
            done += os.pwrite(fd, b"".join(some)[done:], offset + done)
        offset += size


class Templates:
    """Recently used templates, by image length and mkfs options. Thread-safe.

    Reading a template takes a third of the time of mkfs. It is read when the same file system is made for the
    `worth`-th time.
    """

    def __init__(self, most: int = 16, *, worth: int = 2) -> None:
        self._most = most
        self._worth = worth
        self._lock = threading.Lock()
        self._templates: OrderedDict[tuple[int, str], Template | int] = OrderedDict()
        """Number of mkfs runs for file systems without a template."""

    def find(self, length: int, options: str) -> Template | None:
        """The template for images of that length, made with a class's mkfsOptions; None when there is none."""
        with self._lock:
            found = self._templates.get((length, options))
            if isinstance(found, Template):
                self._put((length, options), found)
                return found
            return None

    def learn(self, length: int, options: str, fd: int) -> None:
        """Cache what mkfs has just written to fd, if it is as expected and used often. Raises: OSError."""
        key = (length, options)
        with self._lock:
            seen = self._templates.get(key, 0)
            if isinstance(seen, Template):
                return
            self._put(key, seen + 1)
        if seen + 1 == self._worth and (template := read(fd)) is not None:
            with self._lock:
                self._put(key, template)

    def _put(self, key: tuple[int, str], value: Template | int) -> None:
        self._templates[key] = value
        self._templates.move_to_end(key)
        while len(self._templates) > self._most:
            self._templates.popitem(last=False)
