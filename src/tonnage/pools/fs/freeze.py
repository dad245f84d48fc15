"""A mounted btrfs held still while LVM takes a snapshot of its device. Blocking.

LVM freezes ext4 and xfs by itself when it suspends the device under them (freeze_bdev of the kernel). btrfs it does not
find, as that has no device of its own in the kernel's eyes: it is frozen here. One that a killed process left frozen
would stop its pods for ever: a mark under /run, which a reboot empties as it thaws all, says so until the next start.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tonnage.errors import HostError, Precondition
from tonnage.host import superblock
from tonnage.pools.base.record import Record
from tonnage.pools.fs import block_device

log = logging.getLogger(__name__)


@contextmanager
def still(path: str, record: Record, mark: Path) -> Iterator[None]:
    """While the body runs, all that was written is on the device of a volume, and nothing more is.

    mark: the file that is there meanwhile. Raises Precondition when that cannot be had, HostError.
    """
    at = next(block_device.roots(path), None)
    if at is None:
        raise Precondition(
            f"volume {record.name} is in use, but not mounted where this process can see it: its btrfs cannot be frozen"
            " for a copy of one moment; unstage the volume first"
        )
    try:
        mark.touch(0o600)
        superblock.freeze(at)
    except OSError as failure:
        with suppress(OSError):
            mark.unlink()
        os.close(at)
        if failure.errno == errno.EBUSY:
            raise Precondition(f"volume {record.name} is frozen by somebody else: thaw it (fsfreeze -u)") from failure
        raise HostError(f"cannot freeze volume {record.name}: {failure.strerror}") from failure
    try:
        yield
    finally:
        _thaw(at, record)
        with suppress(OSError):
            mark.unlink()


def _thaw(at: int, record: Record) -> None:
    try:
        superblock.thaw(at)
    except OSError as failure:
        raise HostError(f"cannot thaw volume {record.name}: {failure.strerror}; fsfreeze -u it") from failure
    finally:
        os.close(at)


def thaw(path: str, record: Record, mark: Path) -> None:
    """Thaw what a killed process left frozen, if its mark is there. Raises HostError."""
    if not mark.exists():
        return
    for at in block_device.roots(path):
        log.warning("thawing what a killed process left frozen volume=%s", record.name)
        _thaw(at, record)
        break
    with suppress(OSError):
        mark.unlink()
