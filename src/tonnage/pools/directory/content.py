"""VolumeContent: the operations on volumes' content that each kind of pool in a directory implements. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from tonnage.pools.base.contract import PoolLimits
from tonnage.pools.base.record import VolumeRecord

Allocated = Callable[[Path], int] | None
"""Returns allocated bytes of content; None: it is a file, use stat."""


def nothing(_path: Path) -> int:
    """Allocated bytes of content whose blocks belong to another: none, all of its length is still to be allocated."""
    return 0


class VolumeContent(Protocol):
    """Content of the volumes in a pool's directory.

    is_file: content is a file that a file system is made in, and that can be erased. durable: whether records are
    synced one by one; otherwise the pool commits the file system. shares: whether snapshots share their volume's
    blocks. fstypes: supported file systems, known when prepare() has returned.
    """

    is_file: bool
    durable: bool
    shares: bool
    fstypes: tuple[str, ...]

    def check(self, parameters: Mapping[str, str]) -> None:
        """Check the values of a class's parameters. Raises InvalidError, UnsupportedError."""

    def prepare(self) -> None:
        """Prepare what the directory needs below it. Raises UnavailableError, InvalidError, HostError, OSError."""

    def found(self, records: dict[str, VolumeRecord]) -> None:
        """Check what an earlier run left, before leftovers are removed. Raises HostError, OSError."""

    def restore(self, record: VolumeRecord) -> None:
        """Recover a volume that was found at start. Raises ValueError, FileNotFoundError when it is damaged."""

    def ready(self) -> None:
        """Complete the start when all records are known."""

    def close(self) -> None:
        """Release what prepare() took. Idempotent."""

    def make(self, record: VolumeRecord) -> VolumeRecord:
        """Create the content of a new, empty volume; return its record. Replaces a leftover without a record.

        Raises ExhaustedError, HostError.
        """

    def fill(self, record: VolumeRecord, origin: VolumeRecord) -> VolumeRecord:
        """Create the content of a volume as a copy of another's or a snapshot's; return its record."""

    def snapshot(self, record: VolumeRecord, origin: VolumeRecord, content: Path) -> VolumeRecord:
        """Create a snapshot's content; return its record. Raises ExhaustedError, PreconditionError, HostError."""

    def extend(self, record: VolumeRecord, larger: VolumeRecord) -> None:
        """Extend the content to the expanded record, before that is written. Raises ExhaustedError, HostError."""

    def remove(self, content: Path) -> None:
        """Remove content; success when it is gone. Raises HostError."""

    def in_use(self, content: Path) -> bool:
        """Whether content without a record is used by somebody, and so must stay."""

    def changed(self, name: str) -> None:
        """React to a changed size or changed snapshots of a volume, which may be deleted. Idempotent.

        Raises HostError.
        """

    def claim(self, record: VolumeRecord) -> tuple[int, Allocated]:
        """The maximum bytes of the disk for a volume's content, and its allocated bytes."""

    def held(self, content: Path) -> int:
        """Allocated bytes of content on the disk; 0 when unknown."""

    def fault(self, record: VolumeRecord) -> str:
        """The problem of a volume's content, "" for none."""

    def limits(self, bounds: PoolLimits) -> PoolLimits:
        """New limits as they apply to the directory. Raises UnsupportedError."""

    def commit(self) -> None:
        """Make all changes durable, where not `durable`. Raises HostError."""

    def limit(self) -> int:
        """Maximum number of volumes, 0 for unlimited."""
