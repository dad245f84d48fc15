"""Open paths without following symlinks: openat2(2) with RESOLVE_NO_SYMLINKS. Blocking.

It opens step by step where the kernel is older than 5.6 or a sandbox hides that call. It is for paths whose directories
a pod may reach: an open file cannot be exchanged for a symlink to somewhere else. A caller that trusts a symlink (a
kubelet's root may be one) resolves that part first. All descriptors are close-on-exec.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from tonnage.base.errors import PreconditionError
from tonnage.host import libc
from tonnage.host.descriptor import closing

_OPENAT2, _AT_FDCWD = 437, -100
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH, _IN_ROOT = 0x02, 0x04, 0x08, 0x10
_TRIES = 1000  # of a lookup, of which the next one succeeds even while somebody renames all the time
_ABSENT = (errno.ENOSYS, errno.EPERM)  # a sandbox returns the latter; then the steps find the cause


def open_path(path: str | os.PathLike[str], flags: int = os.O_PATH) -> int:
    """Open an absolute path. flags: as for os.open(), nothing is created.

    Raises: PreconditionError for a symlink anywhere in it, OSError.
    """
    flags |= os.O_CLOEXEC
    try:
        return _open_absolute(os.fsencode(path), flags)
    except OSError as failure:
        if failure.errno in _ABSENT:
            return _step_by_step(path, flags)
        raise _symlink(path, failure) from failure


def _open_absolute(path: bytes, flags: int) -> int:
    if not path.startswith(b"/"):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return _openat2(_AT_FDCWD, path, flags, _NO_SYMLINKS)


def _openat2(at: int, path: bytes, flags: int, resolve: int) -> int:
    if b"\0" in path:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, resolve)  # struct open_how
    for _ in range(_TRIES - 1):
        # A rename or mount anywhere on the machine, while `..` is looked up below a root, makes the kernel give up.
        with suppress(BlockingIOError):
            return libc.syscall(_OPENAT2, at, path, how, len(how))
    return libc.syscall(_OPENAT2, at, path, how, len(how))


def open_beneath(root: int, path: bytes, flags: int = os.O_PATH) -> int:
    """Open a relative path that stays beneath an open directory and has no symlink.

    flags: as for os.open(), nothing is created. Raises: OSError: ELOOP or ENOTDIR for a symlink, EXDEV for `..`.
    """
    try:
        return _openat2(root, path, flags, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)
    except OSError as failure:
        if failure.errno not in _ABSENT:
            raise
    at = os.dup(root)
    for part in path.split(b"/"):
        try:
            if part == b"..":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            inner = os.open(part or b".", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        finally:
            os.close(at)
        at = inner
        if _is_link(at):
            os.close(at)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    with closing(at):
        return os.open(f"/proc/self/fd/{at}", flags | os.O_CLOEXEC)


def open_inside(root: int, path: str) -> int:
    """Open a relative path with O_PATH; its symlinks are followed, but may not lead out of an open directory.

    Raises: OSError: EXDEV for one that does, ENOSYS on Linux before 5.6.
    """
    return _openat2(root, os.fsencode(path or "."), os.O_PATH, _BENEATH | _NO_MAGICLINKS)


def open_in_root(root: int, path: str, flags: int = os.O_PATH) -> int:
    """Open a path as a process would whose root is an open directory: symlinks are followed, but stay inside.

    Raises: OSError, ENOSYS on Linux before 5.6.
    """
    return _openat2(root, os.fsencode(path), flags, _IN_ROOT | _NO_MAGICLINKS)


def _step_by_step(path: str | os.PathLike[str], flags: int) -> int:
    parts = [part for part in os.fspath(path).split("/") if part not in ("", ".")]
    at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
            if _is_link(at):
                raise _symlink(path, OSError(errno.ELOOP, os.strerror(errno.ELOOP)))
        return os.open(f"/proc/self/fd/{at}", flags & ~os.O_NOFOLLOW)  # the very one, whatever is at its path by now
    finally:
        os.close(at)


def _is_link(fd: int) -> bool:
    """Whether a file that was opened with O_PATH is a symlink. Unlike fstat(2), this asks no file system."""
    with suppress(OSError):
        os.readlink("", dir_fd=fd)
        return True
    return False


def _symlink(path: str | os.PathLike[str], failure: OSError) -> Exception:
    if failure.errno != errno.ELOOP:
        return failure
    return PreconditionError(
        f"{os.fspath(path)} is a symlink or is behind one: nothing is mounted or removed through it"
    )


def opened(path: str | os.PathLike[str], flags: int = os.O_PATH) -> AbstractContextManager[int]:
    """open_path(), closed at the end."""
    return closing(open_path(path, flags))


@contextmanager
def parent(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Open the directory that holds path; yield it and path's name, for calls that take `dir_fd`.

    Raises: PreconditionError for a symlink on the way (path itself may be one), OSError.
    """
    folder, name = os.path.split(os.fspath(path))
    with opened(folder, os.O_PATH | os.O_DIRECTORY) as at:
        yield at, name


def by_fd(fd: int, name: str = "") -> str:
    """A path to an open file, or to a name in it, for calls that need a path: it cannot be exchanged."""
    return f"/proc/self/fd/{fd}/{name}" if name else f"/proc/self/fd/{fd}"
