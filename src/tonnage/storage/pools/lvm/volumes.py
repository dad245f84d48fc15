"""Logical volumes of a pool: made, renamed, released and removed. Blocking, thread-safe.

A caller holds a lock for each volume name. Order of steps, so that a kill between any two loses nothing: create is one
lvcreate with all tags under a name that no volume has (TagKind.COPY); former content is zeroed, or a source is copied;
then one lvrename makes it the volume. delete is one lvremove, or one lvchange that makes it TagKind.ERASING or
TagKind.ORIGIN. The next open removes unused ones. expand extends the logical volume, then its record says so; its file
system grows after that. A kill between the first two leaves a volume longer than its record says, which does no harm:
the repeated call finds it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from msgspec.structs import replace

from tonnage.base.errors import AlreadyExistsError, NotFoundError, PreconditionError, TonnageError, host_errors
from tonnage.host import dm, filesystem, lvm
from tonnage.storage.pools.base.parameters import ERASE, erase_of
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.wipe import EraseJob
from tonnage.storage.pools.fs import block_device
from tonnage.storage.pools.fs.formats import enlarged, form_of
from tonnage.storage.pools.lvm import tags as lvm_tags
from tonnage.storage.pools.lvm.accounting import ExtentReservation
from tonnage.storage.pools.lvm.layout import Layout
from tonnage.storage.pools.lvm.table import LvmTable, refresh
from tonnage.storage.pools.lvm.tags import TagEntry, TagKind

log = logging.getLogger(__name__)


class LogicalVolumes:
    """What is made, extended, removed and erased in a group."""

    def __init__(self, table: LvmTable) -> None:
        self._table = table
        self.family = threading.Lock()
        """Protects an origin together with its thick snapshots."""
        self._renaming = threading.Lock()

    def check_name(self, name: str) -> None:
        """Free the name for a new volume. Raises: AlreadyExistsError when it belongs to others, HostError."""
        self._table.records.check_damaged(name)
        lv = self._table.lv(name)
        for left, entry in list(self._table.entries.items()):
            is_half = entry.kind is TagKind.COPY and entry.record.name == name
            if left == lv or is_half:  # of a call that failed, and could not be removed then
                self.discard(left, entry)
        for max_age in (float("inf"), 0.0):
            with self._table.account.lock:
                self._table.account.fresh(max_age=max_age)
                found = self._table.account.volumes.get(lv)
            if found is None or lvm_tags.is_ours(found.tags):
                return
        raise AlreadyExistsError(
            f"{self._table.group}/{lv} is a logical volume that is not tonnage's: it is left alone"
        )

    def reservation(self, entry: TagEntry, layout: Layout) -> ExtentReservation:
        """The reservation of a logical volume to create."""
        extent = self._table.extent()
        extents = layout.extents(entry.record.length, extent)
        tags = tuple(lvm_tags.encode(entry))
        return ExtentReservation(lvm_tags.lv_name(self._table.group, entry), layout, extents, extents * extent, tags)

    def lvcreate(self, reservation: ExtentReservation) -> None:
        """Make an empty logical volume. Raises: ExhaustedError, HostError."""
        tags = [word for tag in reservation.tags for word in ("--addtag", tag)]
        command = ["lvcreate", "--yes", "--quiet", "--name", reservation.name, *tags]
        if reservation.layout.thin:
            command += ["--thinpool", self._table.bounds.thin, "--virtualsize", f"{reservation.size}b"]
            self._table.thin.make(*command, self._table.group)
            self.empty(reservation.name)
        else:
            command += ["--wipesignatures", "y", "--zero", "y", "--extents", str(reservation.extents)]
            lvm.lvm(*command, *reservation.layout.arguments(), self._table.group)

    def empty(self, lv: str) -> None:
        """Discard the content of a new thin volume. Raises: HostError.

        LVM may have given it a device that a killed command had left, with the content of another volume.
        """
        mapper = lvm.mapper_name(self._table.group, lv)
        if not dm.thin_mapped(mapper):
            return
        log.warning("new thin volume is not empty, emptied volume=%s/%s", self._table.group, lv)
        path = self._table.activate(lv)
        with host_errors(f"cannot empty {self._table.group}/{lv}"), block_device.locked(path) as fd:
            block_device.discard(fd)
            if dm.thin_mapped(mapper):  # its pool ignores discards
                block_device.zero(fd)

    def create(self, record: VolumeRecord) -> VolumeRecord:
        """Create an empty volume; return its record. Raises: AlreadyExistsError, ExhaustedError, HostError."""
        if record.fstype:
            record = replace(record, length=form_of(record.fstype, record.mkfs).length(record.size))
        else:
            record = replace(record, length=record.size)
        entry = TagEntry(TagKind.COPY, record)
        self.check_name(record.name)
        reservation = self.reservation(entry, self._table.layout(record.parameters))
        with self._table.counting(record.name, record.size):
            try:
                with self._table.account.making(reservation):
                    self.lvcreate(reservation)
                    self._table.keep(reservation.name, entry)
                if record.block and not reservation.layout.thin:
                    self._zero(reservation.name)
                self.complete(reservation.name, record)
            except BaseException:
                self.undo(reservation.name, entry)
                raise
        return record

    def _zero(self, lv: str) -> None:
        """Zero the former content of a raw block volume, which has no file system to hide it. Raises: HostError."""
        path = self._table.activate(lv)
        with host_errors(f"cannot overwrite {self._table.group}/{lv}"), block_device.locked(path) as fd:
            block_device.zero(fd)

    def complete(self, lv: str, record: VolumeRecord) -> None:
        """Rename what was made to its volume's name, which creates the volume. Raises: HostError."""
        name = self._table.lv(record.name)
        lvm.lvm("lvrename", "--quiet", self._table.group, lv, name)
        with self._table.account.lock:
            self._table.account.renamed(lv, name)
            self._table.entries.pop(lv, None)
            self._table.keep(name, TagEntry(TagKind.VOLUME, record), key=record.name)

    def undo(self, lv: str, entry: TagEntry) -> None:
        """Remove what a failed call has made; on failure a later call removes it."""
        with suppress(TonnageError):
            if self._table.account.find(lv) is not None:
                self.discard(lv, entry)

    def is_used(self, lv: str) -> bool:
        """Whether a device is open, or its node is where it could be opened. udev may open it for a moment."""
        path = lvm.device(self._table.group, lv)
        if path is None:
            return False
        return block_device.is_bound(path) or block_device.stays(
            lambda: dm.open_count(lvm.mapper_name(self._table.group, lv)) > 0
        )

    def let_go(self, lv: str, entry: TagEntry) -> None:
        """Remove an unused volume, or rename it while its thick snapshots need it.

        lvremove would remove them too. Raises: PreconditionError when one of them is not tonnage's, HostError.
        """
        if self._is_origin(lv) and not self._table.account.thick_snapshots(lv):
            self._table.account.read()
        with self.family if self._table.account.thick_snapshots(lv) else nullcontext():
            snapshots = self._table.account.thick_snapshots(lv)
            if foreign := [found.name for found in snapshots if found.name not in self._table.entries]:
                raise PreconditionError(
                    f"volume {entry.record.name} has the snapshot {self._table.group}/{foreign[0]}, which is not"
                    " tonnage's and would go with it: remove that one first"
                )
            if not snapshots:
                self.discard(lv, entry)
            elif entry.kind is not TagKind.ORIGIN:
                origin = TagEntry(TagKind.ORIGIN, entry.record)
                self._table.retag(lv, entry, origin)
                self._table.keep(lv, origin)
                self.set_aside(lv, origin)

    def _is_origin(self, lv: str) -> bool:
        found = dm.status(lvm.mapper_name(self._table.group, lv))
        return found is not None and found[0] == "snapshot-origin"

    def discard(self, lv: str, entry: TagEntry, *, as_well: VolumeRecord | None = None) -> None:
        """Remove a logical volume of ours for good; start to erase it if its class says so.

        as_well: for a snapshot its volume, which may have changed since. Raises: HostError.
        """
        record = entry.record
        found = self._table.account.find(lv)
        asks = {**(as_well.volume().effective if as_well else {}), **record.parameters, **record.mutable}
        method = erase_of(asks) if record.state != "new" else "none"
        if method == "none" or found is None:
            self.remove(lv, entry)
            return
        parameters = {key: value for key, value in record.parameters.items() if not found.is_thick_snapshot}
        what = replace(record, length=found.size, parameters={**parameters, ERASE: method})
        erasing = TagEntry(TagKind.ERASING, what, method)
        self._table.retag(lv, entry, erasing)
        with self._table.account.lock:
            self._table.records.volumes.pop(record.name if entry.kind is TagKind.VOLUME else "", None)
            self._table.keep(lv, erasing)
        self.set_aside(lv, erasing)

    def set_aside(self, lv: str, entry: TagEntry) -> str:
        """Rename a deleted volume so that its name is free; return the new name. Idempotent."""
        name = lvm_tags.lv_name(self._table.group, entry)
        with self._renaming:  # the eraser does it too, as soon as the tags say so
            if lv not in self._table.entries:
                return name
            found = self._table.account.find(lv)
            if found is not None and found.is_thick_snapshot:
                lvm.lvm("lvconvert", "--yes", "--quiet", "--splitsnapshot", f"{self._table.group}/{lv}")
                self._table.account.split(lv)
            if name == lv:
                return lv
            lvm.lvm("lvrename", "--quiet", self._table.group, lv, name)
            with self._table.account.lock:
                self._table.account.renamed(lv, name)
                self._table.entries[name] = self._table.entries.pop(lv, entry)
        return name

    def remove(self, lv: str, entry: TagEntry) -> None:
        """Remove a logical volume; one that is gone is success. Raises: PreconditionError while in use, HostError."""
        with self._table.account.removing(lv, self._table.layout_of(lv, entry.record)), suppress(NotFoundError):
            lvm.lvm("lvremove", "--yes", "--quiet", f"{self._table.group}/{lv}")
        with self._table.account.lock:
            self._table.entries.pop(lv, None)
            self._table.recount()

    # Expansion

    def expand(self, name: str, size: int) -> VolumeRecord:
        """Expand a volume to `size` bytes; return its record. Raises: ExhaustedError, PreconditionError, HostError."""
        record, lv = self._table.records.get(name), self._table.lv(name)
        self.check_expand(record)
        larger = enlarged(record, size, is_used=record.state != "new")
        with self._table.counting(f"{name} more", size - record.size):
            try:
                self._extend(lv, record, larger.length)
            except TonnageError:
                refresh(self._table)
                raise
            self._table.retag(lv, TagEntry(TagKind.VOLUME, record), TagEntry(TagKind.VOLUME, larger))
            self._table.keep(lv, TagEntry(TagKind.VOLUME, larger), key=f"{name} more")
        return larger

    def check_expand(self, record: VolumeRecord) -> None:
        """Check whether a volume can be extended at the moment. Raises: PreconditionError, HostError."""
        is_used = record.state != "new"
        if is_used and not record.block and record.fstype == "ext4" and not filesystem.may_grow_ext4():
            raise PreconditionError(
                f"volume {record.name}: ext4 on a logical volume grows while it is mounted, as resize2fs on one that is"
                " not cannot be killed without damage, and that takes CAP_SYS_RESOURCE, which is lacking: run the"
                " driver with that capability, or use xfs"
            )
        lv = self._table.lv(record.name)
        if self._table.account.thick_snapshots(lv) and self.is_used(lv):
            raise PreconditionError(
                f"volume {record.name} is in use and has snapshots: LVM extends the origin of thick snapshots only"
                " while nothing uses it; stop its pod, or delete the snapshots"
            )

    def _extend(self, lv: str, record: VolumeRecord, length: int) -> None:
        found, extent = self._table.account.find(lv), self._table.extent()
        if found is None:
            raise NotFoundError(f"{self._table.group}/{lv} is gone")
        layout = self._table.layout_of(lv, record)
        extents, had = layout.extents(length, extent), found.size // extent
        if extents <= had:
            refresh(self._table)  # a command that did so may have been killed before the device was told
            return
        reservation = ExtentReservation(lv, layout, extents, extents * extent, had=had)
        if layout.thin:
            with self._table.account.making(reservation):
                lvm.lvm("lvextend", "--quiet", "--size", f"{reservation.size}b", f"{self._table.group}/{lv}")
            return
        with self._stopped(lv, record):
            if record.block and record.state != "new":
                self._extend_by_zeros(reservation, record)
                return
            with self._table.account.making(reservation):
                lvm.lvm("lvextend", "--quiet", "--extents", str(extents), f"{self._table.group}/{lv}")

    @contextmanager
    def _stopped(self, lv: str, record: VolumeRecord) -> Iterator[None]:
        """Deactivate a volume with thick snapshots while LVM extends it."""
        if not self._table.account.thick_snapshots(lv):
            yield
            return
        path = self._table.device_of(record)
        if path is not None:
            self._table.deactivate(lv)
        try:
            yield
        finally:
            if path is not None:
                self._table.activate(lv)

    def _extend_by_zeros(self, reservation: ExtentReservation, record: VolumeRecord) -> None:
        """Extend a raw block volume by extents that were zeroed before: its pod sees them at once."""
        more = reservation.extents - reservation.had
        scratch = TagEntry(
            TagKind.SCRATCH,
            replace(record, uuid=self._table.new_uuid(f"more of {record.name}", self._table.clock.time())),
        )
        name = lvm_tags.lv_name(self._table.group, scratch)
        helper = ExtentReservation(name, reservation.layout, more, reservation.more, tuple(lvm_tags.encode(scratch)))
        try:
            with self._table.account.making(helper):
                self.lvcreate(helper)
                self._table.keep(name, scratch)
            with block_device.locked(self._table.activate(name)) as fd:
                block_device.zero(fd)
            ranges = lvm.extents_of(self._table.group, name)
        finally:
            with suppress(NotFoundError):
                self.remove(name, scratch)
        with self._table.account.making(reservation):
            lvm.lvm(
                "lvextend",
                "--quiet",
                "--extents",
                str(reservation.extents),
                f"{self._table.group}/{reservation.name}",
                *ranges,
            )

    # The erase queue: the job is in the tags, the content in the logical volume with them

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
        lv = self.set_aside(*found) if found else f"e+{job.key}"
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
            self.remove(*found)
