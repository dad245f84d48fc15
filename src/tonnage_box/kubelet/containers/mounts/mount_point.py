"""Mount points and other places below an open root: found, and made where they are missing.

A symlink may be anywhere and lead anywhere, and another container of the pod may exchange parts of a shared volume at
any moment. So each step is resolved by the kernel as in a chroot (openat2 with RESOLVE_IN_ROOT), and what is missing is
made by its name in an open directory. Nothing outside of the root is ever opened. Blocking; needs Linux 5.6.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from tonnage.base.errors import HostError, InvalidError, ignore_errno
from tonnage.host import nofollow
from tonnage.host.descriptor import closing

NEEDS = "containers need Linux 5.12 or later (openat2, mount_setattr)"
_MAX_LINKS = 40
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
Make = Callable[[str, str, int], None]
"""Makes something below a real path that is there: its name, and its kind, stat.S_IFDIR or stat.S_IFREG."""


def real_path(root: int, path: str) -> str:
    """The real path of an absolute path inside root, an open directory. What is missing stays as it is.

    Raises: OSError.
    """
    return _walk(root, path, None, folder=True)


def place(root: int, path: str, *, folder: bool, make: Make | None = None) -> str:
    """As real_path(), but what is missing is made: folders, and at the end a folder or an empty file.

    What a symlink leads to is made too. make: for places that need more than mkdir(2). Raises: InvalidError (something
    else is there), OSError.
    """
    return _walk(root, path, make or (lambda *what: create(root, *what)), folder=folder)


def _walk(root: int, path: str, make: Make | None, *, folder: bool, links: int = 0) -> str:
    done, parts = "/", [part for part in path.split("/") if part]
    for number, part in enumerate(parts, 1):
        candidate, wants_folder = os.path.join(done, part), folder or number < len(parts)
        try:
            fd = in_root(root, candidate)
        except OSError as failure:
            if failure.errno not in _NOWHERE:
                raise
            target = _link(root, done, part) if links < _MAX_LINKS else ""
            if target:
                return _walk(root, "/".join([target, *parts[number:]]), make, folder=folder, links=links + 1)
            if make is None:
                return os.path.join(done, *parts[number - 1 :])
            if failure.errno != errno.ENOENT:
                raise InvalidError(f"path {candidate!r} leads nowhere: {failure.strerror}; choose another") from failure
            make(done, part, stat.S_IFDIR if wants_folder else stat.S_IFREG)
            fd = _made(root, candidate)
        with closing(fd):
            if make is not None and stat.S_ISDIR(os.fstat(fd).st_mode) != wants_folder:
                is_what = "no folder" if wants_folder else "a folder"
                raise InvalidError(f"path {candidate!r} is {is_what}; choose another")
            done = path_of(root, fd)
    return done


def _made(root: int, path: str) -> int:
    try:
        return in_root(root, path)
    except OSError as failure:
        if failure.errno not in _NOWHERE:
            raise
        raise InvalidError(f"path {path!r} leads nowhere: {failure.strerror}; choose another") from failure


def create(root: int, folder: str, name: str, kind: int) -> None:
    """Make a folder or an empty file, root's, in a folder inside root. Idempotent. Raises: OSError.

    kind: stat.S_IFDIR or stat.S_IFREG.
    """
    with closing(in_root(root, folder)) as parent, ignore_errno(errno.EEXIST):
        if kind == stat.S_IFDIR:
            os.mkdir(name, 0o755, dir_fd=parent)
        else:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=parent))


def _link(root: int, folder: str, name: str) -> str:
    """Where a symlink leads, as an absolute path; "" if it is none."""
    with closing(in_root(root, folder)) as parent, ignore_errno(errno.EINVAL, errno.ENOENT):
        return os.path.normpath(os.path.join("/", folder, os.readlink(name, dir_fd=parent)))
    return ""


def in_root(root: int, path: str) -> int:
    """Open a path inside root with O_PATH. Raises: OSError, HostError."""
    try:
        return nofollow.open_in_root(root, path)
    except OSError as failure:
        if failure.errno == errno.ENOSYS:
            raise HostError(NEEDS) from failure
        raise


def path_of(root: int, fd: int) -> str:
    """The path of an open file inside root."""
    base, path = (os.readlink(nofollow.by_fd(one)) for one in (root, fd))
    return path[len(base.rstrip("/")) :] or "/"
