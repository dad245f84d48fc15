"""Validation of staging and target paths from callers.

A path with a symlink is rejected: a pod may have chosen where it leads. Only the path to a root (the kubelet's
directory, named by the operator) may have symlinks. This check reports errors early. Mounting and removing follow no
symlink either, so a directory that is exchanged later does no harm.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from tonnage.base.errors import InvalidError, NotFoundError, PreconditionError, host_errors, ignore_errno
from tonnage.csi.server.limits import check_path
from tonnage.host import nofollow

_LONGEST_NAME = 255
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class Places:
    """Allowed locations of callers' paths: beneath one of roots, anywhere when there is none."""

    def __init__(self, roots: Sequence[Path] = ()) -> None:
        self._roots = tuple(roots)

    def path(self, field: str, text: str) -> Path:
        """The path in a request's field, with symlinks on the way to its root resolved.

        Raises: InvalidError when it is not absolute or beneath no root.
        """
        path = self._beneath(Path(check_path(field, text)))
        if path is None:
            raise InvalidError(f"{field} {text[:200]!r}: want a path beneath {' or '.join(map(str, self._roots))}")
        return path

    def shown(self, text: str) -> Path:
        """The path in a request's volume_path.

        Raises: InvalidError when it is missing, PreconditionError for a symlink in it, and NotFoundError when no volume
        is there (CSI, NodeGetVolumeStats and NodeExpandVolume).
        """
        if not text:
            raise InvalidError("volume_path is missing")
        path = self._beneath(Path(check_path("volume_path", text))) if text.startswith("/") else None
        if path is None or not _is_there(path):
            raise NotFoundError(f"nothing is at volume_path {text[:200]!r}")
        return path

    def _beneath(self, path: Path) -> Path | None:
        """The path with the root's real path; None when it is beneath none."""
        for root in self._roots:
            real = Path(os.path.realpath(root))
            for start in (root, real):
                if path != start and path.is_relative_to(start):
                    return real / path.relative_to(start)
        return None if self._roots else path


def check_parent(target: Path) -> None:
    """Check the parent directory of target, which the caller must create.

    Raises: PreconditionError when it is missing or there is a symlink on the way to it, InvalidError when no file can
    have that name.
    """
    if len(os.fsencode(target.name)) > _LONGEST_NAME:
        raise InvalidError(f"{target.name[:40]!r}...: a file's name has at most {_LONGEST_NAME} bytes")
    if not _is_there(target.parent, os.O_PATH | os.O_DIRECTORY):
        raise PreconditionError(
            f"{target.parent} does not exist: the caller makes the folder that holds the target path"
        )


def reject_links(*paths: Path) -> None:
    """Raises: PreconditionError when there is a symlink in one of the paths, dangling or not."""
    for path in paths:
        _is_there(path)


def _is_there(path: Path, flags: int = os.O_PATH) -> bool:
    """Whether a path exists. Raises: PreconditionError for a symlink in it, HostError."""
    with host_errors(f"cannot open {path}"), ignore_errno(*_ABSENT):
        os.close(nofollow.open_path(path, flags))
        return True
    return False
