"""Unix sockets that only their owner may connect to, replaced safely after a process died."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tonnage.base.errors import InvalidError, PreconditionError, host_errors
from tonnage.base.option import Option
from tonnage.host.descriptor import opened

LONGEST_PATH = 107
"""Maximum bytes of a unix socket's path on Linux."""


def socket_path(text: str) -> Path:
    """Return the path of a CSI endpoint such as `unix:///run/csi.sock`.

    `unix:/run/csi.sock` and a plain absolute path are accepted too.

    Raises: InvalidError.
    """
    path = text.removeprefix("unix:")
    if path.startswith("//"):
        path = path[2:]
    if not path.startswith("/") or "\0" in path or path.endswith("/"):
        raise InvalidError(
            f"endpoint {text[:120]!r}: want a unix socket with an absolute path, as unix:///run/csi.sock"
        )
    check_length(Path(path))
    return Path(path)


ENDPOINT = Option(
    "where to listen (default: $CSI_ENDPOINT)", "unix:///DIR/csi.sock", environ="CSI_ENDPOINT", parse=socket_path
)
"""The option of a driver that runs by itself."""


def bind_private(path: Path) -> socket.socket:
    """A listening socket at path, mode 0600; its directory is made with 0700 if missing.

    It is bound under a temporary name and renamed, so it is never visible without listening or with other permissions.
    A socket left by a dead process is replaced. Raises: InvalidError (path too long, something else is there),
    PreconditionError (a live process answers there), HostError.
    """
    check_length(path)
    with host_errors(f"cannot make the socket {path}"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path.parent):
            _reject_taken(path)
            return _bind(path)


def check_length(path: Path) -> None:
    """Raises: InvalidError when no unix socket can have this path."""
    if (size := len(os.fsencode(path))) > LONGEST_PATH:
        raise InvalidError(f"socket path {path} has {size} bytes, Linux takes {LONGEST_PATH}: choose a shorter folder")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Serialize processes that bind the same socket."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as at:
        fcntl.flock(at, fcntl.LOCK_EX)
        yield


def _reject_taken(path: Path) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidError(f"{path} exists and is not a socket: it is left alone, remove it or choose another path")
    if _answers(path):
        raise PreconditionError(f"another process serves {path}: stop it or choose another path")


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # EAGAIN means a full backlog: a live process listens.
        return probe.connect_ex(os.fspath(path)) in {0, errno.EAGAIN}


def _bind(path: Path) -> socket.socket:
    # The dot keeps a kubelet, which watches the folder of registration sockets, from looking at the unfinished one.
    # It is named after the socket, so that what a killed process left is found and replaced by its successor.
    beside = path.with_name(f".{zlib.crc32(os.fsencode(path.name)):08x}")
    beside.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(os.fspath(beside))
        os.chmod(beside, 0o600)
        made.listen()
        made.setblocking(False)
        os.rename(beside, path)
    except BaseException:
        made.close()
        beside.unlink(missing_ok=True)
        raise
    return made


def inode_of(path: Path) -> int:
    """Inode at path, 0 for none."""
    with suppress(OSError):
        return os.lstat(path).st_ino
    return 0


def remove_if_same(path: Path, inode: int) -> None:
    """Remove path if it still has that inode: a successor's socket is left alone."""
    if inode and inode_of(path) == inode:
        path.unlink(missing_ok=True)
