"""Expansion of logical volumes. Blocking.

Order of steps: the logical volume is extended, its record says so, its file system grows after that. A kill between the
first two leaves a volume longer than its record says. That does no harm: the repeated call finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from tonnage.errors import NotFound, Precondition, TonnageError
from tonnage.host import lvm, superblock
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.fs import block_device
from tonnage.pools.fs.formats import form_of
from tonnage.pools.lvm import tags
from tonnage.pools.lvm.accounting import ExtentReservation
from tonnage.pools.lvm.node import LvmNode
from tonnage.pools.lvm.tags import TagEntry, TagKind


class LvmGrowth(LvmNode):
    """Expansion of logical volumes, in use or not."""

    def length_of(self, origin: VolumeRecord, size: int) -> int:
        """Length of a logical volume for `size` usable bytes, of a copy or of the volume itself."""
        if origin.block:
            return size
        form = form_of(origin.fstype, origin.mkfs)
        if origin.state == "new":
            return max(origin.length, form.length(size))
        return max(origin.length, form.grown(size, origin.made or origin.length))

    def expand(self, name: str, size: int) -> VolumeRecord:
        record, lv = self.record(name), self.lv(name)
        length, is_used = self.length_of(record, size), record.state != "new"
        if is_used and not record.block and record.fstype == "ext4" and not superblock.may_grow_ext4():
            raise Precondition(
                f"volume {name}: ext4 on a logical volume grows while it is mounted, as resize2fs on one that is not"
                " cannot be killed without damage, and that takes CAP_SYS_RESOURCE, which is lacking: run the driver"
                " with that capability, or use xfs"
            )
        made = (record.made or record.length) if is_used else 0
        larger = replace(record, size=size, length=length, made=made, pending=is_used)
        with self.counting(f"{name} more", size - record.size):
            try:
                self._extend(lv, record, length)
            except TonnageError:
                self.refresh()
                raise
            self.retag(lv, TagEntry(TagKind.VOLUME, record), TagEntry(TagKind.VOLUME, larger))
            self.keep(lv, TagEntry(TagKind.VOLUME, larger), key=f"{name} more")
        return larger

    def _extend(self, lv: str, record: VolumeRecord, length: int) -> None:
        found, extent = self.account.find(lv), self.extent()
        if found is None:
            raise NotFound(f"{self.group}/{lv} is gone")
        layout = self.layout_of(lv, record)
        extents, had = layout.extents(length, extent), found.size // extent
        if extents <= had:
            self.refresh()  # a command that did so may have been killed before the device was told
            return
        booking = ExtentReservation(lv, layout, extents, extents * extent, had=had)
        if layout.thin:
            with self.account.making(booking):
                lvm.lvm("lvextend", "--quiet", "--size", f"{booking.size}b", f"{self.group}/{lv}")
            return
        with self._stopped(lv, record):
            if record.block and record.state != "new":
                self._extend_by_zeros(booking, record)
                return
            with self.account.making(booking):
                lvm.lvm("lvextend", "--quiet", "--extents", str(extents), f"{self.group}/{lv}")

    @contextmanager
    def _stopped(self, lv: str, record: VolumeRecord) -> Iterator[None]:
        """Deactivate a volume with thick snapshots while LVM extends it."""
        if not self.account.thick_snapshots(lv):
            yield
            return
        path = self.device_of(record)
        if self.is_used(lv):
            raise Precondition(
                f"volume {record.name} is in use and has snapshots: LVM extends the origin of thick snapshots only"
                " while nothing uses it; stop its pod, or delete the snapshots"
            )
        if path is not None:
            self.deactivate(lv)
        try:
            yield
        finally:
            if path is not None:
                self.activate(lv)

    def _extend_by_zeros(self, booking: ExtentReservation, record: VolumeRecord) -> None:
        """Extend a raw block volume by extents that were zeroed before: its pod sees them at once."""
        more = booking.extents - booking.had
        scratch = TagEntry(
            TagKind.SCRATCH, replace(record, uuid=self.new_uuid(f"more of {record.name}", self.clock.time()))
        )
        name = tags.lv_name(self.group, scratch)
        helper = ExtentReservation(name, booking.layout, more, booking.more, tuple(tags.encode(scratch)))
        try:
            with self.account.making(helper):
                self.lvcreate(helper)
                self.keep(name, scratch)
            with block_device.locked(self.activate(name)) as fd:
                block_device.zero(fd)
            ranges = lvm.extents_of(self.group, name)
        finally:
            with suppress(NotFound):
                self.remove(name, scratch)
        with self.account.making(booking):
            lvm.lvm("lvextend", "--quiet", "--extents", str(booking.extents), f"{self.group}/{booking.name}", *ranges)
