"""Snapshots, restores and clones of logical volumes. Blocking.

Thin ones share blocks: a snapshot, or a volume made from one, is one lvcreate. A thick snapshot stores what is
overwritten in its origin (`cowSize`). A volume made from one is a full copy, which is TagKind.COPY until it is
complete. Of the source, every byte is read and compared with zero. Zeros are not copied but zeroed, which a thin volume
does not need. After a kill it starts again: copied data cannot be distinguished from missing data.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from msgspec.structs import replace

from tonnage.base.errors import BusyError, ExhaustedError, HostError, PreconditionError, TonnageError, host_errors
from tonnage.host import device, filesystem, lvm
from tonnage.host.descriptor import opened
from tonnage.storage.pools.base.contract import SnapshotRequest, Stillness, VolumeOrigin
from tonnage.storage.pools.base.parameters import ERASE, erase_of
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.fs import block_device, online
from tonnage.storage.pools.fs.formats import length_of
from tonnage.storage.pools.lvm import layout as lvm_layout
from tonnage.storage.pools.lvm import tags as lvm_tags
from tonnage.storage.pools.lvm.accounting import ExtentReservation
from tonnage.storage.pools.lvm.layout import LINEAR, THIN
from tonnage.storage.pools.lvm.table import LvmTable, is_lost_snapshot, refresh
from tonnage.storage.pools.lvm.tags import TagEntry, TagKind
from tonnage.storage.pools.lvm.volumes import LogicalVolumes

log = logging.getLogger(__name__)
_CHUNK = 4 * 1024**2
_ZEROS = bytes(_CHUNK)
_TELL = 1024**3  # bytes between two log lines of the progress
_SYNC = 64 * 1024**2  # bytes that may be waiting to be written


class LvmSnapshots:
    """The snapshots of a pool, and the volumes that are made from them."""

    def __init__(self, table: LvmTable, volumes: LogicalVolumes) -> None:
        self._table, self._volumes = table, volumes

    def fill(self, record: VolumeRecord, origin: VolumeRecord, source: VolumeOrigin) -> VolumeRecord:
        """Create a volume as a copy of another that was used; return its record.

        Raises: ExhaustedError, PreconditionError.
        """
        self._volumes.check_name(record.name)
        self.check_source(origin, source)
        record = replace(record, length=length_of(origin, record.size), state="formatted")
        with self._table.counting(record.name, record.size):
            self._fill(record, origin, source)
        return self._table.records.volumes[record.name]

    def check_source(self, origin: VolumeRecord, source: VolumeOrigin) -> None:
        """Check whether a source still has its content. Raises: PreconditionError, HostError."""
        lv = self._lv_of(source)
        found = self._table.account.find(lv)
        if found is not None and found.is_thick_snapshot and is_lost_snapshot(self._table.group, lv):
            raise PreconditionError(
                f"snapshot {origin.name} is lost: more was overwritten since it was made than cowSize keeps; delete it"
            )

    def _fill(self, record: VolumeRecord, origin: VolumeRecord, source: VolumeOrigin) -> None:
        """Create a volume as a copy of another, or empty."""
        half, layout = TagEntry(TagKind.COPY, record), self._table.layout(record.parameters)
        reservation = self._volumes.reservation(half, layout)
        lv = reservation.name
        origin_lv = self._lv_of(source)
        try:
            if layout.thin and self._table.layout_of(origin_lv, origin).thin:
                self._branch(reservation, origin_lv, origin, half)
            else:
                self._copy(reservation, origin_lv, origin, half)
            record = self._adapt(lv, record, origin)
            self._table.retag(lv, half, TagEntry(TagKind.COPY, record))
            self._volumes.complete(lv, record)
        except BaseException:
            self._volumes.undo(lv, half)
            raise

    def _lv_of(self, source: VolumeOrigin) -> str:
        if source.snapshot:
            return lvm_tags.snapshot_name(self._table.group, source.snapshot)
        return self._table.lv(source.volume)

    def _branch(self, reservation: ExtentReservation, origin_lv: str, origin: VolumeRecord, half: TagEntry) -> None:
        """Create a thin volume that shares its blocks with another."""
        with self._table.account.making(reservation), self._frozen(origin_lv, origin):
            self._lvsnapshot(reservation, origin_lv, "--setactivationskip", "n")
            self._table.keep(reservation.name, half)
            if reservation.size > self._table.size_of(origin_lv):
                lvm.lvm(
                    "lvextend", "--quiet", "--size", f"{reservation.size}b", f"{self._table.group}/{reservation.name}"
                )

    def _lvsnapshot(self, reservation: ExtentReservation, origin: str, *arguments: str) -> None:
        tags = [word for tag in reservation.tags for word in ("--addtag", tag)]
        command = ["lvcreate", "--yes", "--quiet", "--snapshot", "--name", reservation.name, *tags, *arguments]
        make = self._table.thin.make if reservation.layout.thin else lvm.lvm
        try:
            make(*command, f"{self._table.group}/{origin}")
        except TonnageError:
            refresh(self._table)  # its origin may still be suspended
            raise

    def _copy(self, reservation: ExtentReservation, origin_lv: str, origin: VolumeRecord, half: TagEntry) -> None:
        """Create a volume with blocks of its own, copied from another at one moment."""
        record = half.record
        with self._still(origin_lv, origin) as source:
            with self._table.account.making(reservation):
                self._volumes.lvcreate(reservation)
                self._table.keep(reservation.name, half)
            with block_device.locked(self._table.activate(reservation.name)) as fd:
                what = f"{origin.name} to volume {record.name}"
                path = self._table.activate(source)
                length = min(origin.length, self._bytes(path))
                copy_device(path, fd, length, zeroed=reservation.layout.thin, rest=record.block, what=what)
            if is_lost_snapshot(self._table.group, source):
                raise BusyError(
                    f"{origin.name} was overwritten faster than it was copied: repeat it, or use a larger cowSize"
                )

    def _bytes(self, path: str) -> int:
        with host_errors(f"cannot open {path}"), opened(path, os.O_RDONLY) as fd:
            return device.size(fd)

    @contextmanager
    def _still(self, lv: str, origin: VolumeRecord) -> Iterator[str]:
        """Provide a logical volume with another's unchanging content: that one, or a snapshot of it."""
        found = self._table.account.find(lv)
        if lv in self._table.entries or not self._volumes.is_used(lv):
            is_idle = found is not None and not found.is_thick_snapshot and lvm.device(self._table.group, lv) is None
            try:
                yield lv
            finally:
                if is_idle:
                    with suppress(TonnageError):
                        self._table.deactivate(lv)
            return
        moment = self._table.new_uuid(f"scratch of {origin.name}", self._table.clock.time())
        scratch = TagEntry(TagKind.SCRATCH, replace(origin, uuid=moment, parameters=_erase_only(origin), mutable={}))
        name = self._take_snapshot(lv, origin, scratch)
        try:
            yield name
        finally:
            self._volumes.discard(name, scratch)

    def _take_snapshot(self, lv: str, origin: VolumeRecord, entry: TagEntry, *, is_frozen: bool = False) -> str:
        """Take a snapshot of a volume at this moment, by one command; return its name.

        is_frozen: the caller holds its freeze(). Raises: ExhaustedError, HostError.
        """
        name = lvm_tags.lv_name(self._table.group, entry)
        tags, extent, size = tuple(lvm_tags.encode(entry)), self._table.extent(), self._table.size_of(lv)
        if self._table.layout_of(lv, origin).thin:
            if self._table.thin.is_full():
                raise ExhaustedError(
                    f"snapshot of {origin.name}: thin pool {self._table.group}/{self._table.bounds.thin} is nearly full"
                )
            reservation = ExtentReservation(name, THIN, size // extent, size, tags, lv)
            with self._table.account.making(reservation), nullcontext() if is_frozen else self._frozen(lv, origin):
                self._lvsnapshot(reservation, lv, "--setactivationskip", "y")
                self._table.keep(name, entry)
            return name
        extents = lvm_layout.cow_extents(size, lvm_layout.cow_size(origin.parameters), extent)
        reservation = ExtentReservation(name, LINEAR, extents, extents * extent, tags, lv)
        with self._table.account.making(reservation), nullcontext() if is_frozen else self._frozen(lv, origin):
            self._lvsnapshot(reservation, lv, "--extents", str(extents))
            self._table.keep(name, entry)
        return name

    def _frozen(self, lv: str, origin: VolumeRecord) -> AbstractContextManager[None]:
        """Freeze a volume while LVM takes a snapshot of it. Unused volumes and raw blocks need no freezing."""
        path = lvm.device(self._table.group, lv)
        if origin.fstype != "btrfs" or path is None or not self._volumes.is_used(lv):
            return nullcontext()
        return online.frozen(block_device.roots(path, origin), origin, self._table.frozen_mark(origin.name))

    def _adapt(self, lv: str, record: VolumeRecord, origin: VolumeRecord) -> VolumeRecord:
        """Give a copied file system its own UUID and size; return its record. Raises: HostError."""
        if record.block:
            return record
        from tonnage.storage.pools.image import copy as image_copy

        path = self._table.activate(lv)
        pending = origin.pending or record.length > origin.length
        with block_device.locked(path) as fd:
            image_copy.renew(fd, Path(path), record.fstype, record.uuid)
            if pending and record.fstype == "ext4":
                image_copy.resize_ext4(fd, record.length)
                pending = False
            os.fsync(fd)
        return replace(record, made=origin.made or origin.length, pending=pending)

    def stillness(self, record: VolumeRecord) -> Stillness:
        """As Backend.stillness. LVM freezes ext4 and xfs itself, which older kernels reject for a frozen one."""
        if not self._volumes.is_used(self._table.lv(record.name)):
            return Stillness.UNUSED
        nests = record.fstype == "btrfs" or filesystem.freezes_nest()
        return Stillness.FROZEN if not record.block and nests else Stillness.ALONE

    def freeze(self, record: VolumeRecord) -> online.Freeze:
        """As Backend.freeze."""
        path = self._table.activate(self._table.lv(record.name))
        return online.Freeze(block_device.roots(path, record), record, self._table.frozen_mark(record.name))

    def take(self, wanted: SnapshotRequest, *, is_frozen: bool = False) -> VolumeRecord:
        """Create a snapshot of a volume. Raises: ExhaustedError, PreconditionError, HostError."""
        name, volume = wanted.name, wanted.volume
        origin, lv = self._table.records.get(volume), self._table.lv(volume)
        created = self._table.clock.time()
        record = replace(
            origin,
            name=name,
            uuid=self._table.new_uuid(f"snapshot/{name}", created),
            parameters=_erase_only(origin),
            mutable={},
            owner=dict(wanted.owner),
            created=created,
            from_snapshot="",
            from_volume=volume,
        )
        entry, key = TagEntry(TagKind.SNAPSHOT, record), f"{name}@"
        self._check_name(name)
        with self._table.counting(key, self.reserved_bytes(origin)):
            if origin.state == "new" and not self._table.layout_of(lv, origin).thin:
                self._keep_nothing(entry)
            else:
                self._take_snapshot(lv, origin, entry, is_frozen=is_frozen)
            self._table.keep(lvm_tags.lv_name(self._table.group, entry), entry, key=key)
        return record

    def own(self, record: VolumeRecord, owner: Mapping[str, str]) -> None:
        """Replace the owner record of a snapshot. Raises: HostError."""
        lv = lvm_tags.snapshot_name(self._table.group, record.name)
        after = TagEntry(TagKind.SNAPSHOT, replace(record, owner=dict(owner)))
        self._table.retag(lv, TagEntry(TagKind.SNAPSHOT, record), after)
        self._table.keep(lv, after)

    def reserved_bytes(self, origin: VolumeRecord) -> int:
        """Bytes that a snapshot of a volume reserves."""
        if self._table.layout_of(self._table.lv(origin.name), origin).thin:
            return origin.size
        return min(origin.size, lvm_layout.cow_size(origin.parameters) or origin.size)

    def _check_name(self, name: str) -> None:
        lv, records = lvm_tags.snapshot_name(self._table.group, name), self._table.records
        if (fault := records.damaged.get(lv)) is not None:
            raise HostError(f"the record of {self._table.group}/{lv} is damaged ({fault}): {records.remedy}")

    def _keep_nothing(self, entry: TagEntry) -> None:
        """Create a snapshot of a thick volume that was never used: a record in the tags of one extent."""
        extent = self._table.extent()
        name = lvm_tags.lv_name(self._table.group, entry)
        reservation = ExtentReservation(name, LINEAR, 1, extent, tuple(lvm_tags.encode(entry)))
        with self._table.account.making(reservation):
            self._volumes.lvcreate(reservation)

    def delete(self, name: str) -> None:
        """Delete a snapshot. A volume that was deleted before its last thick snapshot is removed with it."""
        if self.find(name) is None:
            return
        lv = lvm_tags.snapshot_name(self._table.group, name)
        if self._volumes.is_used(lv):
            raise PreconditionError(f"snapshot {name} is in use (mounted or attached): unpublish and unstage it first")
        with self._volumes.family:
            found, entry = self._table.account.find(lv), self._table.entries[lv]
            origin = found.origin if found and found.is_thick_snapshot else ""
            left = self._table.entries.get(origin)
            self._volumes.discard(lv, entry, as_well=self._volume_at(origin))
            if left is not None and left.kind is TagKind.ORIGIN and not self._table.account.thick_snapshots(origin):
                self._volumes.discard(origin, left)

    def _volume_at(self, lv: str) -> VolumeRecord | None:
        """The volume of a logical volume, None for none."""
        return next(
            (record for name, record in list(self._table.records.volumes.items()) if lv and self._table.lv(name) == lv),
            None,
        )

    def find(self, name: str) -> VolumeRecord | None:
        """A snapshot's record, None for none. Raises: HostError for a damaged one."""
        self._check_name(name)
        found = self._table.entries.get(lvm_tags.snapshot_name(self._table.group, name))
        return found.record if found is not None and found.kind is TagKind.SNAPSHOT else None

    def all(self) -> Sequence[VolumeRecord]:
        """All snapshots' records, sorted by name."""
        found = [entry.record for entry in list(self._table.entries.values()) if entry.kind is TagKind.SNAPSHOT]
        return sorted(found, key=lambda record: record.name)


def _erase_only(record: VolumeRecord) -> dict[str, str]:
    """The parameters of a volume that its snapshots have as well."""
    method = erase_of({**record.parameters, **record.mutable})
    return {} if method == "none" else {ERASE: method}


def copy_device(source: str, fd: int, length: int, *, zeroed: bool, rest: bool, what: str) -> None:
    """Copy the first `length` bytes of the device `source` to the open device fd, durably.

    zeroed: blocks that were never written there read as zeros. rest: zero what follows, for raw block, where pods could
    read it. what: for messages. Raises: HostError.
    """
    with host_errors(f"cannot open {source}"):
        origin = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with host_errors(f"cannot copy {what}"):
            os.posix_fadvise(origin, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            for at in range(0, length, _CHUNK):
                _copy_some(origin, fd, at, min(_CHUNK, length - at), zeroed=zeroed)
                done = at + min(_CHUNK, length - at)
                if done % _SYNC == 0:
                    _let_go(origin, fd)
                if done % _TELL == 0:
                    log.info("copying %s bytes=%d of=%d", what, done, length)
            if rest and not zeroed:
                block_device.zero(fd, length)
            _let_go(origin, fd)
    finally:
        os.close(origin)


def _copy_some(origin: int, fd: int, at: int, count: int, *, zeroed: bool) -> None:
    data = os.pread(origin, count, at)
    if len(data) < count:
        raise HostError(f"the device became shorter while it was copied: {at + len(data)} bytes")
    if data == (_ZEROS if count == _CHUNK else bytes(count)):
        if not zeroed:
            block_device.zero_range(fd, at, count)
        return
    done = 0
    while done < count:
        done += os.pwrite(fd, memoryview(data)[done:], at + done)


def _let_go(origin: int, fd: int) -> None:
    """Sync a range, and drop it from the page cache, which belongs to the pods."""
    os.fsync(fd)
    for number in (origin, fd):
        with suppress(OSError):
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
