"""FolderContent: the operations on volumes' content that each kind of pool in a directory implements."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import UUID, uuid4

from msgspec.structs import replace

from tonnage.pools.base.parameters import erase_of
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.core.backend import RecordStore
from tonnage.pools.core.wipe import OVERWRITES
from tonnage.pools.fs.formats import Format

log = logging.getLogger(__name__)
Allocated = Callable[[Path], int] | None
"""Returns allocated bytes of content; None: it is a file, use stat."""


def nothing(_path: Path) -> int:
    """Allocated bytes of content whose blocks belong to another: none, all of its length is still to be allocated."""
    return 0


class FolderContent(RecordStore):
    """Content of the volumes in a pool's directory.

    kind: as in the directory's marker. suffix: of the content's name. durable: whether records are synced one by one;
    otherwise the pool commits the file system. shares: whether snapshots share their volume's blocks. erases: whether
    content is a file that can be erased.
    """

    kind = ""
    suffix = ""
    durable = True
    shares = False
    erases = False

    def prepare(self) -> None:
        """Prepare what the directory needs below it. Raises Unavailable, Invalid, HostError, OSError."""

    def found(self, records: dict[str, VolumeRecord]) -> None:
        """Check what an earlier run left, before leftovers are removed. Raises HostError, OSError."""

    def restore(self, record: VolumeRecord) -> None:
        """Recover a volume that was found at start. Raises ValueError, FileNotFoundError when it is damaged."""

    def ready(self) -> None:
        """Complete the start when all records are known."""

    def held_by_damaged(self, name: str) -> int:
        """Bytes to count for a volume with a damaged record."""
        return 0

    @abstractmethod
    def make(self, record: VolumeRecord) -> VolumeRecord:
        """Create the content of a new, empty volume; return its record. Replaces a leftover without a record.

        Raises Exhausted, HostError.
        """

    def fill(self, record: VolumeRecord, origin: VolumeRecord) -> VolumeRecord:
        """Create the content of a volume as a copy of another's or a snapshot's; return its record."""
        raise self._unsupported(f"volumes made from a {record.source}")

    @abstractmethod
    def remove(self, content: Path) -> None:
        """Remove content; success when it is gone. Raises HostError."""

    def discard(self, content: Path) -> None:
        """Remove content without a record, at start. Raises HostError."""
        log.info("removing content without a record path=%s", content)
        self.remove(content)

    @abstractmethod
    def check_unused(self, name: str) -> None:
        """Raises Precondition while a volume is mounted or attached, HostError."""

    def erase_method(self, record: VolumeRecord) -> str:
        """How to erase the content of a volume or snapshot, "none" for not at all."""
        return erase_of(record.volume().effective)

    def overwritten(self, *records: VolumeRecord) -> bool:
        """Whether the content of one of them will be overwritten when deleted, and so must not share blocks."""
        return any(self.erase_method(record) in OVERWRITES for record in records)

    def changed(self, name: str) -> None:
        """React to a changed size or changed snapshots of a volume, which may be deleted. Idempotent. Raises
        HostError.
        """

    @abstractmethod
    def claim(self, record: VolumeRecord) -> tuple[int, Allocated]:
        """The maximum bytes of the disk for a volume's content, and its allocated bytes."""

    @abstractmethod
    def held(self, content: Path) -> int:
        """Allocated bytes of content on the disk; 0 when unknown."""

    def form(self, fstype: str, parameters: Mapping[str, str]) -> Format | None:
        """The file system format for a volume of a class, None where none is made. Raises Invalid."""
        return None

    def largest(self, form: Format | None, bytes_left: int) -> int:
        """Usable bytes of the largest volume whose content fits into that many bytes."""
        return bytes_left

    def length(self, form: Format | None, size: int) -> int:
        """Bytes of content for a volume of `size` usable bytes."""
        return size

    @abstractmethod
    def smallest(self, form: Format | None) -> int:
        """Minimum size of a volume in bytes."""

    def new_uuid(self, name: str, created: float) -> UUID:
        """A UUID for a volume's file system."""
        return uuid4()

    def enlarged(self, record: VolumeRecord, size: int) -> VolumeRecord:
        """The record of an expanded volume."""
        return replace(record, size=size)

    def extend(self, record: VolumeRecord, larger: VolumeRecord) -> None:
        """Extend the content to the expanded record, before that is written. Raises Exhausted, HostError."""

    def keep(self, record: VolumeRecord, origin: VolumeRecord, content: Path) -> VolumeRecord:
        """Create a snapshot's content; return its record. Raises Exhausted, Precondition, HostError."""
        raise self._unsupported("snapshots")
