"""Freeze a mounted btrfs while LVM takes a snapshot of its device (fsfreeze). Blocking.

LVM freezes ext4 and xfs by itself when it suspends the device under them (freeze_bdev of the kernel). LVM cannot freeze
btrfs (no block device of its own), so we freeze it here. A file system that a killed process left frozen would block
its pods forever. So a mark under /run records it until the next start. A reboot empties /run and thaws all.
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
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.fs import block_device

log = logging.getLogger(__name__)


@contextmanager
def still(path: str, record: VolumeRecord, mark: Path) -> Iterator[None]:
    """Freeze the file system while the body runs: all writes before are on the device, later ones wait.

    mark: the file that exists meanwhile. Raises Precondition when it cannot be frozen, HostError.
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
            raise Precondition(f"volume {record.name} is frozen by another process; thaw it (fsfreeze -u)") from failure
        raise HostError(f"cannot freeze volume {record.name}: {failure.strerror}") from failure
    try:
        yield
    finally:
        _thaw(at, record)
        with suppress(OSError):
            mark.unlink()


def _thaw(at: int, record: VolumeRecord) -> None:
    try:
        superblock.thaw(at)
    except OSError as failure:
        raise HostError(f"cannot thaw volume {record.name}: {failure.strerror}; fsfreeze -u it") from failure
    finally:
        os.close(at)


def thaw(path: str, record: VolumeRecord, mark: Path) -> None:
    """Thaw a file system that a killed process left frozen, if its mark exists. Raises HostError."""
    if not mark.exists():
        return
    for at in block_device.roots(path):
        log.warning("thawing a file system that a killed process left frozen volume=%s", record.name)
        _thaw(at, record)
        break
    with suppress(OSError):
        mark.unlink()
