"""The paths that callers name for staging and publishing: they must be what they seem, and lie where they may.

A path is taken when no symlink is in it: what it leads to may have been chosen by a pod. Only the way to a root (the
kubelet's folder, named by the operator) may have symlinks. This is the edge, which says early what is wrong; that
nobody exchanges a folder later is seen to where things are mounted and removed (host/nofollow.py).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from tonnage.csi.server.limits import check_path
from tonnage.errors import HostError, Invalid, NotFound, Precondition
from tonnage.host import nofollow

_LONGEST_NAME = 255
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class Places:
    """Where callers may have their paths: beneath one of roots, anywhere when there is none."""

    def __init__(self, roots: Sequence[Path] = ()) -> None:
        self._roots = tuple(roots)

    def path(self, field: str, text: str) -> Path:
        """The path in a request's field, with the symlinks on the way to its root resolved.

        Raises Invalid when it is no absolute path or lies beneath no root.
        """
        path = self._beneath(Path(check_path(field, text)))
        if path is None:
            raise Invalid(f"{field} {text[:200]!r}: want a path beneath {' or '.join(map(str, self._roots))}")
        return path

    def shown(self, text: str) -> Path:
        """The path in a request's volume_path.

        Raises Invalid when it is missing, Precondition for a symlink in it, and NotFound when nothing is there (CSI,
        NodeGetVolumeStats and NodeExpandVolume), which holds as well for all that is no place of a volume.
        """
        if not text:
            raise Invalid("volume_path is missing")
        path = self._beneath(Path(check_path("volume_path", text))) if text.startswith("/") else None
        if path is None or not _is_there(path):
            raise NotFound(f"nothing is at volume_path {text[:200]!r}")
        return path

    def _beneath(self, path: Path) -> Path | None:
        """The path from the root's real one on; None when it is beneath none."""
        for root in self._roots:
            real = Path(os.path.realpath(root))
            for start in (root, real):
                if path != start and path.is_relative_to(start):
                    return real / path.relative_to(start)
        return None if self._roots else path


def check_parent(target: Path) -> None:
    """Raises Precondition when the folder that shall hold target is missing, making it is the caller's part, or when
    there is a symlink on the way to it. Invalid when no file can have that name."""
    if len(os.fsencode(target.name)) > _LONGEST_NAME:
        raise Invalid(f"{target.name[:40]!r}...: a file's name has at most {_LONGEST_NAME} bytes")
    if not _is_there(target.parent, os.O_PATH | os.O_DIRECTORY):
        raise Precondition(f"{target.parent} is not there: the caller makes the folder that holds the target path")


def refuse_links(*paths: Path) -> None:
    """Raises Precondition when there is a symlink in one of the paths, whether or not it leads to something."""
    for path in paths:
        _is_there(path)


def _is_there(path: Path, flags: int = os.O_PATH) -> bool:
    """Whether something is at a path. Raises Precondition for a symlink in it, HostError."""
    try:
        os.close(nofollow.open_path(path, flags))
    except OSError as failure:
        if failure.errno in _ABSENT:
            return False
        raise HostError(f"cannot open {path}: {failure.strerror}") from failure
    return True
