"""The records of a static pool's disks: one for each disk that is not free. Blocking.

A disk has at most one record, with either a volume or a cleaner's job. So a disk is never two volumes, and never free
before it is clean, whenever the process ends. The records are in a directory inside the discovery directory, not on one
of the disks, where no pod can write.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tonnage.base.errors import InvalidError
from tonnage.storage.pools.base.contract import check_name
from tonnage.storage.pools.base.record import FORMAT, VolumeRecord
from tonnage.storage.pools.base.record import check as check_record
from tonnage.storage.pools.core import wipe
from tonnage.storage.pools.core.wipe import EraseJob
from tonnage.storage.pools.directory.directory import Directory

log = logging.getLogger(__name__)
_SUFFIX = ".json"
_NAME = re.compile(rb'"volume":{"name":"([^"]{1,128})"')
_LONGEST = 4096  # bytes before which the name is


class DiskRecord(msgspec.Struct, frozen=True):
    """A disk with a volume or a cleaner's job. identity: of the disk at that time."""

    entry: str
    identity: str
    volume: VolumeRecord | None = None
    job: EraseJob | None = None
    version: int = FORMAT


class DiskRecords:
    """The records in a directory, read at open().

    damaged: entry -> why its record cannot be read; it is left alone.
    """

    def __init__(self, path: Path) -> None:
        self.disks: dict[str, DiskRecord] = {}
        self.damaged: dict[str, str] = {}
        self.volumes: dict[str, str] = {}
        """Names in damaged records -> entry."""
        self._directory = Directory(path, "static")

    def open(self, pool: str = "") -> None:
        """Lock the directory of the named pool, and read it.

        Raises: UnavailableError when another process or pool has it, HostError, OSError.
        """
        self._directory.open(pool)
        self._directory.clean()
        self.disks, self.damaged = self._directory.read_all(self._read)
        self.volumes = {name: entry for entry in self.damaged if (name := self._name_in(entry))}

    def _name_in(self, entry: str) -> str:
        """The volume's name in a damaged record, "" where that cannot be read; only for reports."""
        with suppress(OSError, InvalidError):
            text = (self._directory.path / f"{entry}{_SUFFIX}").read_bytes()[:_LONGEST]
            found = _NAME.search(text)
            return check_name(found[1].decode(errors="replace")) if found else ""
        return ""

    def _read(self, entry: str) -> DiskRecord:
        record = self._directory.read_as(entry, DiskRecord)
        if record.entry != entry or (record.volume is None) == (record.job is None):
            raise ValueError("it does not say of which disk and volume it is")
        if record.volume is not None:
            check_record(record.volume)
        if record.job is not None:
            wipe.check(record.job)
            if record.job.key != entry:
                raise ValueError(f"its job is of disk {record.job.key!r}")
        if record.version != FORMAT:
            volume, job = record.volume, record.job
            record = replace(
                record,
                volume=volume and replace(volume, version=FORMAT),
                job=job and replace(job, version=FORMAT),
                version=FORMAT,
            )
            self._directory.put(entry, record)
        return record

    @property
    def is_open(self) -> bool:
        """Whether this process has locked the directory."""
        return self._directory.is_open

    def write(self, record: DiskRecord) -> None:
        """Write a disk's record, durably, which commits the change. Raises: ExhaustedError, HostError."""
        self._directory.put(record.entry, record)
        self.disks[record.entry] = record

    def remove(self, entry: str) -> None:
        """Remove a disk's record: the disk is free. Raises: HostError."""
        self._directory.remove(entry)
        self.disks.pop(entry, None)

    def close(self) -> None:
        """Release the directory. Idempotent."""
        self._directory.close()
