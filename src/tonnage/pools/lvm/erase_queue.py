"""The erase queue of an LVM pool: deleted logical volumes that are being erased. Blocking."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tonnage.pools.core.wipe import EraseJob, EraseRecords
from tonnage.pools.lvm.tags import TagEntry, TagKind

if TYPE_CHECKING:
    from tonnage.pools.lvm.store import LvmStore


class LvmErasures(EraseRecords):
    """TagKind.ERASING of a store: the job is in the tags, the content in the logical volume with them."""

    def __init__(self, store: LvmStore) -> None:
        self._store = store

    def jobs(self) -> Sequence[EraseJob]:
        found = [entry for entry in list(self._store.entries.values()) if entry.kind is TagKind.ERASING]
        return [entry.job() for entry in sorted(found, key=lambda entry: entry.record.created)]

    def _find(self, job: EraseJob) -> tuple[str, TagEntry] | None:
        return next(
            (
                (lv, entry)
                for lv, entry in list(self._store.entries.items())
                if entry.kind is TagKind.ERASING and entry.record.uuid.hex == job.key
            ),
            None,
        )

    def path(self, job: EraseJob) -> Path:
        self._store.check_open()
        found = self._find(job)
        lv = self._store.set_aside(*found) if found else f"e+{job.key}"
        return Path(os.path.realpath(self._store.activate(lv)))

    def save(self, job: EraseJob) -> None:
        self._store.check_open()
        if found := self._find(job):
            lv, entry = found
            after = TagEntry(TagKind.ERASING, entry.record, job.method, job.done)
            self._store.retag(lv, entry, after)
            self._store.keep(lv, after)

    def finish(self, job: EraseJob) -> None:
        self._store.check_open()
        if found := self._find(job):
            self._store.remove(*found)
