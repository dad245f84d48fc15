"""Erasing the content of a deleted volume in steps: the job, and the bytes of one step. Blocking.

A pool that takes the parameter `erase` passes deleted volumes to an Eraser, which works in the background:

- delete() turns the volume into an EraseJob, durably. It moves the content where no volume's name leads to it, and
  records the job. The name is free then, the bytes are not.
- The Eraser opens what `EraseRecords.path(job)` returns (a file or a block device). It overwrites or discards it with a
  Wiper in steps of CHUNK bytes, saves the position now and then, and calls `finish(job)` at the end.
- After a restart it continues from that position. Repeated work does no harm.

`discard`: the blocks are discarded (BLKDISCARD, or a hole punched into the file). What the disk returns for them then
depends on the disk. A disk that cannot discard is overwritten with zeros. `zero`: zeros are written over everything
that was ever written. Holes of sparse files are skipped, so nothing is allocated. `shred`: random bytes SHRED_PASSES
times, then zeros. Overwriting does not reach blocks that a disk or a copy-on-write file system has relocated.
`check_overwrites` rejects file systems that always relocate.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import stat
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from tonnage.base.errors import UnsupportedError, host_errors
from tonnage.host import device, libc
from tonnage.host.descriptor import opened
from tonnage.storage.pools.base.contract import Erasure
from tonnage.storage.pools.base.record import FORMAT

log = logging.getLogger(__name__)
CHUNK = 4 * 1024**2
SHRED_PASSES = 3
"""How often shred writes random bytes before the zeros, as shred(1) does."""
OVERWRITES = frozenset({"zero", "shred"})
_METHODS = OVERWRITES | {"discard", "quick"}
_DISCARD_CHUNK = 1024**3
_ALIGN = 4096
_BLKDISCARD = 0x1277
_NO_DISCARD = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS)


class EraseJob(msgspec.Struct, frozen=True, rename={"reserved": "room"}):
    """Content to erase.

    key: unique, and valid as a file name. name: the volume's former name. length: bytes of the content. reserved: bytes
    that count as used until the end. done: bytes of all passes that are finished.
    """

    key: str
    name: str
    method: str
    length: int
    reserved: int = 0
    done: int = 0
    version: int = FORMAT

    @property
    def total(self) -> int:
        """Bytes of all passes."""
        return self.length * (SHRED_PASSES + 1 if self.method == "shred" else 1)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to erase; the content is still to be removed."""
        return self.done >= self.total

    def erasure(self, problem: str = "") -> Erasure:
        """The Erasure for users of the pool."""
        return Erasure(self.name, self.method, self.total, self.done, reserved=self.reserved, problem=problem)


def check(job: EraseJob) -> None:
    """Check the values of a job. Raises: ValueError."""
    numbers = (job.length, job.reserved, job.done)
    if job.method not in _METHODS or not all(0 <= number < 2**63 for number in numbers):
        raise ValueError(f"it says {job.method[:20]!r} of {job.length} bytes, {job.done} done, {job.reserved} counted")


class EraseRecords(Protocol):
    """The erase jobs of a kind of pool. Called in threads, except jobs().

    All raise HostError, ExhaustedError, UnavailableError.
    """

    def jobs(self) -> Sequence[EraseJob]:
        """All jobs in order. Fast: from memory."""

    def path(self, job: EraseJob) -> Path | None:
        """The file or block device to erase, not a symlink to it, ready to be opened.

        None only when it is known to be gone. Raises when it cannot be seen at the moment.
        """

    def save(self, job: EraseJob) -> None:
        """Save a job's position, durably."""

    def finish(self, job: EraseJob) -> None:
        """Remove content, then job; its bytes are free. A content that is gone is success. Idempotent."""


class Wiper:
    """Erases one file or block device, one step per call. Not thread-safe.

    random: returns that many random bytes. Nothing is opened before the first step.
    """

    def __init__(self, job: EraseJob, path: Path, *, random: Callable[[int], bytes] = os.urandom) -> None:
        self.job = job
        self._path, self._random = path, random
        self._fd = -1
        self._end = 0
        self._is_block = self._is_direct = False
        self._buffer: mmap.mmap | None = None
        self._is_zero = True

    def step(self) -> int:
        """Erase the next piece; return the bytes that were written (none for holes and discards).

        Overwritten bytes are durable only after sync(). Raises: HostError.
        """
        if self.job.is_done:
            return 0
        with host_errors(f"cannot erase {self._path} at {self._at()}"):
            if self._fd < 0:
                self._open()
            return self._discard() if self.job.method == "discard" else self._overwrite()

    def _at(self) -> int:
        return self.job.done % self.job.length if self.job.length else 0

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        self._is_block = stat.S_ISBLK(mode := os.lstat(self._path).st_mode)
        if not self._is_block and not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is neither a file nor a block device")
        # O_EXCL: a block device that is mounted or part of something is rejected (EBUSY)
        self._fd = os.open(self._path, flags | (os.O_EXCL if self._is_block else 0))
        self._end = min(self.job.length, device.size(self._fd))
        self._be_direct(wanted=True)

    def _be_direct(self, *, wanted: bool) -> None:
        """Use direct I/O, as the page cache belongs to the pods; buffered where that is impossible."""
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)
        except OSError:
            wanted = False
        self._is_direct = wanted

    def _discard(self) -> int:
        start = self.job.done
        count = min(_DISCARD_CHUNK, self._end - start)
        try:
            if count > 0:
                self._hand_back(start, count)
        except OSError as failure:
            if failure.errno not in _NO_DISCARD:
                raise
            log.warning("cannot be discarded, overwriting with zeros path=%s error=%s", self._path, failure.strerror)
            self.job = msgspec.structs.replace(self.job, method="zero")
            return 0
        self._advance(start + count if count > 0 else self.job.length)
        return 0

    def _hand_back(self, start: int, count: int) -> None:
        if self._is_block:
            fcntl.ioctl(self._fd, _BLKDISCARD, struct.pack("=QQ", start, count))
        else:
            libc.fallocate(self._fd, libc.PUNCH_HOLE, start, count)

    def _overwrite(self) -> int:
        number, at = divmod(self.job.done, self.job.length)
        start, end = self._next_data(at)
        is_last = end >= self._end
        if start < end:
            self._write(start, end, zeros=self.job.method == "zero" or number == SHRED_PASSES)
        if is_last and self.job.method == "shred":
            os.fdatasync(self._fd)  # or the passes meet in a cache, and only the last one reaches the disk
        self._advance((number + 1) * self.job.length if is_last else number * self.job.length + end)
        return end - start

    def _next_data(self, at: int) -> tuple[int, int]:
        """The next piece of at most CHUNK bytes that may hold data; an empty one at the end."""
        start, hole = at, self._end
        if start >= self._end:
            return self._end, self._end
        if not self._is_block:
            try:
                start = os.lseek(self._fd, at, os.SEEK_DATA)
                hole = os.lseek(self._fd, start, os.SEEK_HOLE)
            except OSError as failure:
                if failure.errno != errno.ENXIO:
                    raise
                return self._end, self._end
        return start, min(start + CHUNK, hole, self._end)

    def _write(self, start: int, end: int, *, zeros: bool) -> None:
        buffer = self._filled(end - start, zeros=zeros)
        while start < end:
            start += self._write_some(buffer[-(end - start) :], start)

    def _write_some(self, piece: memoryview, at: int) -> int:
        if self._is_direct and (at % _ALIGN or len(piece) % _ALIGN):
            self._be_direct(wanted=False)
        if self._is_direct:
            try:
                return os.pwrite(self._fd, piece, at)
            except OSError as failure:
                if failure.errno != errno.EINVAL:  # the disk wants a larger alignment
                    raise
                self._be_direct(wanted=False)
        count = os.pwrite(self._fd, piece, at)
        os.fdatasync(self._fd)
        os.posix_fadvise(self._fd, at, count, os.POSIX_FADV_DONTNEED)
        return count

    def _filled(self, count: int, *, zeros: bool) -> memoryview:
        if self._buffer is None:  # anonymous memory begins at a page, as direct access wants it
            self._buffer = mmap.mmap(-1, CHUNK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if not zeros:
            self._buffer[:count] = self._random(count)
        elif not self._is_zero:
            self._buffer[:] = bytes(CHUNK)
        self._is_zero = zeros
        return memoryview(self._buffer)[:count]

    def _advance(self, done: int) -> None:
        self.job = msgspec.structs.replace(self.job, done=min(done, self.job.total))

    def sync(self) -> None:
        """Sync overwritten bytes, so that job.done may be saved. Raises: HostError."""
        if self._fd < 0:
            return
        with host_errors(f"cannot erase {self._path}"):
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Release all resources. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._buffer = None


def wipe(job: EraseJob, path: Path) -> None:
    """Erase a content at once, from the job's position to its end, without a rate limit. Raises: HostError."""
    wiper = Wiper(job, path)
    try:
        while not wiper.job.is_done:
            wiper.step()
        wiper.sync()
    finally:
        wiper.close()


@dataclass(frozen=True)
class Medium:
    """How a file system overwrites files.

    kind: its name, "" for one not listed here. overwrites: new bytes replace the old blocks. shares: files may share
    blocks (reflinks).
    """

    kind: str = ""
    overwrites: bool = True
    shares: bool = True


_MEDIA = {  # by f_type of statfs(2)
    0xEF53: Medium("ext4", shares=False),
    0x01021994: Medium("tmpfs", shares=False),
    0x58465342: Medium("xfs"),
    0x9123683E: Medium("btrfs", overwrites=False),
    0x2FC12FC1: Medium("zfs", overwrites=False),
    0xCA451A4E: Medium("bcachefs", overwrites=False),
    0x3434: Medium("nilfs2", overwrites=False),
    0xF2F52010: Medium("f2fs", overwrites=False),
}


def medium_of(folder: Path) -> Medium:
    """Properties of the file system of a directory. Raises: HostError."""
    with host_errors(f"cannot look at {folder}"), opened(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        return _MEDIA.get(libc.fstatfs_type(fd), Medium())


def check_overwrites(folder: Path, medium: Medium) -> None:
    """Raises: UnsupportedError where files are on a file system that never overwrites blocks in place."""
    if not medium.overwrites:
        raise UnsupportedError(
            f"erase by overwriting: {folder} is on {medium.kind}, which writes new bytes elsewhere and leaves the old"
            " ones on the disk; use erase=discard, or encrypt the disk"
        )
