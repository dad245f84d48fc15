"""Mounts of pools: stage a device, publish and unpublish a volume, with no symlink followed. Blocking."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tonnage.base.errors import (
    AlreadyExistsError,
    HostError,
    NotFoundError,
    PreconditionError,
    UnsupportedError,
    host_errors,
)
from tonnage.host import mount, nofollow, selinux
from tonnage.storage.pools.base.contract import Stats

_READONLY = 1  # ST_RDONLY of statvfs


def make_directory(path: Path, *, mode: int = 0o750) -> None:
    """Make a mount point, or accept the existing directory.

    Raises: PreconditionError for anything else and for a symlink in the path, HostError.
    """
    with host_errors(f"cannot make directory {path}"), nofollow.parent(path) as (at, name):
        with suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=at)
        found = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
    if not stat.S_ISDIR(found):
        raise PreconditionError(f"{path} is {'a symlink' if stat.S_ISLNK(found) else 'not a directory'}: remove it")


def check_bind(what: str, options: Sequence[str], remedy: str = "") -> None:
    """Check the mount options of a bind mount. what: "a volume that is a folder". Raises: UnsupportedError."""
    if selinux.context_of(options):
        raise UnsupportedError(
            f"{what} cannot have the mount option context= of its own: all files of one file system have it, or none;"
            " set seLinuxMount: false in the CSIDriver, so that the container runtime labels the files, and leave it"
            " out of mountOptions"
        )
    if strange := [option for option in options if option not in mount.BIND_OPTIONS and option != "rw"]:
        raise UnsupportedError(f"{what} cannot have the mount option {strange[0][:40]!r} of its own{remedy}")


def check_context(name: str, path: Path, options: Sequence[str]) -> None:
    """Check that the mount of a volume at path has the SELinux context of these options. Raises: AlreadyExistsError."""
    entry = mount.at(path)
    if entry is not None and (conflict := context_conflict(entry, options)):
        raise AlreadyExistsError(f"volume {name} {conflict}")


def context_conflict(entry: mount.Mount, options: Sequence[str]) -> str:
    """How the SELinux context of a mounted file system differs from that of these options, "" where it does not.

    The kernel keeps the context as long as the file system is mounted anywhere.
    """
    wanted, shown = selinux.context_of(options), entry.context
    if selinux.is_same(wanted, shown):
        return ""
    is_, asked = (f"SELinux context {context}" if context else "no SELinux context" for context in (shown, wanted))
    return f"is mounted at {entry.target} with {is_}, requested with {asked}: unpublish and unstage it there first"


def make_file(path: Path) -> None:
    """Make a file to bind-mount a device node onto, or accept the existing one.

    Raises: PreconditionError, also for a symlink in the path, HostError.
    """
    with host_errors(f"cannot make file {path}"), nofollow.parent(path) as (at, name):
        with suppress(FileExistsError):
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=at))
        mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
        raise PreconditionError(f"{path} is {'a symlink' if stat.S_ISLNK(mode) else 'a directory'}: remove it")


def publish(source: Path, target: Path, *, block: bool, readonly: bool) -> None:
    """Bind-mount source at target. Idempotent.

    Raises: AlreadyExistsError when target shows something else or differs in readonly, PreconditionError, HostError.
    """
    if mount.is_mount(target):
        _same(source, target, readonly=readonly)
        return
    make_file(target) if block else make_directory(target)
    with host_errors(f"cannot open {source}"), nofollow.opened(source) as at:
        mount.bind(nofollow.by_fd(at), target, readonly=readonly)


def _same(source: Path, target: Path, *, readonly: bool) -> None:
    with host_errors(f"cannot look at {target}"), nofollow.opened(source) as at, nofollow.opened(target) as there:
        wanted, shown = os.fstat(at), os.fstat(there)
        is_readonly = bool(os.fstatvfs(there).f_flag & _READONLY)
        forced = bool(os.fstatvfs(at).f_flag & _READONLY)
    if (wanted.st_dev, wanted.st_ino) != (shown.st_dev, shown.st_ino):
        raise AlreadyExistsError(f"{target} already shows something else: unpublish it first")
    if is_readonly != readonly and not (is_readonly and forced):
        now = "read-only" if is_readonly else "writable"
        raise AlreadyExistsError(f"{target} is already published {now}, requested readonly={readonly}")


def unpublish(target: Path) -> None:
    """Unmount all mounts at target and remove it, without following a symlink. Idempotent.

    Raises: PreconditionError while it is in use, when it holds files without being a mount, and for a symlink on the
    way, HostError.
    """
    try:
        with nofollow.parent(target) as (at, name):
            while mount.umount_in(at, target):
                pass
            found = os.stat(name, dir_fd=at, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) and found.st_size:
                raise PreconditionError(f"{target} is a file with content, which nothing of ours is: look at it")
            os.rmdir(name, dir_fd=at) if stat.S_ISDIR(found.st_mode) else os.unlink(name, dir_fd=at)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as failure:
        if failure.errno == errno.ENAMETOOLONG:
            return
        if failure.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise PreconditionError(f"{target} is neither a mount nor empty: its files stay; check them") from failure
        raise HostError(f"cannot remove {target}: {failure.strerror}") from failure


def unstage(path: Path) -> None:
    """Unmount all mounts at a staging path; the directory stays. Raises: PreconditionError while in use, HostError."""
    while mount.umount(path):
        pass


def stats(path: Path) -> Stats:
    """Usage of the file system at path.

    Raises: NotFoundError, PreconditionError for a symlink in the path, HostError.
    """
    try:
        with nofollow.opened(path) as at:
            found = os.fstatvfs(at)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"nothing is at {path}") from None
    except OSError as failure:
        raise HostError(f"cannot read the usage of {path}: {failure.strerror}") from failure
    unit = found.f_frsize
    return Stats(
        total=found.f_blocks * unit,
        used=(found.f_blocks - found.f_bfree) * unit,
        available=found.f_bavail * unit,
        inodes=found.f_files,
        inodes_used=found.f_files - found.f_ffree,
        inodes_free=found.f_ffree,
    )
