"""Recovery of a volume group from a kill: half-made volumes, devices that are suspended or too small. Blocking.

LVM suspends a device while it changes what is under it. A kill in between leaves it suspended: all reads and writes
wait forever. A kill a little earlier leaves a device that is smaller than its logical volume.
"""

from __future__ import annotations

import dataclasses
import logging
import os

from tonnage.errors import TonnageError
from tonnage.host import dm, loop, lvm
from tonnage.pools.base.record import FORMAT, upgraded
from tonnage.pools.fs import block_device
from tonnage.pools.lvm.table import LvmTable
from tonnage.pools.lvm.tags import TagEntry, TagKind
from tonnage.pools.lvm.volumes import LogicalVolumes

log = logging.getLogger(__name__)


class LvmRecovery:
    """What an opened pool finishes or undoes."""

    def __init__(self, table: LvmTable, volumes: LogicalVolumes) -> None:
        self._table, self._volumes = table, volumes

    def run(self) -> None:
        """Recover all that a kill interrupted, once the group and its thin pool are known. Raises HostError."""
        for lv, entry in list(self._table.entries.items()):
            self._recover(lv, entry)
        self._upgrade()
        self._wake()
        for name in list(self._table.records.volumes):
            self._part(self._table.lv(name))
        self._complete()

    def _upgrade(self) -> None:
        """Rewrite records of the first format, which passed all checks, with a checksum."""
        volumes = {
            self._table.lv(name): TagEntry(TagKind.VOLUME, record)
            for name, record in self._table.records.volumes.items()
        }
        for lv, entry in {**volumes, **self._table.entries}.items():
            if entry.record.version == FORMAT:
                continue
            after = dataclasses.replace(entry, record=upgraded(entry.record))
            try:
                self._table.retag(lv, entry, after)
                self._table.keep(lv, after)
            except TonnageError as failure:  # the next start does it
                log.warning("record keeps its old format volume=%s/%s error=%s", self._table.group, lv, failure)

    def _wake(self) -> None:
        """Recover from a killed process: thaw file systems, free devices that are not published."""
        paths = {
            record.name: path
            for record in self._table.records.volumes.values()
            if (path := self._table.device_of(record))
        }
        for name, path in paths.items():
            if self._table.frozen_mark(name).exists():
                from tonnage.pools.fs import freeze

                record = self._table.records.volumes[name]
                freeze.thaw(block_device.roots(path, record), record, self._table.frozen_mark(name))
        ours = {os.path.realpath(path) for path in paths.values()}
        block_device.free_loops(index for index, backing in loop.attached() if backing in ours)

    def _complete(self) -> None:
        """Activate new or renamed volumes that were never staged, as LVM does last: a kill may have prevented it.

        Their content stays, whatever their records say.
        """
        new = [record for record in self._table.records.volumes.values() if record.state == "new"]
        if inactive := [
            f"{self._table.group}/{self._table.lv(record.name)}"
            for record in new
            if self._table.device_of(record) is None
        ]:
            try:
                lvm.lvm("lvchange", "--quiet", "--activate", "y", *inactive)
            except TonnageError as failure:
                log.warning("cannot activate new volumes error=%s", failure)

    def _recover(self, lv: str, entry: TagEntry) -> None:
        """Finish or undo what a kill interrupted. A failure is left for the next start: the others are served."""
        try:
            if entry.kind in (TagKind.COPY, TagKind.SCRATCH):
                log.info("removing leftovers of an interrupted call volume=%s/%s", self._table.group, lv)
                self._volumes.discard(lv, entry)
            elif entry.kind is TagKind.ERASING:
                self._volumes.set_aside(lv, entry)
            elif entry.kind is TagKind.ORIGIN:
                self._volumes.let_go(self._volumes.set_aside(lv, entry), entry)
        except TonnageError as failure:
            log.warning("cannot complete an interrupted call volume=%s/%s error=%s", self._table.group, lv, failure)

    def _part(self, lv: str) -> None:
        """Remove the device of a thick snapshot that a killed lvremove had taken out of the group."""
        name = f"{lvm.mapper_name(self._table.group, lv)}-real"
        if self._table.account.thick_snapshots(lv) or dm.status(name) is None:
            return
        log.info("removing leftovers of an interrupted call device=%s", name)
        try:
            lvm.lvm("lvchange", "--refresh", f"{self._table.group}/{lv}")
        except TonnageError as failure:
            log.warning("cannot complete an interrupted call volume=%s/%s error=%s", self._table.group, lv, failure)
