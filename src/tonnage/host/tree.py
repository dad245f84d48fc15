"""Walk and remove untrusted directory trees, of any depth and size. Blocking.

Nothing here follows a symlink or enters a mount. The number of open files does not grow with the depth of the tree, as
it would with os.fwalk() and shutil.rmtree(), which also recurse.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tonnage.base.errors import ignore_errno
from tonnage.host import btrfs, libc, obstacles
from tonnage.host.descriptor import closing, opened

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_EMPTY_PATH, _STATX_ATTR_MOUNT_ROOT = 0x1000, 0x2000
_REJECTIONS = (errno.EPERM, errno.EROFS)
_MOST_FILES = 1000  # looked at for their cached pages: large files have most of them
_DEEPEST = 64  # levels that are entered; deeper ones are moved up first


@dataclass
class _Level:
    """A directory on the way down. identity: device and inode; folders: subdirectories still to enter."""

    name: str
    identity: tuple[int, int]
    folders: list[str] = field(default_factory=list)


def below(root: str | os.PathLike[str]) -> Iterator[tuple[str, int]]:
    """Everything below a directory, its content before the directory itself: names with their open parent.

    Directories that vanish meanwhile are skipped. Raises: OSError, ESTALE when a directory is moved meanwhile.
    """
    at = os.open(root, _FOLDER)
    try:
        levels = [_Level("", _identity(at))]
        yield from _others(at, levels[0])
        while True:
            if (name := _pop(levels[-1].folders)) is not None:
                try:
                    inner = os.open(name, _FOLDER, dir_fd=at)
                except OSError as failure:
                    if failure.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                        continue
                    raise
                os.close(at)
                at = inner
                levels.append(_Level(name, _identity(at)))
                yield from _others(at, levels[-1])
                continue
            done = levels.pop()
            if not levels:
                return
            at = _up(at, levels[-1])
            yield done.name, at
    finally:
        os.close(at)


def drop_cache(path: str | os.PathLike[str]) -> None:
    """Drop the cached pages of a file, or of the first files of a directory; those to be written stay. Never fails.

    Pages that are still cached make the removal of a file slow: about 0.2 s for 1 GiB.
    """
    with suppress(OSError), opened(path, os.O_PATH | os.O_NOFOLLOW) as fd:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            _drop_file(fd)
            return
        for name, at in itertools.islice(below(path), _MOST_FILES):
            with suppress(OSError), opened(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=at) as inner:
                _drop_file(inner)


def _drop_file(fd: int) -> None:
    if stat.S_ISREG(os.fstat(fd).st_mode):  # a device of a pod is never opened
        with opened(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK) as readable:
            os.posix_fadvise(readable, 0, 0, os.POSIX_FADV_DONTNEED)


def _pop(names: list[str]) -> str | None:
    return names.pop() if names else None


def _others(at: int, level: _Level) -> Iterator[tuple[str, int]]:
    with os.scandir(at) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                level.folders.append(entry.name)
            else:
                yield entry.name, at


def _up(at: int, level: _Level) -> int:
    """Open the parent directory, which must be the one that we came from; closes at."""
    above = os.open("..", _FOLDER, dir_fd=at)
    if _identity(above) != level.identity:
        os.close(above)
        raise OSError(errno.ESTALE, "a folder was moved while its tree was walked")
    os.close(at)
    return above


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def remove(path: str | os.PathLike[str], *, keep: str = "") -> None:
    """Remove a directory tree; success when it is not there. Idempotent.

    keep: name of an entry to remove last, so an interrupted removal is still recognized. Raises: OSError, EBUSY for a
    mount in the tree, which then stays untouched.
    """
    try:
        top = os.open(path, _FOLDER)
    except FileNotFoundError:
        return
    with closing(top):
        _reject_mount(top, Path(path))
        _empty_top(top, Path(path), keep)
        if keep:
            with suppress(FileNotFoundError):
                os.unlink(keep, dir_fd=top)
    with suppress(FileNotFoundError):
        os.rmdir(path)


def empty(path: str | os.PathLike[str]) -> None:
    """Remove all content of a directory, which may itself be a mount. Idempotent.

    Raises: OSError, EBUSY for a mount below it, of which nothing is touched.
    """
    with opened(path, _FOLDER) as top:
        _empty_top(top, Path(path), "")


def _reject_mount(fd: int, path: Path) -> None:
    attributes = struct.unpack_from("=Q", libc.statx(fd, b"", _AT_EMPTY_PATH, 0), 8)[0]
    if attributes & _STATX_ATTR_MOUNT_ROOT:
        raise OSError(errno.EBUSY, f"{path} is a mount")


def _empty_top(top: int, path: Path, keep: str) -> None:
    try:
        _empty(top, top, path, 0, keep)
    except OSError as failure:
        if failure.errno != errno.EROFS or not _is_subvolume(top):
            raise
        obstacles.clear(top)
        _empty(top, top, path, 0, keep)


def _empty(at: int, top: int, path: Path, depth: int, keep: str) -> None:
    """Remove all content of an open directory, repeating until it is empty: deep directories are moved up."""
    found = True
    while found:
        found = False
        with os.scandir(at) as entries:
            for entry in entries:
                if depth == 0 and entry.name == keep:
                    continue
                found = True
                with suppress(FileNotFoundError):
                    if not entry.is_dir(follow_symlinks=False):
                        _insist(os.unlink, entry.name, at)
                    elif depth < _DEEPEST:
                        _remove_folder(entry.name, at, top, path / entry.name, depth)
                    else:
                        _lift(entry.name, at, top)


def _insist(remove: Callable[..., None], name: str, at: int, *, rejections: tuple[int, ...] = (errno.EPERM,)) -> None:
    """Remove an entry, clearing flags that its owner has set against that. Raises: OSError."""
    try:
        remove(name, dir_fd=at)
    except OSError as failure:
        if failure.errno not in rejections:
            raise
        obstacles.clear(at)
        obstacles.clear_entry(name, at)
        remove(name, dir_fd=at)


def _remove_folder(name: str, at: int, top: int, path: Path, depth: int) -> None:
    with opened(name, _FOLDER, dir_fd=at) as fd:
        try:
            _reject_mount(fd, path)
            _empty(fd, top, path, depth + 1, "")
        except OSError as failure:
            if failure.errno != errno.EROFS or not _is_subvolume(fd):
                raise
            remove_subvolume(at, name)  # a snapshot is deleted as a whole
            return
    _insist(os.rmdir, name, at)


def _is_subvolume(fd: int) -> bool:
    return os.fstat(fd).st_ino == btrfs.FIRST_INODE and btrfs.fsid(fd) is not None


def remove_subvolume(at: int, name: str) -> None:
    """Delete a btrfs subvolume with those inside it, also read-only or immutable ones.

    at: the open directory that holds it, which is unchanged. Raises: OSError, FileNotFoundError when it is not there.
    """
    with ignore_errno(errno.ENOTEMPTY, *_REJECTIONS):
        btrfs.delete(at, name)
        return
    obstacles.clear_entry(name, at)
    with opened(name, _FOLDER, dir_fd=at) as fd:
        for inner, folder in below(f"/proc/self/fd/{fd}/."):
            found = os.stat(inner, dir_fd=folder, follow_symlinks=False)
            if found.st_ino == btrfs.FIRST_INODE and stat.S_ISDIR(found.st_mode):
                _insist(_delete, inner, folder, rejections=_REJECTIONS)
    btrfs.delete(at, name)


def _delete(name: str, *, dir_fd: int) -> None:
    btrfs.delete(dir_fd, name)


def _move(target: str, top: int, name: str, *, dir_fd: int) -> None:
    os.rename(name, target, src_dir_fd=dir_fd, dst_dir_fd=top)


def _lift(name: str, at: int, top: int) -> None:
    """Move a directory up to the top, under a name that is free there."""
    for number in itertools.count():
        with ignore_errno(errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            _insist(partial(_move, f".deep-{number}", top), name, at)
            return
