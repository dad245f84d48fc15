"""Copies of image files: by shared blocks (reflink) where possible, else byte by byte. Blocking.

A copied file system also gets its log replayed, a UUID of its own and a larger size. While a program works on a copy,
the file is locked by a descriptor that the program inherits.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from uuid import UUID

from tonnage.base.errors import HostError, host_errors, ignore_errno
from tonnage.host import device, extents, loop, mount
from tonnage.host.extents import Extent
from tonnage.host.run import CommandError, run
from tonnage.storage.pools.directory.directory import disk_errors
from tonnage.storage.pools.fs.holes import data_ranges

log = logging.getLogger(__name__)
_NO_REFLINK = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS)
_CHUNK = 16 * 1024**2
_TELL = 1024**3  # bytes between two log lines of a copy's progress
_TIMEOUT = 3600.0  # seconds: checking a large file system takes a while
_FEW = 32  # extents to share at once: 2 ms of an xfs
_FIXED = 1  # exit code of e2fsck: the log was replayed or an error corrected


def make(path: Path) -> int:
    """Make and lock an empty file for a copy; replaces a leftover without a record. Raises: HostError."""
    with host_errors(f"cannot make {path}"):
        with suppress(FileNotFoundError):
            os.unlink(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd


def can_share(fd: int, source: int) -> bool:
    """Whether the empty file fd can share blocks with source; it is empty afterwards. Raises: HostError."""
    with _errors("try to share blocks"), ignore_errno(*_NO_REFLINK):
        extents.share(fd, source)
        os.ftruncate(fd, 0)
        return True
    return False


def copy(fd: int, source: int, path: Path, *, share: bool = True) -> bool:
    """Copy all of source into the empty file fd, holes as holes; return whether they share blocks.

    Not yet durable. path: of the copy, for messages. share: whether sharing is allowed; content that will be
    overwritten must have blocks of its own. Raises: ExhaustedError, HostError.
    """
    with _errors(f"copy to {path}"):
        if share:
            with ignore_errno(*_NO_REFLINK):
                extents.share(fd, source)
                return True
        _copy_data(fd, source, path, share=share)
    return False


def share_early(fd: int, source: int) -> list[Extent] | None:
    """Make the empty file fd share the blocks of a source that still changes: what it has then, None if it cannot.

    That takes long for a file of many extents, and writers wait meanwhile, so they get a turn after every few. What
    changes until the source is still, catch_up() or share_at_once() shares then. Raises: HostError.
    """
    with _errors("share blocks"), ignore_errno(*_NO_REFLINK):
        found = extents.extents(source)
        for few in (found[at : at + _FEW] for at in range(0, len(found), _FEW)):
            extents.share_range(fd, source, few[0].start, few[-1].end)
        os.fsync(fd)  # so that little is left for the last one, which delays those of the source
        return extents.extents(fd)
    return None


def share_at_once(fd: int, source: int) -> None:
    """Share all blocks of a source that still changes at one moment, after share_early(). Not yet durable.

    The kernel holds off the writers of a file while another shares all of it: the copy has each write as a whole or not
    at all, and with it all that were complete before. Raises: HostError.
    """
    with _errors("share blocks"):
        extents.share(fd, source)


def catch_up(fd: int, source: int, early: Sequence[Extent]) -> None:
    """Share what changed in a source, which is still now, since share_early(). Not yet durable. Raises: HostError."""
    with _errors("share blocks"):
        for start, end in extents.differences(extents.extents(source), early):
            extents.share_range(fd, source, start, end)


def _copy_data(fd: int, source: int, path: Path, *, share: bool) -> None:
    found = os.fstat(source)
    done, reported = 0, 0
    os.ftruncate(fd, found.st_size)
    for start, end in data_ranges(source):
        at = start
        while at < end:
            count = _copy_some(fd, source, at, min(_CHUNK, end - at), share=share)
            at, done = at + count, done + count
            if done - reported >= _TELL:
                reported = done
                log.info("copying path=%s bytes=%d of=%d", path, done, found.st_blocks * 512)


def _copy_some(fd: int, source: int, offset: int, count: int, *, share: bool) -> int:
    if not share:  # copy_file_range shares blocks where it can
        return os.pwrite(fd, os.pread(source, count, offset), offset)
    copied = -1
    with ignore_errno(*_NO_REFLINK):
        copied = os.copy_file_range(source, fd, count, offset, offset)
    if copied < 0:
        copied = os.pwrite(fd, os.pread(source, count, offset), offset)
    if not copied:
        raise OSError(errno.EIO, "the file became shorter while it was copied")
    return copied


def extend(fd: int, path: Path, length: int, *, sparse: bool) -> None:
    """Make an image at least `length` bytes long, allocated unless sparse. It never shrinks. Idempotent.

    Raises: ExhaustedError, HostError.
    """
    before = os.fstat(fd).st_size
    with _errors(f"extend {path} to {length} bytes"):
        try:
            if not sparse:
                os.posix_fallocate(fd, 0, length)
            elif before < length:
                os.ftruncate(fd, length)
            os.fsync(fd)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, before)
            raise


def _errors(what: str) -> AbstractContextManager[None]:
    return disk_errors(f"cannot {what}", full=f"to {what}")


def renew(fd: int, path: Path, fstype: str, uuid: UUID) -> None:
    """Replay the log of a copied file system and give it a new UUID. Raises: HostError."""
    if fstype == "ext4":
        check_ext4(fd)
        _run(fd, "tune2fs", "-U", str(uuid))
        return
    command = ("xfs_admin", "-U") if fstype == "xfs" else ("btrfstune", "-f", "-M")
    with suppress(CommandError):
        _run(fd, *command, str(uuid))
    if not _has(fd, path, uuid):  # xfs_admin rejects a log that is not empty, and calls that success
        _replay(fd, path, fstype)
        _run(fd, *command, str(uuid))
        if not _has(fd, path, uuid):
            raise HostError(f"{command[0]} did not give the copy {path} a UUID of its own")


def _has(fd: int, path: Path, uuid: UUID) -> bool:
    with host_errors(f"cannot read {path}"):
        found = device.probe(fd)
    return found is not None and found.uuid == uuid


def _replay(fd: int, path: Path, fstype: str) -> None:
    """Replay the log by a detached mount: if this process is killed, mount and device end by themselves."""
    with closing(loop.attach(fd, str(path))) as attached:
        mount.visit(attached.path, fstype, ("nouuid",) if fstype == "xfs" else ())


def check_ext4(fd: int) -> None:
    """Replay the log of an unmounted ext4 and check it, which the tools require before a change.

    Raises: HostError when it is damaged.
    """
    try:
        _run(fd, "e2fsck", "-f", "-p")
    except CommandError as failure:
        if failure.code != _FIXED:
            raise


def resize_ext4(fd: int, length: int) -> None:
    """Resize an unmounted ext4 to `length` bytes of its image. Idempotent. Raises: HostError."""
    check_ext4(fd)
    run(["resize2fs", f"/dev/fd/{fd}", str(length // 4096)], timeout=_TIMEOUT, pass_fds=(fd,))


def _run(fd: int, *command: str) -> None:
    run([*command, f"/dev/fd/{fd}"], timeout=_TIMEOUT, pass_fds=(fd,))
