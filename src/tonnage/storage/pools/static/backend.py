"""The static back end: prepared mount points and block devices in a directory, each one volume of its size.

A claim gets a whole disk, the smallest that is large enough. A cleaner erases the disk before it is used again. There
is no expansion, clone or snapshot. Needs root.

Each call that needs capacity reads the directory, so disks that are mounted later are found without a restart. A disk
is chosen under one lock, and recorded before anything else is done with it. A missing or exchanged disk is reported,
and its volume is never reported as deleted. A disk without a record is offered only if its content allows it: records
can be lost.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.errors import (
    ExhaustedError,
    HostError,
    NotFoundError,
    OutOfRangeError,
    UnavailableError,
    UnsupportedError,
)
from tonnage.host import disk as disks
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.pools.base.contract import Capacity, Erasure, Features, PoolVolume, VolumeRequest
from tonnage.storage.pools.base.parameters import BANDWIDTH, ERASE, IOPS, MKFS_OPTIONS, RESERVE, SOURCE
from tonnage.storage.pools.base.record import Records, VolumeRecord, new_record
from tonnage.storage.pools.core.backend import Backend, RequestedVolume
from tonnage.storage.pools.core.wipe import OVERWRITES
from tonnage.storage.pools.directory.directory import OWN
from tonnage.storage.pools.static import content
from tonnage.storage.pools.static.cleaner import CLEANER, Cleaning, cleaner_of, job_for
from tonnage.storage.pools.static.discovery import FoundDisk, StaticDisk, check_directory, look
from tonnage.storage.pools.static.mount import StaticMounts, check_unused, elsewhere
from tonnage.storage.pools.static.records import DiskRecord, DiskRecords

log = logging.getLogger(__name__)
_NONE = FoundDisk({}, {})


_ALONE = "a volume is a whole disk and shares it with no other volume"
FEATURES = Features(
    "static",
    fstypes=("ext4", "xfs", "btrfs"),
    parameters=frozenset({CLEANER}),
    rejected={
        ERASE: "the parameter cleaner says how a disk is erased",
        RESERVE: _ALONE,
        IOPS: _ALONE,
        BANDWIDTH: _ALONE,
        SOURCE: "a disk is used with the content that it was prepared with",
        MKFS_OPTIONS: "make the file system beforehand, it is used as it is",
    },
    step=1,
    least=1,
    whole_disks=True,
)


class StaticBackend(Backend):
    """The disks of a discovery directory and their volumes. Without a file system, any mounted one fits a request."""

    features = FEATURES

    def __init__(self, directory: Path, *, clock: Clock | None = None) -> None:
        self.directory = directory.parent.resolve() / directory.name  # the kernel names mounts by real paths
        self.records = Records(f"static pool {self.directory}")
        self._clock = clock or RealClock()
        self.disk_records = DiskRecords(self.directory / OWN)
        self.erasures: Cleaning = Cleaning(self.disk_records, self.present, self._freed)
        self._entries: dict[str, str] = {}  # volume -> its disk
        self._found = _NONE
        self._lost: dict[str, str] = {}  # volumes without a record -> the disks that say they are them
        self.mounts = StaticMounts(self._disk_of, self.write)

    # Opening

    def load(self) -> None:
        check_directory(self.directory)
        self.disk_records.open(self.name)
        self.records.volumes, self._entries, self.records.damaged = {}, {}, {}
        for entry, record in sorted(self.disk_records.disks.items()):
            if record.volume is None:
                continue
            name = record.volume.name
            if name in self.records.volumes:  # copied by hand: we cannot know which one has the data
                self.records.damaged[name] = f"disks {self._entries[name]} and {entry} both say they are it"
                continue
            self.records.volumes[name], self._entries[name] = record.volume, entry
        for name in self.records.damaged:
            self.records.volumes.pop(name, None)
        for name, entry in self.disk_records.volumes.items():
            if name not in self.records.volumes:
                self.records.damaged[name] = f"disk {entry}: {self.disk_records.damaged[entry]}"
        self.refresh()
        for name, entry in self._entries.items():
            if fault := self._absence(entry):
                log.error("disk of a volume is missing volume=%s fault=%s", name, fault)
            else:
                self._mark(name, self._found.disks[entry])

    def _mark(self, name: str, disk: StaticDisk) -> None:
        """Mark the disk of a volume, unless a kill or a former version prevented that, it is marked."""
        try:
            content.take(disk, name)
        except HostError as failure:  # it may be full: the record is there
            log.warning("disk of a volume is not marked volume=%s error=%s", name, failure)

    def devices(self) -> Sequence[Path]:
        return [disk.node or Path("/dev/block", disk.number) for disk in self._found.disks.values()]

    def close(self) -> None:
        self.disk_records.close()

    @property
    def is_open(self) -> bool:
        return self.disk_records.is_open

    # Looking at disks

    def refresh(self) -> FoundDisk:
        """Read the directory again; log newly rejected entries. Raises: UnavailableError."""
        with self.records.lock:  # it opens free devices exclusively: a concurrent read, or mkfs on one, would get EBUSY
            found = look(self.directory)
            unknown = [disk for entry, disk in found.disks.items() if self._is_unknown(entry)]
            self._lost = content.lost_volumes(unknown)
            taken = {disk.entry: _taken_by_others(disk) or content.foreign(disk) for disk in unknown}
            rejected = {**found.rejected, **self._damaged(), **{entry: why for entry, why in taken.items() if why}}
            for entry, why in rejected.items():
                if self._found.rejected.get(entry) != why:
                    log.warning("entry is no volume path=%s reason=%s", self.directory / entry, why)
            self._found = FoundDisk(found.disks, rejected)
            return self._found

    def _is_unknown(self, entry: str) -> bool:
        return entry not in self.disk_records.disks and entry not in self.disk_records.damaged

    def _damaged(self) -> dict[str, str]:
        return {
            entry: f"its record is damaged ({why}): {self.records.remedy}"
            for entry, why in self.disk_records.damaged.items()
        }

    def problems(self, erasing: Sequence[Erasure]) -> list[str]:
        """Entries that are not volumes, missing disks, and failing cleaners. Raises: UnavailableError."""
        rejected = self.refresh().rejected
        missing = [fault for entry in sorted(self.disk_records.disks) if (fault := self._absence(entry))]
        return [f"{self.directory / entry}: {why}" for entry, why in sorted(rejected.items())] + [
            *missing,
            *(f"volume {e.name} is not cleaned: {e.problem}" for e in erasing if e.problem),
        ]

    def _absence(self, entry: str) -> str:
        """Why the disk of an entry is not the recorded one, "" when it is."""
        record, disk = self.disk_records.disks.get(entry), self._found.disks.get(entry)
        if record is None:
            return ""  # the cleaner has ended in its thread: the disk is free
        if disk is None:
            why = self._found.rejected.get(entry, "it does not exist")
            return f"disk {self.directory / entry}: {why}; bring it back as it was"
        if disk.identity != record.identity:
            return (
                f"disk {self.directory / entry} is another one than it was (was {record.identity}, is {disk.identity}):"
                " bring the former one back"
            )
        if record.volume is not None and (other := self._lost.get(record.volume.name)):
            return (
                f"disk {self.directory / entry}: disk {self.directory / other} says that it is volume"
                f" {record.volume.name}, too: put the newest copy of the records back and restart the driver"
            )
        why = content.stranger(record, disk)
        return why and f"disk {self.directory / entry}: {why}"

    def present(self, entry: str) -> StaticDisk:
        """The disk of a record. Raises: HostError when it is missing or another one; UnavailableError."""
        found = self.refresh()
        if fault := self._absence(entry):
            raise HostError(fault)
        return found.disks[entry]

    def _disk_of(self, name: str) -> StaticDisk:
        """The disk of a volume. Raises: UnavailableError: an unreachable volume is not deleted."""
        try:
            return self.present(self._entries[name])
        except HostError as fault:
            raise UnavailableError(f"volume {name}: {fault}") from None

    # Capacity

    def check(self, parameters: Mapping[str, str], fstype: str, *, block: bool) -> None:
        cleaner = cleaner_of(parameters)
        if cleaner in OVERWRITES and not block and not fstype:
            raise UnsupportedError(
                f"cleaner {cleaner} overwrites a whole device, which a file system that is mounted already does not"
                " allow: use quick or discard, raw block volumes, or name a file system with"
                " csi.storage.k8s.io/fstype"
            )

    def capacity(self, fstype: str, parameters: Mapping[str, str], *, block: bool) -> Capacity:
        """Capacity for volumes of a class. free: the sum of all free disks; largest: the size of the largest of them.

        fstype "" and not block: any mounted one.
        """
        self.check_open()
        return self._capacity(list(self._fitting(self.refresh(), fstype, parameters, block=block)))

    def overall(self) -> Capacity:
        """Capacity of all disks. Raises: UnavailableError."""
        self.check_open()
        found = self.refresh()
        return self._capacity([(disk, disk.size) for disk in found.disks.values() if disk.entry not in found.rejected])

    def _capacity(self, fitting: Sequence[tuple[StaticDisk, int]]) -> Capacity:
        total = sum(size for _, size in fitting)
        free = [size for disk, size in fitting if disk.entry not in self.disk_records.disks]
        smallest = min(free or [size for _, size in fitting], default=0)
        return Capacity(total, sum(free), max(free, default=0), smallest, total - sum(free))

    def _fitting(
        self, found: FoundDisk, fstype: str, parameters: Mapping[str, str], *, block: bool
    ) -> Iterator[tuple[StaticDisk, int]]:
        """Disks, free or not, that fit a class, with their size for it."""
        overwrites = cleaner_of(parameters) in OVERWRITES
        for disk in found.disks.values():
            if disk.entry in found.rejected:
                continue
            if disk.block:
                size = disk.usable(fstype) if block or fstype else 0
            else:
                size = 0 if block or overwrites or fstype not in ("", disk.fstype) else disk.size
            if size > 0:
                yield disk, size

    # Taking and giving back

    def create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> VolumeRecord:
        """Create a volume of the smallest free disk that fits.

        Raises: ExhaustedError, OutOfRangeError, HostError, UnavailableError.
        """
        self.records.check_damaged(request.name)
        with self.records.lock:
            disk, size = self._choose(request, want)
            self._check_lost(request.name)
            fstype = "" if request.block else want.fstype or disk.fstype
            uuid = content.uuid_of(request.name)
            record = new_record(request, size, fstype, uuid=uuid, created=self._clock.time())
            record = replace(record, length=disk.size if disk.block else 0)
            self._take(disk, record)
            self.records.volumes[record.name], self._entries[record.name] = record, disk.entry
        log.info("disk taken volume=%s disk=%s bytes=%d", record.name, disk.path, record.size)
        return record

    def _take(self, disk: StaticDisk, record: VolumeRecord) -> None:
        self.disk_records.write(DiskRecord(disk.entry, disk.identity, volume=record))
        try:
            content.take(disk, record.name)
        except HostError:
            self.disk_records.remove(disk.entry)
            raise

    def _choose(self, request: VolumeRequest, want: RequestedVolume) -> tuple[StaticDisk, int]:
        fitting = list(self._fitting(self.refresh(), want.fstype, request.parameters, block=request.block))
        enough = [(disk, size) for disk, size in fitting if want.size <= size <= (request.limit or size)]
        free = [(disk, size) for disk, size in enough if disk.entry not in self.disk_records.disks]
        if free:
            return min(free, key=lambda item: (item[1], item[0].entry))
        kind = "raw block" if request.block else want.fstype or "mounted"
        asked = f"volume {request.name} of {from_bytes(want.size)}"
        if request.limit:
            asked += f" to {from_bytes(request.limit)}"
        if not enough:
            sizes = ", ".join(from_bytes(size) for size in sorted(size for _, size in fitting)) or "none"
            raise OutOfRangeError(f"{asked} can never fit: the {kind} disks of {self.records.where} are {sizes}")
        raise ExhaustedError(
            f"{asked} does not fit: the {len(enough)} {kind} disks of {self.records.where} that are large enough are"
            " volumes already, or being cleaned"
        )

    def write(self, record: VolumeRecord) -> None:
        entry = self._entries[record.name]
        with self.records.lock:
            self.disk_records.write(replace(self.disk_records.disks[entry], volume=record))
            self.records.volumes[record.name] = record

    def delete(self, name: str) -> None:
        """Delete a volume: its name is free, the disk when it is clean; at once if it was never used."""
        self.check_open()
        if (record := self.records.volumes.get(name)) is None:
            self.records.check_damaged(name)
            self._check_unknown(name)
            return
        disk = self._disk_of(name)
        check_unused(name, disk)
        with self.records.lock:
            if record.state == "new" and not content.is_used(disk):
                content.give_back(disk)
                self.disk_records.remove(disk.entry)
            else:
                job = job_for(disk, name, cleaner_of(record.parameters))
                self.disk_records.write(DiskRecord(disk.entry, disk.identity, job=job))
            del self.records.volumes[name], self._entries[name]

    def shows_use(self, record: VolumeRecord) -> bool:
        return content.shows_use(self._disk_of(record.name))

    def record(self, name: str) -> VolumeRecord:
        try:
            return super().record(name)
        except NotFoundError:
            self._check_unknown(name)
            raise

    def _check_unknown(self, name: str) -> None:
        """Raises: HostError if an unknown volume may have a damaged or lost record: it is not deleted then."""
        self._check_lost(name)
        if damaged := sorted(self.disk_records.damaged.items()):
            entry, why = damaged[0]
            raise HostError(
                f"volume {name[:128]} may be disk {self.directory / entry}, whose record is damaged ({why}), nothing"
                f" was touched: {self.records.remedy}"
            )

    def _check_lost(self, name: str) -> None:
        """Raises: HostError if a disk without a record says that it is that volume."""
        if entry := self._lost.get(name):
            raise HostError(
                f"volume {name[:128]}: disk {self.directory / entry} says that it is this volume, and its record is not"
                " here, nothing was touched: put a copy of the record back and restart the driver"
            )

    def give_up(self) -> None:
        """Delete all volumes at the end of their cluster. Idempotent.

        Raises: PreconditionError, UnavailableError, HostError.

        Quick cleaners run at once, others when the pool is opened next.
        """
        for name in sorted(self.records.volumes):
            self.delete(name)
        for job in self.erasures.jobs():
            if job.is_done:
                self.erasures.finish(job)

    def _freed(self, entry: str) -> None:
        log.info("disk is clean and free path=%s", self.directory / entry)

    def fault(self, record: VolumeRecord) -> str:
        self.refresh()
        return self._absence(self._entries[record.name])

    def volume(self, record: VolumeRecord) -> PoolVolume:
        """The PoolVolume, with the entry as its place, "" when it is deleted meanwhile."""
        return dataclasses.replace(record.volume(), place=self._entries.get(record.name, ""))

    def home(self, volume: PoolVolume) -> Path | None:
        """The entry of the volume, a mount."""
        return self.directory / volume.place


def _taken_by_others(disk: StaticDisk) -> str:
    """The user of a disk that is not a volume yet, "" for none."""
    if disk.node is None:
        place = elsewhere(disk)
        return f"its file system is mounted at {place} too, outside the pool; unmount it there" if place else ""
    try:
        major, minor = map(int, disk.number.split(":"))
        user = next(disks.users_of(disk.node, os.makedev(major, minor)), "")
    except OSError as failure:
        return f"its device {disk.node} cannot be looked at: {failure.strerror}"
    return f"its device {disk.node} is in use: {user}; free it" if user else ""
