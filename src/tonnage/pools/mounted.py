"""File systems of volumes while they are mounted: growing one, and what is wrong with one. Blocking."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tonnage.errors import Exhausted, HostError, NotFound, Precondition, TonnageError
from tonnage.host import mount, superblock
from tonnage.pools.directory import Record

_READONLY = 1  # ST_RDONLY of statvfs


def grow(record: Record, roots: Iterable[int]) -> None:
    """Let a volume's mounted file system take the length of its record. roots: its mounts, opened; they are closed.

    Raises Precondition when that cannot be done while it is mounted (so), NotFound when there is no mount, HostError.
    """
    failure: OSError | None = None
    for fd in roots:
        try:
            superblock.grow(fd, record.fstype, record.length)
            return
        except OSError as error:
            failure = error
            if error.errno != errno.EROFS:  # read-only there: another mount of it may do
                break
        finally:
            os.close(fd)
    raise _cannot_grow(record, failure)


def _cannot_grow(record: Record, failure: OSError | None) -> TonnageError:
    if failure is None:
        return NotFound(f"volume {record.name} is not mounted where this process can see it")
    if failure.errno == errno.EPERM and record.fstype == "ext4" and not superblock.may_grow_ext4():
        return Precondition(
            f"volume {record.name}: the kernel grows a mounted ext4 only for CAP_SYS_RESOURCE, which is lacking;"
            " it grows when the volume is staged the next time: restart its pod, or run the driver with that capability"
        )
    if failure.errno == errno.EROFS:
        return Precondition(f"volume {record.name} is mounted read-only: it grows when it is staged writable")
    if failure.errno in (errno.ENOSPC, errno.EDQUOT):
        return Exhausted(f"volume {record.name}: no room to grow its file system: {failure.strerror}")
    return HostError(f"cannot grow the file system of volume {record.name}: {failure.strerror}")


def fault(path: Path) -> str:
    """What is wrong with the file system that should be mounted at path, "" for nothing."""
    try:
        if not mount.is_mount(path):
            return f"it is not mounted at {path}"
        if os.statvfs(path).f_flag & _READONLY and "emergency_ro" in _superblock_options(path):
            return f"its file system went read-only after an error: look at the kernel's log, then at {path}"
        os.stat(path / ".")  # xfs and btrfs that have shut down answer EIO
    except OSError as failure:
        return f"its mount at {path} cannot be read: {failure.strerror}"
    return ""


def _superblock_options(path: Path) -> str:
    """The options of the file system, rather than of the mount: ext4 tells there that it stopped writing."""
    real = f" {path} "
    with suppress(OSError), open("/proc/self/mountinfo") as table:
        for line in table:
            if real in line:
                return line.rpartition(" ")[2]
    return ""
