"""Volumes whose data was deleted while their PersistentVolume stays: a file for each, with the reason.

A volume is marked before its data is deleted, so after a kill nothing uses it again, and the deletion is repeated. The
file exists until DeleteVolume; whatever a power cut left of its text, its name is what counts.
"""

from __future__ import annotations

import os
from pathlib import Path

from tonnage.base.errors import PreconditionError, host_errors
from tonnage.host import files

FOLDER = "reclaimed"
"""Folder of the driver's state that holds the files, one folder for each pool."""
_UNREADABLE = "its data was deleted because its pod has finished"
_LONGEST = 1024  # characters


class Reclaimed:
    """The reclaimed volumes of one driver. All methods block for one small file, and raise HostError.

    state: the driver's own directory.
    """

    def __init__(self, state: Path) -> None:
        self._state = state

    def _file(self, pool: str, name: str) -> Path:
        return self._state / FOLDER / pool / name

    def why(self, pool: str, name: str) -> str:
        """Why a volume was reclaimed, "" while it was not."""
        with host_errors(f"cannot see whether volume {name} was reclaimed"):
            try:
                return self._file(pool, name).read_text(errors="replace").strip() or _UNREADABLE
            except FileNotFoundError:
                return ""

    def check(self, pool: str, name: str) -> None:
        """Raises: PreconditionError with the reason for a reclaimed volume."""
        if why := self.why(pool, name):
            raise PreconditionError(f"volume {pool}/{name} has no data any more: {why}")

    def add(self, pool: str, name: str, why: str) -> None:
        """Mark a volume; durable. Idempotent: the first reason stays."""
        file = self._file(pool, name)
        with host_errors(f"cannot mark volume {name} as reclaimed"):
            for folder in (self._state, file.parent.parent, file.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(file, "a", encoding="utf-8") as text:
                if not text.tell():
                    text.write(why[:_LONGEST])
                    text.flush()
                os.fsync(text.fileno())
            for folder in (file.parent, file.parent.parent, self._state):
                files.sync(folder)

    def remove(self, pool: str, name: str) -> None:
        """Forget a volume, which is deleted. Idempotent."""
        with host_errors(f"cannot forget volume {name}"):
            self._file(pool, name).unlink(missing_ok=True)
