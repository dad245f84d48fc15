"""Expansion of logical volumes. Blocking.

Order of steps: the logical volume is extended, its record says so, its file system grows after that. A kill between the
first two leaves a volume longer than its record says. That does no harm: the repeated call finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from tonnage.errors import NotFoundError, PreconditionError, TonnageError
from tonnage.host import lvm, superblock
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.fs import block_device
from tonnage.pools.fs.formats import enlarged
from tonnage.pools.lvm import tags
from tonnage.pools.lvm.accounting import ExtentReservation
from tonnage.pools.lvm.recovery import refresh
from tonnage.pools.lvm.table import LvmTable
from tonnage.pools.lvm.tags import TagEntry, TagKind
from tonnage.pools.lvm.volumes import LogicalVolumes


class LvmGrowth:
    """Expands logical volumes, in use or not."""

    def __init__(self, table: LvmTable, volumes: LogicalVolumes) -> None:
        self._table, self._volumes = table, volumes

    def expand(self, name: str, size: int) -> VolumeRecord:
        """Expand a volume to `size` bytes; return its record. Raises ExhaustedError, PreconditionError, HostError."""
        record, lv = self._table.records.get(name), self._table.lv(name)
        is_used = record.state != "new"
        if is_used and not record.block and record.fstype == "ext4" and not superblock.may_grow_ext4():
            raise PreconditionError(
                f"volume {name}: ext4 on a logical volume grows while it is mounted, as resize2fs on one that is not"
                " cannot be killed without damage, and that takes CAP_SYS_RESOURCE, which is lacking: run the driver"
                " with that capability, or use xfs"
            )
        larger = enlarged(record, size, is_used=is_used)
        with self._table.counting(f"{name} more", size - record.size):
            try:
                self._extend(lv, record, larger.length)
            except TonnageError:
                refresh(self._table)
                raise
            self._table.retag(lv, TagEntry(TagKind.VOLUME, record), TagEntry(TagKind.VOLUME, larger))
            self._table.keep(lv, TagEntry(TagKind.VOLUME, larger), key=f"{name} more")
        return larger

    def _extend(self, lv: str, record: VolumeRecord, length: int) -> None:
        found, extent = self._table.account.find(lv), self._table.extent()
        if found is None:
            raise NotFoundError(f"{self._table.group}/{lv} is gone")
        layout = self._table.layout_of(lv, record)
        extents, had = layout.extents(length, extent), found.size // extent
        if extents <= had:
            refresh(self._table)  # a command that did so may have been killed before the device was told
            return
        booking = ExtentReservation(lv, layout, extents, extents * extent, had=had)
        if layout.thin:
            with self._table.account.making(booking):
                lvm.lvm("lvextend", "--quiet", "--size", f"{booking.size}b", f"{self._table.group}/{lv}")
            return
        with self._stopped(lv, record):
            if record.block and record.state != "new":
                self._extend_by_zeros(booking, record)
                return
            with self._table.account.making(booking):
                lvm.lvm("lvextend", "--quiet", "--extents", str(extents), f"{self._table.group}/{lv}")

    @contextmanager
    def _stopped(self, lv: str, record: VolumeRecord) -> Iterator[None]:
        """Deactivate a volume with thick snapshots while LVM extends it."""
        if not self._table.account.thick_snapshots(lv):
            yield
            return
        path = self._table.device_of(record)
        if self._volumes.is_used(lv):
            raise PreconditionError(
                f"volume {record.name} is in use and has snapshots: LVM extends the origin of thick snapshots only"
                " while nothing uses it; stop its pod, or delete the snapshots"
            )
        if path is not None:
            self._table.deactivate(lv)
        try:
            yield
        finally:
            if path is not None:
                self._table.activate(lv)

    def _extend_by_zeros(self, booking: ExtentReservation, record: VolumeRecord) -> None:
        """Extend a raw block volume by extents that were zeroed before: its pod sees them at once."""
        more = booking.extents - booking.had
        scratch = TagEntry(
            TagKind.SCRATCH,
            replace(record, uuid=self._table.new_uuid(f"more of {record.name}", self._table.clock.time())),
        )
        name = tags.lv_name(self._table.group, scratch)
        helper = ExtentReservation(name, booking.layout, more, booking.more, tuple(tags.encode(scratch)))
        try:
            with self._table.account.making(helper):
                self._volumes.lvcreate(helper)
                self._table.keep(name, scratch)
            with block_device.locked(self._table.activate(name)) as fd:
                block_device.zero(fd)
            ranges = lvm.extents_of(self._table.group, name)
        finally:
            with suppress(NotFoundError):
                self._volumes.remove(name, scratch)
        with self._table.account.making(booking):
            lvm.lvm(
                "lvextend", "--quiet", "--extents", str(booking.extents), f"{self._table.group}/{booking.name}", *ranges
            )
