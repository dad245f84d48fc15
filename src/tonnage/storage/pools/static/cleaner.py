"""The cleaners of static volumes: how a disk is erased between two owners (class parameter `cleaner`).

`quick`: removes all content of a mounted file system, or the signatures of a block device. `discard`: discards the
blocks as well. `zero`, `shred`: overwrites a block device. They work in the background, and a disk is free only when
its cleaner has finished. The names are those of the local static provisioner's scripts (quick_reset.sh, blkdiscard.sh,
dd_zero.sh, shred.sh), whose default is quick too.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from tonnage.base.errors import HostError, InvalidError
from tonnage.host import device, filesystem, libc, tree
from tonnage.host.descriptor import opened
from tonnage.storage.pools.core.wipe import OVERWRITES, EraseJob
from tonnage.storage.pools.static import content
from tonnage.storage.pools.static.discovery import StaticDisk
from tonnage.storage.pools.static.records import DiskRecords

log = logging.getLogger(__name__)
CLEANER = "cleaner"
QUICK = "quick"
CLEANERS = (QUICK, "discard", "zero", "shred")


def cleaner_of(parameters: Mapping[str, str]) -> str:
    """The cleaner that a class chooses. Raises: InvalidError."""
    name = parameters.get(CLEANER, QUICK)
    if name not in CLEANERS:
        raise InvalidError(f"parameter {CLEANER}: {name[:40]!r} is unknown, want {', '.join(CLEANERS)}")
    return name


def job_for(disk: StaticDisk, volume: str, cleaner: str) -> EraseJob:
    """The erase job of a cleaner for a disk. What does not overwrite every byte is its last step."""
    length = 0
    if disk.node is not None and cleaner != QUICK:
        with opened(disk.node, os.O_RDONLY) as fd:
            length = device.size(fd)
    return EraseJob(disk.entry, volume, cleaner, length, reserved=disk.size)


def wipe_signatures(fd: int) -> None:
    """Zero the signatures of file systems, volume managers and partition tables. Durable. Raises: OSError.

    They are at both ends, with copies in between.
    """
    for start, stop in content.places(device.size(fd)):
        zeros = bytes(stop - start)
        while start < stop:
            start += os.pwrite(fd, zeros[: stop - start], start)
    os.fsync(fd)


def _clean_device(disk: StaticDisk, node: Path) -> None:
    # O_EXCL: a device that is in use meanwhile is left alone (EBUSY).
    with opened(node, os.O_RDWR | os.O_EXCL) as fd:
        wipe_signatures(fd)
        found = device.probe(fd)
    if found is not None:
        raise OSError(errno.EIO, f"{found.kind} is still on it after it was wiped")


def _clean_mount(disk: StaticDisk, cleaner: str) -> None:
    tree.empty(disk.path)
    with opened(disk.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as fd:
        libc.syncfs(fd)  # or what was removed is there again after a power cut, for the next owner to read
        if cleaner == "discard":
            _trim(fd, disk)


def _trim(fd: int, disk: StaticDisk) -> None:
    try:
        filesystem.trim(fd)
    except OSError as failure:
        if failure.errno not in (errno.EOPNOTSUPP, errno.ENOTTY):
            raise
        log.warning("blocks cannot be discarded, content was only removed path=%s", disk.path)


class Cleaning:
    """The jobs of a static pool.

    present: returns the disk of an entry if it is there and the recorded one, otherwise raises HostError. freed: called
    with each entry that is free again.
    """

    def __init__(
        self, records: DiskRecords, present: Callable[[str], StaticDisk], freed: Callable[[str], None]
    ) -> None:
        self._records, self._present, self._freed = records, present, freed

    def jobs(self) -> Sequence[EraseJob]:
        return [record.job for record in list(self._records.disks.values()) if record.job is not None]

    def path(self, job: EraseJob) -> Path:
        """The device to erase. Raises: HostError also when the disk is gone or another one: nothing is written then."""
        disk = self._present(job.key)
        if disk.node is None:
            raise HostError(f"disk {job.key} is a mount now, {job.method} was begun on a block device")
        return disk.node

    def save(self, job: EraseJob) -> None:
        self._records.write(replace(self._records.disks[job.key], job=job))

    def finish(self, job: EraseJob) -> None:
        """Finish the cleaner's other steps, then the disk is free. Raises: HostError."""
        disk = self._present(job.key)
        try:
            if disk.node is None:
                _clean_mount(disk, job.method)
            elif job.method not in OVERWRITES:
                _clean_device(disk, disk.node)
        except OSError as failure:
            raise HostError(f"cannot clean disk {disk.path} of volume {job.name}: {_text(failure)}") from failure
        content.clear(disk)
        self._records.remove(job.key)
        self._freed(job.key)


def _text(failure: OSError) -> str:
    hints = {
        errno.EROFS: "; was it remounted read-only after an error? look at the kernel's log",
        errno.EBUSY: "; something is mounted on it or has it open",
    }
    return f"{failure.strerror}{hints.get(failure.errno or 0, '')}"
