"""File systems that stop answering while mounted: reported, unmounted, and repaired by the next mount. Blocking.

XFS shuts down after an error of its disk, ext4 when its disk goes away; a FUSE file system ends with its server. From
then on all use fails. Unmounting works, and mounting again replays the log.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from tonnage.base.errors import HostError, PreconditionError
from tonnage.host import mount, selinux
from tonnage.storage.pools.fs import mounts

log = logging.getLogger(__name__)
REMEDY = "look at the kernel's log, then delete the pods that use it: the next stage mounts it again, which repairs it"


def error_of(path: Path) -> str:
    """The kernel's error for any use of the file system at path, "" for one that answers, or that is not there."""
    try:
        os.stat(path / ".")
    except (FileNotFoundError, PermissionError):  # a server of FUSE may reject root
        return ""
    except OSError as failure:
        return failure.strerror or str(failure)
    return known_error(path)


def known_error(path: Path) -> str:
    """The same as far as the kernel knows it by itself, so that no disk or server that hangs is waited for."""
    try:
        is_down = "shutdown" in mount.filesystem_options(path)  # ext4 still answers from memory
    except (FileNotFoundError, PermissionError):
        return ""
    except OSError as failure:
        return failure.strerror or str(failure)
    return os.strerror(errno.EIO) if is_down else ""


def check_answers(volume: str, path: Path, what: str) -> None:
    """Raises: HostError where a volume's file system at path does not answer. what: "cannot be <done>"."""
    if error := error_of(path):
        raise HostError(f"volume {volume}: {what}: its file system at {path} answers {error!r}; {REMEDY}")


class ShutDowns:
    """The volumes of a pool whose file system was found shut down, until it is mounted again."""

    def __init__(self) -> None:
        self._errors: dict[str, str] = {}

    def release(self, volume: str, path: Path, *, home: Path | None = None) -> bool:
        """Unmount a staged file system that has shut down, so that it can be mounted again; False for one that answers.

        home: where the machine has it mounted, not for a pod. Raises: PreconditionError while it is mounted elsewhere
        too: another mount of it would show the same. HostError.
        """
        if not (error := error_of(path)):
            return False
        here = {str(path), str(home)}
        entry = mount.at(path)
        others = [] if entry is None else [e.target for e in mount.mounts() if e.device == entry.device]
        if used := sorted(set(others) - here):
            raise PreconditionError(
                f"volume {volume}: cannot be mounted again: its file system answers {error!r} and is in use at"
                f" {used[0]}; {REMEDY}"
            )
        self._note(volume, path, error)
        mounts.unstage(path)
        return True

    def unstaged(self, volume: str, path: Path) -> None:
        """Note a file system that is about to be unmounted, if it has shut down."""
        if mount.is_mount(path) and (error := known_error(path)):
            self._note(volume, path, error)

    def _note(self, volume: str, path: Path, error: str) -> None:
        self._errors[volume] = error
        log.warning(
            "file system does not answer, the next stage mounts it again, which repairs it volume=%s path=%s error=%s",
            volume, path, error,
        )  # fmt: skip

    def staged(self, volume: str, path: Path) -> None:
        """Check a file system that was just mounted; one that still does not answer is unmounted.

        Raises: PreconditionError then: something that this process cannot see has it mounted.
        """
        if error := error_of(path):
            mounts.unstage(path)
            raise PreconditionError(
                f"volume {volume}: cannot be staged: its file system answers {error!r} also when it is mounted again;"
                " look at the kernel's log and at its disk; if that is well, a container or mount namespace of the"
                " machine still has it mounted: end it"
            )
        if error := self._errors.pop(volume, ""):
            log.warning(
                "file system repaired by mounting it, its log is replayed volume=%s former_error=%s", volume, error
            )


def options_of(path: Path) -> Sequence[str] | None:
    """The options to stage a volume with again whose file system at path has shut down, None for one that answers.

    Raises: HostError.
    """
    if not error_of(path) or (entry := mount.at(path)) is None:
        return None
    own = [option for option in entry.options.split(",") if option in mount.BIND_OPTIONS]
    return [*own, selinux.option_of(entry.context)] if entry.context else own
