"""The blocking back end of the LVM pool: logical volumes with records in their tags. Thread-safe.

A caller holds a lock for each volume name. Order of steps, so that a kill between any two loses nothing: create is one
lvcreate with all tags under a name that no volume has (TagKind.COPY); former content is zeroed, or a source is copied;
then one lvrename makes it the volume. delete is one lvremove, or one lvchange that makes it TagKind.ERASING or
TagKind.ORIGIN. The next open removes unused ones.
"""

from __future__ import annotations

import dataclasses
import fcntl
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid5

from msgspec.structs import replace

from tonnage.aio.clock import Clock
from tonnage.errors import (
    AlreadyExists,
    HostError,
    NotFound,
    OutOfRange,
    Precondition,
    TonnageError,
    Unavailable,
)
from tonnage.host import dm, lvm
from tonnage.pools.base.contract import Capacity, VolumeRequest
from tonnage.pools.base.overcommit import HUGE
from tonnage.pools.base.parameters import ERASE, MKFS_OPTIONS, SOURCE, erase_of
from tonnage.pools.base.record import VolumeRecord, upgraded
from tonnage.pools.core.request import RequestedVolume
from tonnage.pools.fs import block_device
from tonnage.pools.fs.ext4_layout import BLOCK
from tonnage.pools.fs.formats import Format, form_of
from tonnage.pools.lvm import recovery
from tonnage.pools.lvm import tags as lvm_tags
from tonnage.pools.lvm.accounting import MAX_AGE, ExtentReservation
from tonnage.pools.lvm.erase_queue import LvmErasures
from tonnage.pools.lvm.layout import Layout
from tonnage.pools.lvm.table import LvmTable
from tonnage.pools.lvm.tags import TagEntry, TagKind
from tonnage.pools.lvm.thin_pool import LvmLimits

log = logging.getLogger(__name__)
LOCKS = Path("/run/tonnage")


class LvmStore(LvmTable):
    """Logical volumes of a group: creation, deletion and recovery."""

    def __init__(self, name: str, group: str, bounds: LvmLimits, *, clock: Clock) -> None:
        super().__init__(name, group, bounds, clock=clock)
        self.erasures = LvmErasures(self)
        self.family = threading.Lock()
        """Protects an origin together with its thick snapshots."""
        self._renaming = threading.Lock()

    def open(self) -> None:
        """Lock the group, read it, finish what a kill interrupted. Raises Unavailable, HostError."""
        self._take()
        try:
            group = self.account.read()
            if not group.writable:
                raise Unavailable(f"volume group {self.group} is read-only or exported: lvm vgchange or vgimport it")
            self.refresh()
            self.thin.open(group)
            for lv, entry in list(self.entries.items()):
                self._recover(lv, entry)
            self._upgrade()
            self._wake()
            for name in list(self.records):
                self._part(self.lv(name))
            self._complete()
        except BaseException:
            self.close()
            raise

    def _upgrade(self) -> None:
        """Rewrite records of the first format, which passed all checks, with a checksum."""
        volumes = {self.lv(name): TagEntry(TagKind.VOLUME, record) for name, record in self.records.items()}
        for lv, entry in {**volumes, **self.entries}.items():
            if entry.record.version == lvm_tags.VERSION:
                continue
            after = dataclasses.replace(entry, record=upgraded(entry.record))
            try:
                self.retag(lv, entry, after)
                self.keep(lv, after)
            except TonnageError as failure:  # the next start does it
                log.warning("record keeps its old format volume=%s/%s error=%s", self.group, lv, failure)

    def _take(self) -> None:
        if self.held >= 0:
            return
        try:
            LOCKS.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(LOCKS / f"lvm-{self.group}.lock", flags, 0o600)
        except OSError as failure:
            raise HostError(f"cannot make a lock in {LOCKS}: {failure.strerror}") from failure
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Unavailable(
                f"volume group {self.group} is in use by another pool: name another group, or stop that one first"
            ) from None
        self.held = fd

    def frozen_mark(self, name: str) -> Path:
        """The mark file that exists while a volume's file system is frozen."""
        return LOCKS / f"lvm-{self.group}-{name}.frozen"

    def _wake(self) -> None:
        """Recover from a killed process: thaw file systems, free devices that are not published."""
        paths = {record.name: path for record in self.records.values() if (path := self.device_of(record))}
        for name, path in paths.items():
            if self.frozen_mark(name).exists():
                from tonnage.pools.fs import freeze

                freeze.thaw(path, self.records[name], self.frozen_mark(name))
        block_device.free_loops(paths.values())

    def refresh(self) -> None:
        """Bring devices up to LVM's metadata, if a command was interrupted. Idempotent."""
        with self.account.lock:
            names = [self.lv(name) for name in self.records]
            sizes = {lv: self.account.volumes[lv].size for lv in names if lv in self.account.volumes}
        recovery.refresh(self.group, sizes)

    def _complete(self) -> None:
        """Activate new or renamed volumes that were never staged, as LVM does last: a kill may have prevented it.

        Their content stays, whatever their records say.
        """
        new = [record for record in self.records.values() if record.state == "new"]
        if inactive := [f"{self.group}/{self.lv(record.name)}" for record in new if self.device_of(record) is None]:
            try:
                lvm.lvm("lvchange", "--quiet", "--activate", "y", *inactive)
            except TonnageError as failure:
                log.warning("cannot activate new volumes error=%s", failure)

    def _recover(self, lv: str, entry: TagEntry) -> None:
        """Finish or undo what a kill interrupted. A failure is left for the next start: the others are served."""
        try:
            if entry.kind in (TagKind.COPY, TagKind.SCRATCH):
                log.info("removing leftovers of an interrupted call volume=%s/%s", self.group, lv)
                self.discard(lv, entry)
            elif entry.kind is TagKind.ERASING:
                self.set_aside(lv, entry)
            elif entry.kind is TagKind.ORIGIN:
                self.let_go(self.set_aside(lv, entry), entry)
        except TonnageError as failure:
            log.warning("cannot complete an interrupted call volume=%s/%s error=%s", self.group, lv, failure)

    def _part(self, lv: str) -> None:
        """Remove the device of a thick snapshot that a killed lvremove had taken out of the group."""
        name = f"{lvm.mapper_name(self.group, lv)}-real"
        if self.account.thick_snapshots(lv) or dm.status(name) is None:
            return
        log.info("removing leftovers of an interrupted call device=%s", name)
        try:
            lvm.lvm("lvchange", "--refresh", f"{self.group}/{lv}")
        except TonnageError as failure:
            log.warning("cannot complete an interrupted call volume=%s/%s error=%s", self.group, lv, failure)

    def close(self) -> None:
        self.account.forget()
        if self.held >= 0:
            os.close(self.held)
        self.held = -1

    def check_disks(self, layout: Layout) -> None:
        """Raises OutOfRange when the group has too few disks for a layout."""
        if layout.disks > (has := len(self.account.fresh().disks)):
            raise OutOfRange(
                f"a volume with {layout.stripes} stripes and {layout.mirrors} mirrors can never fit: it needs"
                f" {layout.disks} disks, volume group {self.group} has {has}"
            )

    def room(self, fstype: str, parameters: Mapping[str, str]) -> Capacity:
        self.check_open()
        form = form_of(fstype, parameters.get(MKFS_OPTIONS, "")) if fstype else None
        return self.room_for(form, self.layout(parameters))

    def room_for(self, form: Format | None, layout: Layout) -> Capacity:
        """Capacity for volumes of a layout with that file system, None for raw block. Raises Unavailable."""
        with self.account.lock:
            room = self.account.room(layout, max_age=MAX_AGE)
            if layout.thin and self.thin.is_full():
                room = 0
            size, used = self.most, self.used
            extent = self.extent()
        free = max(0, size - used) if size else HUGE
        step = BLOCK if form else extent * layout.stripes
        enough = form.length(free) if form and size else free
        if room < enough:
            free = min(free, form.usable(room) if form else room)
        least = form.least if form else step
        largest = free // step * step
        return Capacity(
            total=size or used + free, free=free, largest=largest if largest >= least else 0, smallest=least, used=used
        )

    def reread(self) -> bool:
        """Read the group again, unless that was a moment ago; return whether it was read. Raises Unavailable."""
        with self.account.lock:
            before = self.account.reads
            self.account.fresh(max_age=1.0)
            return self.account.reads != before

    def most_volumes(self) -> int:
        """Maximum number of our volumes in the group, 0 for unlimited. Raises Unavailable."""
        with self.account.lock:
            group = self.account.fresh()
            ours = sum(lvm_tags.is_ours(found.tags) for found in group.volumes.values())
        return max(1, group.most - (group.count - ours)) if group.most else 0

    def create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> VolumeRecord:
        entry = TagEntry(TagKind.COPY, self.new_record(request, want, origin))
        self.check_name(request.name)
        booking = self.booking(entry, self.layout(request.parameters))
        with self.counting(request.name, want.size):
            try:
                with self.account.making(booking):
                    self.lvcreate(booking)
                    self.keep(booking.name, entry)
                if entry.record.block and not booking.layout.thin:
                    self._zero(booking.name)
                self.complete(booking.name, entry.record)
            except BaseException:
                self.undo(booking.name, entry)
                raise
        return entry.record

    def _zero(self, lv: str) -> None:
        """Zero the former content of a raw block volume, which has no file system to hide it. Raises HostError."""
        try:
            with block_device.locked(self.activate(lv)) as fd:
                block_device.zero(fd)
        except OSError as failure:
            raise HostError(f"cannot overwrite {self.group}/{lv}: {failure.strerror}") from failure

    def complete(self, lv: str, record: VolumeRecord) -> None:
        """Rename what was made to its volume's name, which creates the volume. Raises HostError."""
        name = self.lv(record.name)
        lvm.lvm("lvrename", "--quiet", self.group, lv, name)
        with self.account.lock:
            self.account.renamed(lv, name)
            self.entries.pop(lv, None)
            self.keep(name, TagEntry(TagKind.VOLUME, record), key=record.name)

    def undo(self, lv: str, entry: TagEntry) -> None:
        """Remove what a failed call has made; on failure a later call removes it."""
        with suppress(TonnageError):
            if self.account.find(lv) is not None:
                self.discard(lv, entry)

    def check_name(self, name: str) -> None:
        """Free the name for a new volume. Raises AlreadyExists when it belongs to others, HostError."""
        self.check_damaged(name)
        lv = self.lv(name)
        for left, entry in list(self.entries.items()):
            is_half = entry.kind is TagKind.COPY and entry.record.name == name
            if left == lv or is_half:  # of a call that failed, and could not be removed then
                self.discard(left, entry)
        for max_age in (float("inf"), 0.0):
            with self.account.lock:
                self.account.fresh(max_age=max_age)
                found = self.account.volumes.get(lv)
            if found is None or lvm_tags.is_ours(found.tags):
                return
        raise AlreadyExists(f"{self.group}/{lv} is a logical volume that is not tonnage's: it is left alone")

    def new_uuid(self, name: str, created: float) -> UUID:
        """A UUID for a volume's file system; it also distinguishes two volumes of one name."""
        return uuid5(NAMESPACE_URL, f"lvm:{self.group}/{name}/{created!r}")

    def new_record(
        self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None
    ) -> VolumeRecord:
        """The record of a volume to create. origin: the source; if it was never used, its record is the model."""
        created = self.clock.time()
        mkfs = request.parameters.get(MKFS_OPTIONS, "") if origin is None else origin.mkfs
        folder = request.parameters.get(SOURCE, "") if origin is None else origin.from_folder
        return VolumeRecord(
            request.name,
            want.size,
            self.new_uuid(request.name, created),
            length=form_of(want.fstype, mkfs).length(want.size) if want.fstype else want.size,
            block=request.block,
            fstype=want.fstype,
            parameters=dict(request.parameters),
            owner=dict(request.owner),
            created=created,
            from_snapshot=request.source.snapshot if request.source else "",
            from_volume=request.source.volume if request.source else "",
            from_folder=folder if origin is None or origin.state == "new" else "",
            mkfs=mkfs,
            mutable={key: value for key, value in request.mutable.items() if value},
        )

    def booking(self, entry: TagEntry, layout: Layout) -> ExtentReservation:
        """The reservation of a logical volume to create."""
        extent = self.extent()
        extents = layout.extents(entry.record.length, extent)
        tags = tuple(lvm_tags.encode(entry))
        return ExtentReservation(lvm_tags.lv_name(self.group, entry), layout, extents, extents * extent, tags)

    def lvcreate(self, booking: ExtentReservation) -> None:
        """Make an empty logical volume. Raises Exhausted, HostError."""
        tags = [word for tag in booking.tags for word in ("--addtag", tag)]
        command = ["lvcreate", "--yes", "--quiet", "--name", booking.name, *tags]
        if booking.layout.thin:
            command += ["--thinpool", self.bounds.thin, "--virtualsize", f"{booking.size}b"]
            self.thin.make(*command, self.group)
            self.empty(booking.name)
        else:
            command += ["--wipesignatures", "y", "--zero", "y", "--extents", str(booking.extents)]
            lvm.lvm(*command, *booking.layout.arguments(), self.group)

    def empty(self, lv: str) -> None:
        """Discard the content of a new thin volume. Raises HostError.

        LVM may have given it a device that a killed command had left, with the content of another volume.
        """
        mapper = lvm.mapper_name(self.group, lv)
        if not dm.thin_mapped(mapper):
            return
        log.warning("new thin volume is not empty, emptied volume=%s/%s", self.group, lv)
        try:
            with block_device.locked(self.activate(lv)) as fd:
                block_device.discard(fd)
                if dm.thin_mapped(mapper):  # its pool ignores discards
                    block_device.zero(fd)
        except OSError as failure:
            raise HostError(f"cannot empty {self.group}/{lv}: {failure.strerror}") from failure

    def delete(self, name: str) -> None:
        self.check_open()
        self.account.fresh()
        record = self.records.get(name)
        if record is None:
            self.check_damaged(name)
            return
        lv = self.lv(name)
        self.check_unused(lv, f"volume {name}")
        self.let_go(lv, TagEntry(TagKind.VOLUME, record))
        with self.account.lock:
            self.records.pop(name, None)
            self.recount()

    def check_unused(self, lv: str, what: str) -> None:
        """Raises Precondition while a logical volume is open or its device published."""
        if self.is_used(lv):
            raise Precondition(f"{what} is in use (mounted or attached): unpublish and unstage it first")

    def is_used(self, lv: str) -> bool:
        """Whether a device is open, or its node is where it could be opened. udev may open it for a moment."""
        path = lvm.device(self.group, lv)
        if path is None:
            return False
        return block_device.is_bound(path) or block_device.stays(
            lambda: dm.open_count(lvm.mapper_name(self.group, lv)) > 0
        )

    def let_go(self, lv: str, entry: TagEntry) -> None:
        """Remove an unused volume, or rename it while its thick snapshots need it.

        lvremove would remove them too. Raises Precondition when one of them is not tonnage's, HostError.
        """
        if self._is_origin(lv) and not self.account.thick_snapshots(lv):
            self.account.read()
        with self.family if self.account.thick_snapshots(lv) else nullcontext():
            snapshots = self.account.thick_snapshots(lv)
            if foreign := [found.name for found in snapshots if found.name not in self.entries]:
                raise Precondition(
                    f"volume {entry.record.name} has the snapshot {self.group}/{foreign[0]}, which is not tonnage's and"
                    " would go with it: remove that one first"
                )
            if not snapshots:
                self.discard(lv, entry)
            elif entry.kind is not TagKind.ORIGIN:
                origin = TagEntry(TagKind.ORIGIN, entry.record)
                self.retag(lv, entry, origin)
                self.keep(lv, origin)
                self.set_aside(lv, origin)

    def _is_origin(self, lv: str) -> bool:
        found = dm.status(lvm.mapper_name(self.group, lv))
        return found is not None and found[0] == "snapshot-origin"

    def discard(self, lv: str, entry: TagEntry, *, as_well: VolumeRecord | None = None) -> None:
        """Remove a logical volume of ours for good; start to erase it if its class says so.

        as_well: for a snapshot its volume, which may have changed since. Raises HostError.
        """
        record = entry.record
        found = self.account.find(lv)
        asks = {**(as_well.volume().effective if as_well else {}), **record.parameters, **record.mutable}
        method = erase_of(asks) if record.state != "new" else "none"
        if method == "none" or found is None:
            self.remove(lv, entry)
            return
        parameters = {key: value for key, value in record.parameters.items() if not found.is_thick_snapshot}
        what = replace(record, length=found.size, parameters={**parameters, ERASE: method})
        erasing = TagEntry(TagKind.ERASING, what, method)
        self.retag(lv, entry, erasing)
        with self.account.lock:
            self.records.pop(record.name if entry.kind is TagKind.VOLUME else "", None)
            self.keep(lv, erasing)
        self.set_aside(lv, erasing)

    def set_aside(self, lv: str, entry: TagEntry) -> str:
        """Rename a deleted volume so that its name is free; return the new name. Idempotent."""
        name = lvm_tags.lv_name(self.group, entry)
        with self._renaming:  # the eraser does it too, as soon as the tags say so
            if lv not in self.entries:
                return name
            found = self.account.find(lv)
            if found is not None and found.is_thick_snapshot:
                lvm.lvm("lvconvert", "--yes", "--quiet", "--splitsnapshot", f"{self.group}/{lv}")
                self.account.split(lv)
            if name == lv:
                return lv
            lvm.lvm("lvrename", "--quiet", self.group, lv, name)
            with self.account.lock:
                self.account.renamed(lv, name)
                self.entries[name] = self.entries.pop(lv, entry)
        return name

    def remove(self, lv: str, entry: TagEntry) -> None:
        """Remove a logical volume; one that is gone is success. Raises Precondition while in use, HostError."""
        with self.account.removing(lv, self.layout_of(lv, entry.record)), suppress(NotFound):
            lvm.lvm("lvremove", "--yes", "--quiet", f"{self.group}/{lv}")
        with self.account.lock:
            self.entries.pop(lv, None)
            self.recount()
