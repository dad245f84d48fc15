"""The erase queue of an LVM pool: deleted logical volumes that are being erased. Blocking."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tonnage.pools.core.wipe import EraseJob
from tonnage.pools.lvm.table import LvmTable
from tonnage.pools.lvm.tags import TagEntry, TagKind
from tonnage.pools.lvm.volumes import LogicalVolumes


class LvmErasures:
    """TagKind.ERASING of a pool: the job is in the tags, the content in the logical volume with them."""

    def __init__(self, table: LvmTable, volumes: LogicalVolumes) -> None:
        self._table, self._volumes = table, volumes

    def jobs(self) -> Sequence[EraseJob]:
        found = [entry for entry in list(self._table.entries.values()) if entry.kind is TagKind.ERASING]
        return [entry.job() for entry in sorted(found, key=lambda entry: entry.record.created)]

    def _find(self, job: EraseJob) -> tuple[str, TagEntry] | None:
        return next(
            (
                (lv, entry)
                for lv, entry in list(self._table.entries.items())
                if entry.kind is TagKind.ERASING and entry.record.uuid.hex == job.key
            ),
            None,
        )

    def path(self, job: EraseJob) -> Path:
        self._table.check_open()
        found = self._find(job)
        lv = self._volumes.set_aside(*found) if found else f"e+{job.key}"
        return Path(os.path.realpath(self._table.activate(lv)))

    def save(self, job: EraseJob) -> None:
        self._table.check_open()
        if found := self._find(job):
            lv, entry = found
            after = TagEntry(TagKind.ERASING, entry.record, job.method, job.done)
            self._table.retag(lv, entry, after)
            self._table.keep(lv, after)

    def finish(self, job: EraseJob) -> None:
        self._table.check_open()
        if found := self._find(job):
            self._volumes.remove(*found)
