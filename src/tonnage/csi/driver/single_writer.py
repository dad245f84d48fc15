"""Enforces SINGLE_NODE_SINGLE_WRITER: one target path at a time for a single-writer volume.

Publications are recorded in the process, and after a restart read from the mount table. Kubernetes' scheduler enforces
ReadWriteOncePod by itself; this is the second line of defense.
"""

from __future__ import annotations

import os
from pathlib import Path

from tonnage.base.errors import PreconditionError
from tonnage.host import mount


class SingleWriters:
    """Targets by volume, with whether the publication must be the only one."""

    def __init__(self) -> None:
        self._targets: dict[str, dict[Path, bool]] = {}

    def check(self, volume: str, target: Path, *, single: bool) -> None:
        """Raises: PreconditionError when publishing the volume at target would violate a single-writer publication."""
        for other, other_single in self._targets.get(volume, {}).items():
            if other != target and (single or other_single) and (mount.is_mount(other) or os.path.lexists(other)):
                raise _published(volume, other)

    def check_mounts(self, volume: str, staging: Path, target: Path, *, home: Path | None = None) -> None:
        """The same for a publication that must be the only one, by the mount table. Blocking.

        home: where the pool itself has the volume mounted. Raises: PreconditionError, HostError.
        """
        table = list(mount.mounts())
        staged = {(entry.device, entry.root) for entry in table if _is_in(entry.target, staging)}
        for entry in table:
            other = entry.target
            known = other in (str(target), str(home)) or _is_in(other, staging)
            if (entry.device, entry.root) in staged and not known:
                raise _published(volume, other)

    def add(self, volume: str, target: Path, *, single: bool) -> None:
        """Record a publication. Idempotent."""
        self._targets.setdefault(volume, {})[target] = single

    def remove(self, volume: str, target: Path) -> None:
        """Remove a publication. Idempotent."""
        targets = self._targets.get(volume, {})
        targets.pop(target, None)
        if not targets:
            self._targets.pop(volume, None)


def _published(volume: str, other: Path | str) -> PreconditionError:
    return PreconditionError(f"volume {volume} is published at {other}, and its access mode allows one target")


def _is_in(path: str, folder: Path) -> bool:
    return path == str(folder) or path.startswith(f"{folder}/")
