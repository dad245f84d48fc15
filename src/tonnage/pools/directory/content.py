"""What a kind of pool in a directory says of its volumes' content, and does with it; folderstore.py does the rest."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import UUID, uuid4

from msgspec.structs import replace

from tonnage.pools.base.parameters import erase_of
from tonnage.pools.base.record import Record
from tonnage.pools.core.backend import RecordStore
from tonnage.pools.core.wipe import OVERWRITES
from tonnage.pools.fs.formats import Format

log = logging.getLogger(__name__)
Allocated = Callable[[Path], int] | None
"""Says how many bytes some content takes now; None: it is a file, look at it."""


def nothing(_path: Path) -> int:
    """What content takes whose blocks are another's: all that it may grow to is still to be had."""
    return 0


class FolderContent(RecordStore):
    """kind: as the directory's marker says. suffix: of the content's name. durable: whether records are synced one by
    one; else the pool commits the file system. shares: whether snapshots share their volume's blocks. erases: whether
    content is a file that can be erased."""

    kind = ""
    suffix = ""
    durable = True
    shares = False
    erases = False

    def prepare(self) -> None:
        """Make ready what the directory needs below it. Raises Unavailable, Invalid, HostError, OSError."""

    def found(self, records: dict[str, Record]) -> None:
        """Look at what an earlier run left, before rubbish is removed. Raises HostError, OSError."""

    def restore(self, record: Record) -> None:
        """Put a volume in order that was found at start. Raises ValueError, FileNotFoundError when it is damaged."""

    def ready(self) -> None:
        """Do what is left to do when all records are known."""

    def held_by_damaged(self, name: str) -> int:
        """Bytes to count for a volume whose record is damaged."""
        return 0

    @abstractmethod
    def make(self, record: Record) -> Record:
        """Make the content of a new, empty volume; the record as it is then. Replaces a leftover without a record.
        Raises Exhausted, HostError."""

    def fill(self, record: Record, origin: Record) -> Record:
        """Make the content of a volume from another's or a snapshot's; the record as it is then."""
        raise self._unsupported(f"volumes made from a {record.source}")

    @abstractmethod
    def remove(self, content: Path) -> None:
        """Remove content; what is gone is success. Raises HostError."""

    def discard(self, content: Path) -> None:
        """Remove content that has no record, at start. Raises HostError."""
        log.info("removing content without a record path=%s", content)
        self.remove(content)

    @abstractmethod
    def check_unused(self, name: str) -> None:
        """Raises Precondition while a volume is mounted or attached, HostError."""

    def erase_method(self, record: Record) -> str:
        """How the content of a volume or snapshot is to be erased, "none" for not at all."""
        return erase_of(record.volume().effective)

    def overwritten(self, *records: Record) -> bool:
        """Whether the content of one of them is to be overwritten at its end, so that it can share no blocks."""
        return any(self.erase_method(record) in OVERWRITES for record in records)

    def changed(self, name: str) -> None:
        """Act on a volume, or one gone, whose size or whose snapshots changed. May be repeated. Raises HostError."""

    @abstractmethod
    def claim(self, record: Record) -> tuple[int, Allocated]:
        """The bytes of the disk that a volume's content may grow to, and how many it has."""

    @abstractmethod
    def held(self, content: Path) -> int:
        """Bytes of the disk that content takes now; 0 when it cannot be told."""

    def form(self, fstype: str, parameters: Mapping[str, str]) -> Format | None:
        """The file system that is made for a volume of a class, None where none is. Raises Invalid."""
        return None

    def largest(self, form: Format | None, bytes_left: int) -> int:
        """Usable bytes of the largest volume whose content takes at most that many."""
        return bytes_left

    def length(self, form: Format | None, size: int) -> int:
        """Bytes of content that a volume of `size` usable bytes takes."""
        return size

    @abstractmethod
    def smallest(self, form: Format | None) -> int:
        """Bytes of the smallest volume."""

    def new_uuid(self, name: str, created: float) -> UUID:
        """What a volume's file system is known by."""
        return uuid4()

    def enlarged(self, record: Record, size: int) -> Record:
        """The record of a volume that is made larger."""
        return replace(record, size=size)

    def extend(self, record: Record, larger: Record) -> None:
        """Let the content take what larger says, before that is written. Raises Exhausted, HostError."""

    def keep(self, record: Record, origin: Record, content: Path) -> Record:
        """Make a snapshot's content; the record as it is then. Raises Exhausted, Precondition, HostError."""
        raise self._unsupported("snapshots")
