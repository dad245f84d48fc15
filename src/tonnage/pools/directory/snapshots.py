"""The folder of a pool in a directory that holds its snapshots: `.snapshots`, made with the first. Blocking.

It is a Directory of its own, so snapshots and volumes never meet in a name, and a snapshot exists when its record does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from tonnage.errors import HostError, NotFound, Unavailable
from tonnage.pools.base.record import Record
from tonnage.pools.directory.directory import Damage, Directory

FOLDER = ".snapshots"


class Snapshots:
    """The snapshots' records and the files beside them, which end in `suffix`."""

    def __init__(self, pool: Path, kind: str, suffix: str) -> None:
        self.path = pool / FOLDER
        self.records: dict[str, Record] = {}
        self._suffix = suffix
        self.damaged: dict[str, str] = {}
        """Snapshots whose records are damaged, and how."""
        self._is_open = False
        self._lock = threading.Lock()
        self.pool = ""
        """The pool's name, as its store has it."""
        self.directory = Directory(self.path, f"{kind}-snapshots")

    def open(self, discard: Callable[[Path], None]) -> None:
        """Read the records; what lies there without one goes to discard. Raises Unavailable, HostError."""
        self.records, self.damaged = {}, {}
        if not self.path.is_symlink() and not self.path.exists():
            return
        self._take()
        self.directory.clean()
        for found in self.directory.records():
            if isinstance(found, Damage):
                self.damaged[found.name] = found.fault
            else:
                self.records[found.name] = found
        for entry in os.listdir(self.path):
            name = entry.removesuffix(self._suffix)
            if name != entry and name not in self.records and name not in self.damaged:
                discard(self.path / entry)

    def _take(self) -> None:
        with self._lock:  # of the first two at once, one makes the folder
            if not self._is_open:
                self.directory.open(self.pool, inside=True)
                self._is_open = True

    def close(self) -> None:
        """Let the folder go. May be repeated."""
        self._is_open = False
        self.directory.close()

    def prepare(self) -> None:
        """Make the folder if this is the first snapshot. Raises Unavailable."""
        try:
            self._take()
        except OSError as failure:
            raise Unavailable(f"cannot make {self.path}: {failure.strerror}") from failure

    def content(self, name: str) -> Path:
        """Where a snapshot's content lies."""
        return self.path / f"{name}{self._suffix}"

    def record(self, name: str) -> Record:
        """A record. Raises NotFound, HostError for a damaged one."""
        if name in self.damaged:
            raise HostError(f"snapshot {name}: {self.fault_of(name)}")
        try:
            return self.records[name]
        except KeyError:
            raise NotFound(f"{self.path} has no snapshot {name[:128]!r}") from None

    def fault_of(self, name: str) -> str:
        """What is wrong with a damaged snapshot, and what to do."""
        return (
            f"its record {self.path / name}.json is damaged ({self.damaged[name]}), nothing was touched: put a copy of"
            f" it back and restart the driver, or remove it with its content {self.content(name)}"
        )

    def find(self, name: str) -> Record | None:
        """A record, None for none. Raises HostError for a damaged one."""
        return self.record(name) if name in self.records or name in self.damaged else None

    def add(self, record: Record, *, durable: bool) -> None:
        """Write a record: the snapshot exists from here on. Raises Exhausted, HostError."""
        self.directory.write(record, durable=durable)
        self.records[record.name] = record

    def forget(self, name: str, *, durable: bool) -> None:
        """Remove a record: the snapshot exists no more. May be repeated. Raises HostError."""
        if self._is_open:
            self.directory.remove(name, durable=durable)
        self.records.pop(name, None)

    def used(self) -> int:
        """Bytes promised for all of them."""
        return sum(record.size for record in self.records.values())

    def all(self) -> list[Record]:
        """All records in the order of their names."""
        return [record for _, record in sorted(self.records.items())]
