"""Freeze the mounted file system of a volume while it is copied (fsfreeze). Blocking.

LVM freezes ext4 and xfs by itself when it suspends the device under them (freeze_bdev of the kernel). LVM cannot freeze
btrfs (no block device of its own), and nothing else freezes the file system of an image: both are frozen here. A file
system that a killed process left frozen would block its pods forever. So a mark file records it until the next start.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tonnage.errors import HostError, PreconditionError, host_errors
from tonnage.host import filesystem
from tonnage.host.descriptor import closing
from tonnage.pools.base.record import VolumeRecord

log = logging.getLogger(__name__)


@contextmanager
def still(roots: Iterator[int], record: VolumeRecord, mark: Path) -> Iterator[None]:
    """Freeze the file system while the body runs: all writes before are on the device, later ones wait.

    roots: its mounts, opened; the first is used and closed. mark: the file that exists meanwhile. Raises
    PreconditionError when it cannot be frozen, HostError.
    """
    at = next(roots, None)
    if at is None:
        raise PreconditionError(
            f"volume {record.name} is in use, but not mounted where this process can see it: its file system cannot be"
            " frozen for a copy of one moment; unstage the volume first"
        )
    with closing(at):
        try:
            mark.touch(0o600)
            filesystem.freeze(at)
        except OSError as failure:
            with suppress(OSError):
                mark.unlink()
            if failure.errno == errno.EBUSY:
                raise PreconditionError(
                    f"volume {record.name} is frozen by another process; thaw it (fsfreeze -u)"
                ) from failure
            raise HostError(f"cannot freeze volume {record.name}: {failure.strerror}") from failure
        try:
            yield
        finally:
            _thaw(at, record)
            with suppress(OSError):
                mark.unlink()


def _thaw(at: int, record: VolumeRecord) -> bool:
    with host_errors(f"cannot thaw volume {record.name}", advice="fsfreeze -u it"):
        return filesystem.thaw(at)


def thaw(roots: Iterator[int], record: VolumeRecord, mark: Path) -> None:
    """Thaw a file system that a killed process left frozen, and remove its mark. Raises HostError."""
    if (at := next(roots, None)) is not None:
        with closing(at):
            if _thaw(at, record):
                log.warning("thawed a file system that a killed process left frozen volume=%s", record.name)
    with suppress(OSError):
        mark.unlink()
