"""subPath: one part of a volume as its own mount, safe against symlinks that pods create.

The kernel resolves the path so that it cannot leave the volume (openat2 with RESOLVE_BENEATH). The result is bound by
its descriptor to a path that only the kubelet can change, and the container gets that path.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tonnage.base.errors import HostError, InvalidError
from tonnage.host import mount as mounts
from tonnage.host.descriptor import closing
from tonnage.host.encoding import encode
from tonnage.host.nofollow import open_inside
from tonnage_box.kubelet.folder import names, remove_empty

_FOLDER_MODE = 0o755
_LEVELS = 3  # below the pod's folder of subPaths: volume, container, index of the mount


def check(path: str) -> str:
    """A relative path without `..`. Raises: InvalidError."""
    encode(path, "subPath")
    if path.startswith("/") or ".." in path.split("/"):
        raise InvalidError(f"subPath {path[:80]!r}: want a relative path without '..'")
    return path


@contextmanager
def opened(volume: str, path: str) -> Iterator[int]:
    """Open what path means inside volume; missing folders are made.

    Raises: InvalidError (it leads outside), HostError.
    """
    with closing(_open(volume)) as root, closing(_beneath(root, volume, check(path))) as fd:
        yield fd


def _open(volume: str) -> int:
    try:
        return os.open(volume, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as failure:
        raise HostError(f"cannot open volume {volume}: {failure.strerror}") from failure


def _beneath(root: int, volume: str, path: str) -> int:
    try:
        return open_inside(root, path)
    except OSError as failure:
        if failure.errno != errno.ENOENT:
            raise _rejection(failure, volume, path) from failure
    try:
        _make(root, path)
        return open_inside(root, path)
    except OSError as failure:
        raise _rejection(failure, volume, path) from failure


def _rejection(failure: OSError, volume: str, path: str) -> HostError | InvalidError:
    if failure.errno in (errno.EXDEV, errno.ELOOP):
        return InvalidError(f"subPath {path!r} leads out of its volume by a symlink: it is not mounted")
    if failure.errno == errno.ENOSYS:
        return HostError("subPath needs Linux 5.6 or later (openat2)")
    return HostError(f"cannot open subPath {path!r} of {volume}: {failure.strerror}")


def _make(root: int, path: str) -> None:
    """Make the missing folders of path, each below the descriptor of the last, so that nothing is made elsewhere."""
    at = os.dup(root)
    try:
        done = ""
        for part in path.split("/"):
            done = f"{done}/{part}" if done else part
            if part in ("", "."):
                continue
            with suppress(FileExistsError):
                os.mkdir(part, _FOLDER_MODE, dir_fd=at)
            following = open_inside(root, done)
            os.close(at)
            at = following
    finally:
        os.close(at)


def bind(volume: str, path: str, target: str, *, read_only: bool) -> str:
    """Bind-mount path inside volume at target, which is created; returns target. Idempotent."""
    if mounts.is_mount(target):
        return target
    with opened(volume, path) as fd:
        try:
            os.makedirs(os.path.dirname(target), mode=0o750, exist_ok=True)
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                os.makedirs(target, mode=0o750, exist_ok=True)
            else:
                os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        except OSError as failure:
            raise HostError(f"cannot make {target}: {failure.strerror}") from failure
        mounts.bind(f"/proc/self/fd/{fd}", target, readonly=read_only)
    return target


def remove(folder: str) -> None:
    """Take away all that bind() made below folder. Raises: PreconditionError (in use), HostError.

    What is mounted is unmounted before anything is listed, and only `<folder>/<volume>/<container>/<index>` is looked
    at: this never sees, let alone removes, what is in a volume.
    """
    _remove(folder, _LEVELS)


def _remove(path: str, levels: int) -> None:
    while mounts.umount(path):
        continue
    for name in names(path) if levels else ():
        _remove(f"{path}/{name}", levels - 1)
    remove_empty(path)
