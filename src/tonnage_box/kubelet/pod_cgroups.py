"""Cgroups of the pods of our own kubelet: made, and limited in their processes.

In v1 processes are counted in a hierarchy of their own. Blocking, but only a few system calls each.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tonnage.base.errors import UnsupportedError
from tonnage.host.iolimits import OWN, UID, Cgroup, Cgroups

_TRIES = 10


@dataclass(frozen=True)
class PodCgroup(Cgroup):
    """The cgroup of a pod. pids: in v1, that of the hierarchy that counts processes."""

    pids: Path | None = None

    def add(self, pid: int) -> None:
        """Add a process to the cgroup. Raises: OSError."""
        if self.pids is not None and self.pids.is_dir():
            (self.pids / "cgroup.procs").write_text(str(pid))
        (self.path / "cgroup.procs").write_text(str(pid))

    def limit_processes(self, most: int) -> None:
        """Let it have at most so many processes and threads. Idempotent. Raises: OSError."""
        if self.pids is None:
            for above in (self.path.parent.parent, self.path.parent):
                _enable(above, "pids")
            (self.path / "pids.max").write_text(str(most))
            return
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):  # as in make_pod()
                self.pids.mkdir(parents=True, exist_ok=True)
                (self.pids / "pids.max").write_text(str(most))
                return
        raise _absent(self.pids)


class PodCgroups(Cgroups):
    """The cgroups of our pods."""

    def make_pod(self, uid: str) -> PodCgroup:
        """Make the cgroup of a pod of our own kubelet. Idempotent. Raises: UnsupportedError, OSError."""
        group = self._ours(uid)
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):  # remove_pod() takes the last pod's parent along
                if group.v2:
                    _enable(group.path.parent.parent, "io")
                group.path.parent.mkdir(exist_ok=True)
                if group.v2:
                    _enable(group.path.parent, "io")
                group.path.mkdir(exist_ok=True)
                return group
        raise _absent(group.path)

    def own_pod(self, uid: str) -> PodCgroup | None:
        """The cgroup of make_pod(), None where there is none."""
        with suppress(UnsupportedError):
            group = self._ours(uid)
            return group if group.path.is_dir() else None
        return None

    def remove_pod(self, uid: str) -> None:
        """Remove the cgroup of make_pod(); success without one. Raises: OSError while processes are in it."""
        if (group := self.own_pod(uid)) is None:
            return
        for path in (group.path,) if group.pids is None else (group.pids, group.path):
            with suppress(FileNotFoundError):
                os.rmdir(path)
            with suppress(OSError):  # other pods are in it
                os.rmdir(path.parent)

    def _ours(self, uid: str) -> PodCgroup:
        if not UID.fullmatch(uid):
            raise UnsupportedError(f"pod uid {uid[:64]!r} cannot name a cgroup")
        top, name = self.top(), f"{OWN}/pod{uid}"
        apart = self.root / "pids"
        return PodCgroup(top.path / name, top.v2, apart / name if (apart / "cgroup.procs").exists() else None)


def _absent(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _enable(group: Path, controller: str) -> None:
    control = group / "cgroup.subtree_control"
    if controller not in control.read_text().split():
        control.write_text(f"+{controller}")
