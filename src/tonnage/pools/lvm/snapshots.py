"""Snapshots, restores, clones and health of logical volumes: the full store of the LVM pool.

Thin ones share blocks: a snapshot, or a volume made from one, is one lvcreate. A thick snapshot stores what is
overwritten in its origin (`cowSize`). A volume made from one is a full copy, which is TagKind.COPY until it is
complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from msgspec.structs import replace

from tonnage.errors import Busy, Exhausted, HostError, OutOfRange, Precondition, TonnageError
from tonnage.host import device, lvm
from tonnage.pools.base.contract import VolumeOrigin, VolumeRequest
from tonnage.pools.base.parameters import ERASE, erase_of
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.core.request import RequestedVolume
from tonnage.pools.fs import block_device
from tonnage.pools.lvm import health
from tonnage.pools.lvm import layout as lvm_layout
from tonnage.pools.lvm import tags as lvm_tags
from tonnage.pools.lvm.accounting import ExtentReservation
from tonnage.pools.lvm.expand import LvmGrowth
from tonnage.pools.lvm.layout import LINEAR, THIN
from tonnage.pools.lvm.tags import TagEntry, TagKind


class LvmDepot(LvmGrowth):
    """The store of an LVM pool with snapshots, clones and health."""

    def create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> VolumeRecord:
        """Create a volume. A source that was never used has no content: its copy is a new volume."""
        if origin is None or request.source is None or origin.state == "new":
            return super().create(request, want, origin)
        self.check_name(request.name)
        record = self.new_record(request, want, origin)
        record = replace(record, length=self.length_of(origin, want.size), state="formatted")
        with self.counting(request.name, want.size):
            self._fill(record, origin, request.source)
        return self.records[request.name]

    def _fill(self, record: VolumeRecord, origin: VolumeRecord, source: VolumeOrigin) -> None:
        """Create a volume as a copy of another, or empty."""
        half, layout = TagEntry(TagKind.COPY, record), self.layout(record.parameters)
        booking = self.booking(half, layout)
        lv = booking.name
        origin_lv = self._lv_of(source)
        try:
            if layout.thin and self.layout_of(origin_lv, origin).thin:
                self._branch(booking, origin_lv, origin, half)
            else:
                self._copy(booking, origin_lv, origin, half)
            record = self._adapt(lv, record, origin)
            self.retag(lv, half, TagEntry(TagKind.COPY, record))
            self.complete(lv, record)
        except BaseException:
            self.undo(lv, half)
            raise

    def _lv_of(self, source: VolumeOrigin) -> str:
        if source.snapshot:
            return lvm_tags.snapshot_name(self.group, source.snapshot)
        return self.lv(source.volume)

    def _branch(self, booking: ExtentReservation, origin_lv: str, origin: VolumeRecord, half: TagEntry) -> None:
        """Create a thin volume that shares its blocks with another."""
        with self.account.making(booking), self._frozen(origin_lv, origin):
            self._lvsnapshot(booking, origin_lv, "--setactivationskip", "n")
            self.keep(booking.name, half)
            if booking.size > self._size(origin_lv):
                lvm.lvm("lvextend", "--quiet", "--size", f"{booking.size}b", f"{self.group}/{booking.name}")

    def _size(self, lv: str) -> int:
        found = self.account.find(lv)
        return found.size if found else 0

    def _lvsnapshot(self, booking: ExtentReservation, origin: str, *arguments: str) -> None:
        tags = [word for tag in booking.tags for word in ("--addtag", tag)]
        command = ["lvcreate", "--yes", "--quiet", "--snapshot", "--name", booking.name, *tags, *arguments]
        make = self.thin.make if booking.layout.thin else lvm.lvm
        try:
            make(*command, f"{self.group}/{origin}")
        except TonnageError:
            self.refresh()  # its origin may still be suspended
            raise

    def _copy(self, booking: ExtentReservation, origin_lv: str, origin: VolumeRecord, half: TagEntry) -> None:
        """Create a volume with blocks of its own, copied from another at one moment."""
        from tonnage.pools.lvm import copy

        record = half.record
        with self._still(origin_lv, origin) as source:
            with self.account.making(booking):
                self.lvcreate(booking)
                self.keep(booking.name, half)
            with block_device.locked(self.activate(booking.name)) as fd:
                what = f"{origin.name} to volume {record.name}"
                path = self.activate(source)
                length = min(origin.length, self._bytes(path))
                copy.copy(path, fd, length, zeroed=booking.layout.thin, rest=record.block, what=what)
            if health.is_lost(self.group, source):
                raise Busy(
                    f"{origin.name} was overwritten faster than it was copied: repeat it, or use a larger cowSize"
                )

    def _bytes(self, path: str) -> int:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return device.size(fd)
            finally:
                os.close(fd)
        except OSError as failure:
            raise HostError(f"cannot open {path}: {failure.strerror}") from failure

    @contextmanager
    def _still(self, lv: str, origin: VolumeRecord) -> Iterator[str]:
        """Provide a logical volume with another's unchanging content: that one, or a snapshot of it."""
        found = self.account.find(lv)
        if found is not None and found.is_thick_snapshot and health.is_lost(self.group, lv):
            raise Precondition(
                f"snapshot {origin.name} is lost: more was overwritten since it was made than cowSize keeps; delete it"
            )
        if lv in self.entries or not self.is_used(lv):
            is_idle = found is not None and not found.is_thick_snapshot and lvm.device(self.group, lv) is None
            try:
                yield lv
            finally:
                if is_idle:
                    with suppress(TonnageError):
                        self.deactivate(lv)
            return
        moment = self.new_uuid(f"scratch of {origin.name}", self.clock.time())
        scratch = TagEntry(TagKind.SCRATCH, replace(origin, uuid=moment, parameters=_erase_only(origin), mutable={}))
        name = self._take_snapshot(lv, origin, scratch)
        try:
            yield name
        finally:
            self.discard(name, scratch)

    def _take_snapshot(self, lv: str, origin: VolumeRecord, entry: TagEntry) -> str:
        """Take a snapshot of a volume at this moment, by one command; return its name. Raises Exhausted, HostError."""
        name = lvm_tags.lv_name(self.group, entry)
        tags, extent, size = tuple(lvm_tags.encode(entry)), self.extent(), self._size(lv)
        if self.layout_of(lv, origin).thin:
            if self.thin.is_full():
                raise Exhausted(f"snapshot of {origin.name}: thin pool {self.group}/{self.bounds.thin} is nearly full")
            booking = ExtentReservation(name, THIN, size // extent, size, tags, lv)
            with self.account.making(booking), self._frozen(lv, origin):
                self._lvsnapshot(booking, lv, "--setactivationskip", "y")
                self.keep(name, entry)
            return name
        extents = lvm_layout.cow_extents(size, lvm_layout.cow_size(origin.parameters), extent)
        booking = ExtentReservation(name, LINEAR, extents, extents * extent, tags, lv)
        with self.account.making(booking), self._frozen(lv, origin):
            self._lvsnapshot(booking, lv, "--extents", str(extents))
            self.keep(name, entry)
        return name

    def _frozen(self, lv: str, origin: VolumeRecord) -> AbstractContextManager[None]:
        """Freeze a volume while LVM takes a snapshot of it. Unused volumes and raw blocks need no freezing."""
        path = lvm.device(self.group, lv)
        if origin.fstype != "btrfs" or path is None or not self.is_used(lv):
            return nullcontext()
        from tonnage.pools.fs import freeze

        return freeze.still(path, origin, self.frozen_mark(origin.name))

    def _adapt(self, lv: str, record: VolumeRecord, origin: VolumeRecord) -> VolumeRecord:
        """Give a copied file system its own UUID and size; return its record. Raises HostError."""
        if record.block:
            return record
        from tonnage.pools.image import copy as image_copy

        path = self.activate(lv)
        pending = origin.pending or record.length > origin.length
        with block_device.locked(path) as fd:
            image_copy.renew(fd, Path(path), record.fstype, record.uuid)
            if pending and record.fstype == "ext4":
                image_copy.resize_ext4(fd, record.length)
                pending = False
            os.fsync(fd)
        return replace(record, made=origin.made or origin.length, pending=pending)

    def snapshot(self, name: str, volume: str, owner: Mapping[str, str]) -> VolumeRecord:
        origin, lv = self.record(volume), self.lv(volume)
        created = self.clock.time()
        record = replace(
            origin,
            name=name,
            uuid=self.new_uuid(f"snapshot/{name}", created),
            parameters=_erase_only(origin),
            mutable={},
            owner=dict(owner),
            created=created,
            from_snapshot="",
            from_volume=volume,
        )
        entry, key = TagEntry(TagKind.SNAPSHOT, record), f"{name}@"
        self._check_snapshot_name(name)
        with self.counting(key, self.snapshot_promise(origin)):
            if origin.state == "new" and not self.layout_of(lv, origin).thin:
                self._keep_nothing(entry)
            else:
                self._take_snapshot(lv, origin, entry)
            self.keep(lvm_tags.lv_name(self.group, entry), entry, key=key)
        return record

    def snapshot_promise(self, origin: VolumeRecord) -> int:
        """Bytes that a snapshot of a volume reserves."""
        if self.layout_of(self.lv(origin.name), origin).thin:
            return origin.size
        return min(origin.size, lvm_layout.cow_size(origin.parameters) or origin.size)

    def check_snapshot(self, volume: str) -> None:
        """Raises Exhausted, OutOfRange unless a snapshot of a volume fits now."""
        origin, promise = self.record(volume), self.snapshot_promise(self.record(volume))
        layout = THIN if self.layout_of(self.lv(volume), origin).thin else LINEAR
        room = self.room_for(None, layout)
        if promise > room.total:
            raise OutOfRange(f"a snapshot of volume {volume} of {promise} bytes can never fit into pool {self.pool!r}")
        if promise > room.free:
            raise Exhausted(
                f"insufficient free space for a snapshot of volume {volume}: {promise} bytes, free are {room.free}"
            )

    def _check_snapshot_name(self, name: str) -> None:
        lv = lvm_tags.snapshot_name(self.group, name)
        if (fault := self.damaged.get(lv)) is not None:
            raise HostError(f"the record of {self.group}/{lv} is damaged ({fault}): {self.remedy}")

    def _keep_nothing(self, entry: TagEntry) -> None:
        """Create a snapshot of a thick volume that was never used: a record in the tags of one extent."""
        extent = self.extent()
        name = lvm_tags.lv_name(self.group, entry)
        booking = ExtentReservation(name, LINEAR, 1, extent, tuple(lvm_tags.encode(entry)))
        with self.account.making(booking):
            self.lvcreate(booking)

    def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot. A volume that was deleted before its last thick snapshot is removed with it."""
        if self.find_snapshot(name) is None:
            return
        lv = lvm_tags.snapshot_name(self.group, name)
        self.check_unused(lv, f"snapshot {name}")
        with self.family:
            found, entry = self.account.find(lv), self.entries[lv]
            origin = found.origin if found and found.is_thick_snapshot else ""
            left = self.entries.get(origin)
            self.discard(lv, entry, as_well=self._volume_at(origin))
            if left is not None and left.kind is TagKind.ORIGIN and not self.account.thick_snapshots(origin):
                self.discard(origin, left)

    def _volume_at(self, lv: str) -> VolumeRecord | None:
        """The volume of a logical volume, None for none."""
        return next((record for name, record in list(self.records.items()) if lv and self.lv(name) == lv), None)

    def find_snapshot(self, name: str) -> VolumeRecord | None:
        self.check_open()
        self._check_snapshot_name(name)
        found = self.entries.get(lvm_tags.snapshot_name(self.group, name))
        return found.record if found is not None and found.kind is TagKind.SNAPSHOT else None

    def all_snapshots(self) -> Sequence[VolumeRecord]:
        self.check_open()
        found = [entry.record for entry in list(self.entries.values()) if entry.kind is TagKind.SNAPSHOT]
        return sorted(found, key=lambda record: record.name)

    def fault(self, record: VolumeRecord, path: Path | None) -> str:
        return health.fault(self, record) or (self.shown_fault(record, path) if path else "")


def _erase_only(record: VolumeRecord) -> dict[str, str]:
    """The parameters of a volume that its snapshots have as well."""
    method = erase_of({**record.parameters, **record.mutable})
    return {} if method == "none" else {ERASE: method}
