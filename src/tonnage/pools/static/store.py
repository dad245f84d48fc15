"""The blocking back end of the static pool: which disk is which volume. Thread-safe.

Each call that needs capacity reads the directory, so disks that are mounted later are found without a restart. A disk
is chosen under one lock, and recorded before anything else is done with it. A missing or exchanged disk is reported,
and its volume is never reported as deleted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from msgspec.structs import replace

from tonnage.aio.clock import Clock
from tonnage.api.quantity import from_bytes
from tonnage.errors import Exhausted, HostError, NotFound, OutOfRange, Precondition, Unavailable
from tonnage.host import disk as disks
from tonnage.pools.base.contract import Capacity, Stats, VolumeRequest
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.core.backend import RecordStore
from tonnage.pools.core.request import RequestedVolume
from tonnage.pools.core.wipe import OVERWRITES
from tonnage.pools.directory.directory import OWN
from tonnage.pools.static import mount
from tonnage.pools.static.cleaner import Cleaning, cleaner_of, job_for
from tonnage.pools.static.discovery import FoundDisk, StaticDisk, check_directory, look
from tonnage.pools.static.records import DiskRecord, DiskRecords

log = logging.getLogger(__name__)
_NONE = FoundDisk({}, {})


class StaticStore(RecordStore):
    """The disks of a discovery directory and their volumes."""

    def __init__(self, directory: Path, *, clock: Clock) -> None:
        self.directory = directory.parent.resolve() / directory.name  # the kernel names mounts by real paths
        super().__init__(f"static pool {self.directory}", clock=clock)
        self.disk_records = DiskRecords(self.directory / OWN)
        self.erasures: Cleaning = Cleaning(self.disk_records, self.present, self._freed)
        self._entries: dict[str, str] = {}  # volume -> its disk
        self._found = _NONE

    # Opening

    def open(self) -> None:
        check_directory(self.directory)
        try:
            self.disk_records.open(self.pool)
            self._load()
        except OSError as failure:
            self.close()
            raise Unavailable(f"{self.where}: {failure.strerror}") from failure
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        self.records, self._entries, self.damaged = {}, {}, {}
        for entry, record in sorted(self.disk_records.disks.items()):
            if record.volume is None:
                continue
            name = record.volume.name
            if name in self.records:  # copied by hand: we cannot know which one has the data
                self.damaged[name] = f"disks {self._entries[name]} and {entry} both say they are it"
                continue
            self.records[name], self._entries[name] = record.volume, entry
        for name in self.damaged:
            self.records.pop(name, None)
        for name, entry in self.disk_records.volumes.items():
            if name not in self.records:
                self.damaged[name] = f"disk {entry}: {self.disk_records.damaged[entry]}"
        self.refresh()
        for name, entry in self._entries.items():
            if fault := self._absence(entry):
                log.error("disk of a volume is missing volume=%s fault=%s", name, fault)

    def close(self) -> None:
        self.disk_records.close()

    @property
    def is_open(self) -> bool:
        return self.disk_records.is_open

    # Looking at disks

    def refresh(self) -> FoundDisk:
        """Read the directory again; log newly rejected entries. Raises Unavailable."""
        with self.lock:  # it opens free devices exclusively: a concurrent read, or mkfs on one, would get EBUSY
            found = look(self.directory)
            refused = dict(found.refused)
            refused |= {
                entry: f"its record is damaged ({why}): {self.remedy}"
                for entry, why in self.disk_records.damaged.items()
            }
            for entry, disk in found.disks.items():
                if entry not in self.disk_records.disks and entry not in refused and (why := _taken_by_others(disk)):
                    refused[entry] = why
            for entry, why in refused.items():
                if self._found.refused.get(entry) != why:
                    log.warning("entry is no volume path=%s reason=%s", self.directory / entry, why)
            self._found = FoundDisk(found.disks, refused)
            return self._found

    def problems(self) -> list[str]:
        """Problems of the directory's entries and the disks of volumes, and what to do. Raises Unavailable."""
        refused = self.refresh().refused
        missing = [fault for entry in sorted(self.disk_records.disks) if (fault := self._absence(entry))]
        return [f"{self.directory / entry}: {why}" for entry, why in sorted(refused.items())] + missing

    def _absence(self, entry: str) -> str:
        """Why the disk of an entry is not the recorded one, "" when it is."""
        record, disk = self.disk_records.disks[entry], self._found.disks.get(entry)
        if disk is None:
            why = self._found.refused.get(entry, "it is not there")
            return f"disk {self.directory / entry}: {why}; bring it back as it was"
        if disk.identity != record.identity:
            return (
                f"disk {self.directory / entry} is another one than it was (was {record.identity}, is {disk.identity}):"
                " bring the former one back"
            )
        return ""

    def present(self, entry: str) -> StaticDisk:
        """The disk of a record. Raises HostError when it is missing or another one; Unavailable."""
        found = self.refresh()
        if fault := self._absence(entry):
            raise HostError(fault)
        return found.disks[entry]

    def _disk_of(self, name: str) -> StaticDisk:
        """The disk of a volume. Raises Unavailable: an unreachable volume is not deleted."""
        try:
            return self.present(self._entries[name])
        except HostError as fault:
            raise Unavailable(f"volume {name}: {fault}") from None

    # Room

    def room(self, fstype: str, parameters: Mapping[str, str]) -> Capacity:
        """Capacity; "" is raw block. Mounted file systems count in room_for()."""
        return self.room_for(fstype, parameters, block=not fstype)

    def room_for(self, fstype: str, parameters: Mapping[str, str], *, block: bool) -> Capacity:
        """Capacity for volumes of a class. fstype "" and not block: any mounted one. Raises Unavailable, Invalid."""
        self.check_open()
        return self._room(list(self._fitting(self.refresh(), fstype, parameters, block=block)))

    def overall(self) -> Capacity:
        """Capacity of all disks. Raises Unavailable."""
        self.check_open()
        found = self.refresh()
        return self._room([(disk, disk.size) for disk in found.disks.values() if disk.entry not in found.refused])

    def _room(self, fitting: Sequence[tuple[StaticDisk, int]]) -> Capacity:
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
            if disk.entry in found.refused:
                continue
            if disk.block:
                size = disk.usable(fstype) if block or fstype else 0
            else:
                size = 0 if block or overwrites or fstype not in ("", disk.fstype) else disk.size
            if size > 0:
                yield disk, size

    # Taking and giving back

    def create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> VolumeRecord:
        """Create a volume of the smallest free disk that fits. Raises Exhausted, OutOfRange, HostError, Unavailable."""
        self.check_damaged(request.name)
        with self.lock:
            disk, size = self._choose(request, want)
            record = VolumeRecord(
                request.name,
                size,
                uuid4(),
                length=disk.size if disk.block else 0,
                block=request.block,
                fstype="" if request.block else want.fstype or disk.fstype,
                parameters=dict(request.parameters),
                owner=dict(request.owner),
                created=self.clock.time(),
            )
            self.disk_records.write(DiskRecord(disk.entry, disk.identity, volume=record))
            self.records[record.name], self._entries[record.name] = record, disk.entry
        log.info("disk taken volume=%s disk=%s bytes=%d", record.name, disk.path, record.size)
        return record

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
            raise OutOfRange(f"{asked} can never fit: the {kind} disks of {self.where} are {sizes}")
        raise Exhausted(
            f"{asked} does not fit: the {len(enough)} {kind} disks of {self.where} that are large enough are volumes"
            " already, or being cleaned"
        )

    def write(self, record: VolumeRecord) -> None:
        entry = self._entries[record.name]
        with self.lock:
            self.disk_records.write(replace(self.disk_records.disks[entry], volume=record))
            self.records[record.name] = record

    def delete(self, name: str) -> None:
        """Delete a volume: its name is free, the disk when it is clean; at once if it was never used."""
        self.check_open()
        if (record := self.records.get(name)) is None:
            self.check_damaged(name)
            self._check_unknown(name)
            return
        disk = self._disk_of(name)
        mount.check_unused(name, disk)
        with self.lock:
            if record.state == "new":
                self.disk_records.remove(disk.entry)
            else:
                job = job_for(disk, name, cleaner_of(record.parameters))
                self.disk_records.write(DiskRecord(disk.entry, disk.identity, job=job))
            del self.records[name], self._entries[name]

    def record(self, name: str) -> VolumeRecord:
        try:
            return super().record(name)
        except NotFound:
            self._check_unknown(name)
            raise

    def _check_unknown(self, name: str) -> None:
        """Raises HostError if an unknown volume may have a damaged record: it is not deleted then."""
        if damaged := sorted(self.disk_records.damaged.items()):
            entry, why = damaged[0]
            raise HostError(
                f"volume {name[:128]} may be disk {self.directory / entry}, whose record is damaged ({why}), nothing"
                f" was touched: {self.remedy}"
            )

    def give_up(self) -> None:
        """Delete all volumes at the end of their cluster. Idempotent. Raises Precondition, Unavailable, HostError.

        Quick cleaners run at once, others when the pool is opened next.
        """
        for name in sorted(self.records):
            self.delete(name)
        for job in self.erasures.jobs():
            if job.is_done:
                self.erasures.finish(job)

    def _freed(self, entry: str) -> None:
        log.info("disk is clean and free path=%s", self.directory / entry)

    # Use

    def stage(self, name: str, path: Path, options: Sequence[str]) -> None:
        record, disk = self.record(name), self._disk_of(name)
        if mount.is_staged(record, disk, path):
            return
        if record.state == "new" and record.fstype and disk.block:
            mount.format_once(record, disk)
        if record.state == "new":  # from here on a pod may have written to it, so it must be cleaned
            self.write(replace(record, state="formatted"))
        mount.stage(record, disk, path, options)

    def unstage(self, name: str, path: Path) -> None:
        mount.unstage(path)

    def publish(self, name: str, staging: Path, target: Path, *, readonly: bool) -> None:
        record, disk = self.record(name), self._disk_of(name)
        if not mount.shows(record, disk, staging):
            raise Precondition(f"volume {name} is not staged at {staging}: stage it first")
        mount.publish(record, disk, staging, target, readonly=readonly)

    def unpublish(self, name: str, target: Path) -> None:
        mount.unpublish(target)

    def stats(self, name: str, path: Path) -> Stats:
        record = self.record(name)
        return mount.stats(record, self._disk_of(name), path)

    def fault(self, record: VolumeRecord, path: Path | None) -> str:
        self.refresh()
        return self._absence(self._entries[record.name])

    def place(self, name: str) -> str:
        """The entry of a volume, "" when it is deleted meanwhile."""
        return self._entries.get(name, "")


def _taken_by_others(disk: StaticDisk) -> str:
    """The user of a disk that is not a volume yet, "" for none."""
    if disk.node is None:
        place = mount.elsewhere(disk)
        return f"its file system is mounted at {place} too, outside the pool; unmount it there" if place else ""
    try:
        major, minor = map(int, disk.number.split(":"))
        user = next(disks.users_of(disk.node, os.makedev(major, minor)), "")
    except OSError as failure:
        return f"its device {disk.node} cannot be looked at: {failure.strerror}"
    return f"its device {disk.node} is in use: {user}; free it" if user else ""
