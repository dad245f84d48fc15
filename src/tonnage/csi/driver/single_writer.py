"""At which targets single-writer volumes are shown (CSI: SINGLE_NODE_SINGLE_WRITER is for one target path at a time).

Remembered in the process, and after a restart read from the table of mounts. Kubernetes' scheduler holds to
ReadWriteOncePod by itself: this is the second line.
"""

from __future__ import annotations

import os
from pathlib import Path

from tonnage.errors import Precondition
from tonnage.host import mount


class SingleWriters:
    """Targets by volume, with whether the publication demands to be the only one."""

    def __init__(self) -> None:
        self._targets: dict[str, dict[Path, bool]] = {}

    def check(self, volume: str, target: Path, *, single: bool) -> None:
        """Raises Precondition when showing volume at target would break a promise of one writer."""
        for other, other_single in self._targets.get(volume, {}).items():
            if other != target and (single or other_single) and os.path.lexists(other):
                raise Precondition(f"volume {volume} is published at {other}, and its access mode allows one target")

    def check_mounts(self, volume: str, staging: Path, target: Path, *, home: Path | None = None) -> None:
        """The same for a publication that demands to be the only one, by what is mounted. Blocking.

        home: where the pool has the volume mounted for itself.

        Raises Precondition, HostError.
        """
        table = list(mount.mounts())
        staged = {(entry.device, entry.root) for entry in table if _is_in(entry.target, staging)}
        for entry in table:
            other = entry.target
            known = other in (str(target), str(home)) or _is_in(other, staging)
            if (entry.device, entry.root) in staged and not known:
                raise Precondition(f"volume {volume} is published at {other}, and its access mode allows one target")

    def add(self, volume: str, target: Path, *, single: bool) -> None:
        """Remember a publication. May be repeated."""
        self._targets.setdefault(volume, {})[target] = single

    def remove(self, volume: str, target: Path) -> None:
        """Forget a publication. May be repeated."""
        targets = self._targets.get(volume, {})
        targets.pop(target, None)
        if not targets:
            self._targets.pop(volume, None)


def _is_in(path: str, folder: Path) -> bool:
    return path == str(folder) or path.startswith(f"{folder}/")
