"""The snapshots of a pool in a directory: `.snapshots`, made with the first. Blocking.

It is a Directory of its own, so snapshots and volumes have separate names. A snapshot exists when its record does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from tonnage.base.errors import HostError, NotFoundError
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.directory.directory import LOST, Directory

FOLDER = ".snapshots"


class Snapshots:
    """The snapshots' records and content files, whose names end in `suffix`."""

    def __init__(self, pool: Path, kind: str, suffix: str) -> None:
        self.path = pool / FOLDER
        self.records: dict[str, VolumeRecord] = {}
        self._suffix = suffix
        self.damaged: dict[str, str] = {}
        """Snapshots with damaged records, and the damage."""
        self.pool = ""
        """The pool's name, as its store has it."""
        self.directory = Directory(self.path, f"{kind}-snapshots")

    def open(self) -> None:
        """Read the records. Raises: UnavailableError, HostError."""
        self.records, self.damaged = {}, {}
        if self.directory.open_existing(self.pool):
            self.records, self.damaged = self.directory.records()

    def clean(self, discard: Callable[[Path], None]) -> None:
        """Pass half-made and deleted contents to discard; others without a record are damage. Raises: HostError."""
        if not self.directory.is_open:
            return
        rubbish, lost = self.directory.without_record(self._suffix, self.records, self.damaged)
        self.damaged |= lost
        for content in rubbish:
            discard(content)
        self.directory.finish_all(self._suffix, self.records, self.damaged)

    def close(self) -> None:
        """Release the directory. Idempotent."""
        self.directory.close()

    def prepare(self) -> None:
        """Make the directory for the first snapshot. Raises: ExhaustedError, UnavailableError."""
        self.directory.open_inside(self.pool)

    def content(self, name: str) -> Path:
        """Path of a snapshot's content."""
        return self.path / f"{name}{self._suffix}"

    def record(self, name: str) -> VolumeRecord:
        """A record. Raises: NotFoundError, HostError for a damaged one."""
        if name in self.damaged:
            raise HostError(f"snapshot {name}: {self.fault_of(name)}")
        try:
            return self.records[name]
        except KeyError:
            raise NotFoundError(f"{self.path} has no snapshot {name[:128]!r}") from None

    def fault_of(self, name: str) -> str:
        """The problem of a damaged snapshot, and what to do."""
        return (
            f"its record {self.path / name}.json is damaged ({self.damaged[name]}), nothing was touched: put a copy of"
            f" it back and restart the driver, or remove it with its content {self.content(name)}"
        )

    def find(self, name: str) -> VolumeRecord | None:
        """A record, None for none. Raises: HostError for a damaged one."""
        return self.record(name) if name in self.records or name in self.damaged else None

    def make_way(self, name: str) -> None:
        """Rename content of that name that has no record: it stays damage, and is reported. Raises: HostError."""
        if not self.damaged.get(name, "").startswith(LOST):
            return
        aside = f"{name}.lost-{uuid4().hex}"
        self.directory.rename_content(f"{name}{self._suffix}", f"{aside}{self._suffix}")
        self.damaged[aside] = f"{LOST} {self.content(aside)}"
        del self.damaged[name]

    def add(self, record: VolumeRecord, *, durable: bool) -> None:
        """Write a record, which creates the snapshot. Raises: ExhaustedError, HostError."""
        self.directory.write(record, durable=durable)
        self.directory.try_finish(record.name)
        self.records[record.name] = record

    def forget(self, name: str, *, durable: bool) -> None:
        """Remove a record, which deletes the snapshot. Idempotent. Raises: HostError."""
        if self.directory.is_open:
            self.directory.remove(name, durable=durable)
        self.records.pop(name, None)

    def used(self) -> int:
        """Reserved bytes of all snapshots."""
        return sum(record.size for record in self.records.values())

    def all(self) -> list[VolumeRecord]:
        """All records, sorted by name."""
        return [record for _, record in sorted(self.records.items())]
