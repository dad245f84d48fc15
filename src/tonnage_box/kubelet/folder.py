"""Folders below a kubelet's root: list, make and remove them, without following symlinks. Blocking."""

from __future__ import annotations

import errno
import os

from tonnage.base.errors import HostError, PreconditionError
from tonnage.host import tree


def names(folder: str) -> list[str]:
    """Names of the entries of a folder; none when it is not there, or is no folder."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def make_folder(path: str) -> bool:
    """Make a folder with mode 0750, and those above it; False when it is there. Mostly one system call."""
    try:
        os.mkdir(path, 0o750)
    except FileExistsError:
        return False
    except FileNotFoundError:
        make_folder(os.path.dirname(path))
        return make_folder(path)
    return True


def remove_empty(path: str, *, after: str = "") -> None:
    """Remove an empty folder, a file or a symlink; never what is below. Idempotent.

    after: what should have made that possible, for the message. Raises: HostError (mounted, not empty).
    """
    try:
        try:
            os.rmdir(path)
        except NotADirectoryError:
            os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as failure:
        raise HostError(f"cannot remove {path}{after}: {failure.strerror}") from failure


def remove_tree(folder: str) -> None:
    """Remove a folder with all in it, following no symlink. Idempotent.

    Raises: HostError, and PreconditionError when something is mounted below it: what belongs to others is never
    removed.
    """
    try:
        tree.remove(folder)
    except OSError as failure:
        if failure.errno == errno.EBUSY:
            raise PreconditionError(f"{folder} is not removed: {failure.strerror}, unmount it first") from failure
        raise HostError(f"cannot remove {folder}: {failure.strerror}") from failure
