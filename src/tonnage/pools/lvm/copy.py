"""Copy all of one logical volume to another. Blocking.

Every byte is read and compared with zero. Zeros are not copied but zeroed, which a thin volume does not need. After a
kill it starts again: copied data cannot be distinguished from missing data.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from tonnage.errors import HostError, host_errors
from tonnage.pools.fs import block_device

log = logging.getLogger(__name__)
_CHUNK = 4 * 1024**2
_ZEROS = bytes(_CHUNK)
_TELL = 1024**3  # bytes between two log lines of the progress
_SYNC = 64 * 1024**2  # bytes that may be waiting to be written


def copy(source: str, fd: int, length: int, *, zeroed: bool, rest: bool, what: str) -> None:
    """Copy the first `length` bytes of the device `source` to the open device fd, durably.

    zeroed: blocks that were never written there read as zeros. rest: zero what follows, for raw block, where pods could
    read it. what: for messages. Raises HostError.
    """
    with host_errors(f"cannot open {source}"):
        origin = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with host_errors(f"cannot copy {what}"):
            os.posix_fadvise(origin, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            for at in range(0, length, _CHUNK):
                _copy_some(origin, fd, at, min(_CHUNK, length - at), zeroed=zeroed)
                done = at + min(_CHUNK, length - at)
                if done % _SYNC == 0:
                    _let_go(origin, fd)
                if done % _TELL == 0:
                    log.info("copying %s bytes=%d of=%d", what, done, length)
            if rest and not zeroed:
                block_device.zero(fd, length)
            _let_go(origin, fd)
    finally:
        os.close(origin)


def _copy_some(origin: int, fd: int, at: int, count: int, *, zeroed: bool) -> None:
    data = os.pread(origin, count, at)
    if len(data) < count:
        raise HostError(f"the device became shorter while it was copied: {at + len(data)} bytes")
    if data == (_ZEROS if count == _CHUNK else bytes(count)):
        if not zeroed:
            block_device.zero_range(fd, at, count)
        return
    done = 0
    while done < count:
        done += os.pwrite(fd, memoryview(data)[done:], at + done)


def _let_go(origin: int, fd: int) -> None:
    """Sync a range, and drop it from the page cache, which belongs to the pods."""
    os.fsync(fd)
    for number in (origin, fd):
        with suppress(OSError):
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
