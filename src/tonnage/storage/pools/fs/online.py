"""Mounted file systems of volumes: growth, health, and freezing while they are copied (fsfreeze). Blocking.

LVM freezes ext4 and xfs by itself when it suspends the device under them (freeze_bdev of the kernel). LVM cannot freeze
btrfs (no block device of its own), and nothing else freezes the file system of an image: both are frozen here. A file
system that a killed process left frozen would block its pods forever. So a mark file records it until the next start.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tonnage.base.errors import ExhaustedError, HostError, NotFoundError, PreconditionError, TonnageError, host_errors
from tonnage.host import filesystem, libc, mount
from tonnage.host.descriptor import closing
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.fs import shutdown

log = logging.getLogger(__name__)
_EXPEDITED = b"rcu_expedited\n"
"""Content of the mark of a freeze that changes that setting of the kernel."""


def grow(record: VolumeRecord, roots: Iterable[int]) -> None:
    """Grow a volume's mounted file system to the length of its record.

    roots: its mounts, opened; they are closed. Raises: PreconditionError when it cannot grow while mounted,
    NotFoundError when there is no mount, HostError.
    """
    failure: OSError | None = None
    for fd in roots:
        try:
            filesystem.grow(fd, record.fstype, record.length)
        except OSError as error:
            failure = error
            if error.errno != errno.EROFS:  # read-only there: another mount of it may do
                break
        else:
            return
        finally:
            os.close(fd)
    raise _cannot_grow(record, failure)


def _cannot_grow(record: VolumeRecord, failure: OSError | None) -> TonnageError:
    if failure is None:
        return NotFoundError(f"volume {record.name} is not mounted where this process can see it")
    if failure.errno == errno.EPERM and record.fstype == "ext4" and not filesystem.may_grow_ext4():
        return PreconditionError(
            f"volume {record.name}: the kernel grows a mounted ext4 only for CAP_SYS_RESOURCE, which is lacking;"
            " it grows when the volume is staged the next time: restart its pod, or run the driver with that capability"
        )
    if failure.errno == errno.EROFS:
        return PreconditionError(f"volume {record.name} is mounted read-only: it grows when it is staged writable")
    if failure.errno in (errno.ENOSPC, errno.EDQUOT):
        return ExhaustedError(
            f"volume {record.name}: insufficient free space to grow its file system: {failure.strerror}"
        )
    return HostError(f"volume {record.name}: cannot grow its file system: {failure.strerror}; {shutdown.REMEDY}")


def mount_fault(path: Path) -> str:
    """The problem of the file system that should be mounted at path, "" for none."""
    try:
        if not mount.is_mount(path):
            return f"it is not mounted at {path}"
        if error := shutdown.error_of(path):
            return f"its file system does not answer: {error}; {shutdown.REMEDY}"
        if _stopped(path):
            return f"its file system went read-only after an error: look at the kernel's log, then at {path}"
        if count := _ext4_errors(path):
            return (
                f"its file system has found {count} errors in itself and may take no more writes: look at the kernel's"
                " log, then check it with e2fsck while it is not mounted"
            )
    except (OSError, TonnageError) as failure:
        return f"its mount at {path} cannot be read: {failure}"
    return ""


def _ext4_errors(path: Path) -> int:
    """Number of errors that an ext4 has recorded since its last check, 0 for other file systems.

    On some kernels this is the only sign that it stopped writing.
    """
    number = os.stat(path).st_dev
    name = os.path.basename(os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"))
    try:
        return int(Path("/sys/fs/ext4", name, "errors_count").read_text())
    except (OSError, ValueError):
        return 0


def _stopped(path: Path) -> bool:
    """Whether a file system takes no more writes, although it was mounted writable.

    After an error ext4 and btrfs show `ro` for the file system and not for the mount, ext4 since Linux 6.15
    `emergency_ro`.
    """
    if not os.statvfs(path).f_flag & os.ST_RDONLY:
        return False
    real = os.fsencode(path.resolve()).decode(errors="replace")
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        if left.split(" ")[4:5] != [real]:
            continue
        ours, its = left.split(" ")[5].split(","), right.rpartition(" ")[2].split(",")
        return "emergency_ro" in its or ("ro" in its and "ro" not in ours)
    return False


class Freeze:
    """A freeze of a mounted file system: all writes before are on the device, later ones wait."""

    def __init__(self, roots: Iterator[int], record: VolumeRecord, mark: Path) -> None:
        """roots: its mounts, opened; the first is used. mark: the file that exists meanwhile.

        end() closes it, also when it never began. Raises: PreconditionError when no mount is visible.
        """
        at = next(roots, None)
        if at is None:
            raise PreconditionError(
                f"volume {record.name} is in use, but not mounted where this process can see it: its file system cannot"
                " be frozen for a copy of one moment; unstage the volume first"
            )
        self.volume = record.name
        self._at, self._record, self._mark = at, record, mark
        self._is_open, self._is_frozen = True, False

    def sync(self) -> None:
        """Write most of what is dirty before the freeze, which is shorter then. Raises: HostError."""
        with host_errors(f"volume {self.volume}: cannot be synced for a copy", advice=shutdown.REMEDY):
            libc.syncfs(self._at)

    def begin(self) -> None:
        """Freeze. Raises: PreconditionError when another process has frozen it, HostError."""
        had_mark = self._mark.exists()  # of a thaw that failed: the next start tries again
        try:
            self._mark.touch(0o600)
            with _expedited(self._mark):
                filesystem.freeze(self._at)
        except OSError as failure:
            if not had_mark:
                remove_mark(self._mark)
            if failure.errno == errno.EBUSY:
                raise PreconditionError(
                    f"volume {self.volume} is frozen by another process; thaw it (fsfreeze -u)"
                ) from failure
            raise HostError(
                f"volume {self.volume}: cannot be frozen for a copy: {failure.strerror}; {shutdown.REMEDY}"
            ) from failure
        self._is_frozen = True

    def end(self) -> None:
        """Thaw, if it began, and close. Idempotent. Raises: HostError."""
        if not self._is_open:
            return
        self._is_open = False
        with closing(self._at):
            if self._is_frozen:
                _thaw(self._at, self._record)
                with suppress(OSError):
                    self._mark.unlink()


@contextmanager
def frozen(roots: Iterator[int], record: VolumeRecord, mark: Path) -> Iterator[None]:
    """Freeze the file system while the body runs. Arguments and errors as those of Freeze."""
    freeze = Freeze(roots, record, mark)
    try:
        freeze.sync()  # what is written back here need not be while writers wait
        freeze.begin()
        yield
    finally:
        freeze.end()


@contextmanager
def _expedited(mark: Path) -> Iterator[None]:
    """Let the kernel hurry while it freezes: writers wait meanwhile, for 40 ms and more otherwise.

    The setting is the machine's, so it is changed for a millisecond only, and never where it is on already. The mark
    records it: what a kill leaves is undone with the thaw.
    """
    is_changed = False
    with suppress(OSError):  # a read-only /sys, or another kernel: it freezes more slowly
        if not filesystem.is_expedited():
            mark.write_bytes(_EXPEDITED)
            filesystem.expedite(on=True)
            is_changed = True
    try:
        yield
    finally:
        if is_changed:
            with suppress(OSError):
                filesystem.expedite(on=False)


def _thaw(at: int, record: VolumeRecord) -> bool:
    with host_errors(f"cannot thaw volume {record.name}", advice="fsfreeze -u it"):
        return filesystem.thaw(at)


def thaw_left(roots: Iterator[int], record: VolumeRecord, mark: Path, *, is_used: Callable[[], bool]) -> None:
    """Thaw a file system that a killed process left frozen, and remove its mark.

    is_used: whether it may be mounted where this process cannot see it. The mark stays then, for a start that sees it.
    Raises: HostError.
    """
    if (at := next(roots, None)) is not None:
        with closing(at):
            if _thaw(at, record):
                log.warning("thawed a file system that a killed process left frozen volume=%s", record.name)
    elif is_used():
        log.error("cannot see the mount of a file system that may be frozen; fsfreeze -u it volume=%s", record.name)
        _restore_pace(mark)
        return
    remove_mark(mark)


def remove_mark(mark: Path) -> None:
    """Remove the mark of a freeze that a kill ended, and undo what it records. Idempotent."""
    _restore_pace(mark)
    with suppress(OSError):
        mark.unlink()


def _restore_pace(mark: Path) -> None:
    """Undo the setting of the kernel that a mark records."""
    with suppress(OSError):
        if mark.read_bytes() == _EXPEDITED:
            filesystem.expedite(on=False)
            mark.write_bytes(b"")
