"""VolumeContent: the operations on volumes' content that each kind of pool in a directory implements. Blocking."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tonnage.base.errors import UnsupportedError
from tonnage.storage.pools.base.contract import PoolLimits, Stillness
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.fs.online import Freeze

Allocated = Callable[[Path], int] | None
"""Returns allocated bytes of content; None: it is a file, use stat."""


def nothing(_path: Path) -> int:
    """Allocated bytes of content whose blocks belong to another: none, all of its length is still to be allocated."""
    return 0


class VolumeContent(ABC):
    """Content of the volumes in a pool's directory.

    is_file: content is a file that a file system is made in, and that can be erased. durable: whether records are
    synced one by one; otherwise the pool commits the file system. shares: whether snapshots share their volume's
    blocks. fstypes: supported file systems, known when prepare() has returned.
    """

    is_file: bool
    durable: bool
    shares: bool
    fstypes: tuple[str, ...]

    @abstractmethod
    def check(self, parameters: Mapping[str, str]) -> None:
        """Check the values of a class's parameters. Raises: InvalidError, UnsupportedError."""

    def prepare(self) -> None:  # noqa: B027 - few kinds do something
        """Prepare what the directory needs below it. Raises: UnavailableError, InvalidError, HostError, OSError."""

    @abstractmethod
    def found(self, records: dict[str, VolumeRecord]) -> None:
        """Check what an earlier run left, before leftovers are removed. Raises: HostError, OSError."""

    def restore(self, record: VolumeRecord) -> None:  # noqa: B027 - few kinds do something
        """Recover a volume that was found at start. Raises: ValueError, FileNotFoundError when it is damaged."""

    def ready(self) -> None:  # noqa: B027 - few kinds do something
        """Complete the start when all records are known."""

    def close(self) -> None:  # noqa: B027 - few kinds do something
        """Release what prepare() took. Idempotent."""

    @abstractmethod
    def make(self, record: VolumeRecord) -> VolumeRecord:
        """Create the content of a new, empty volume; return its record. Replaces a leftover without a record.

        Raises: ExhaustedError, HostError.
        """

    def fill(self, record: VolumeRecord, origin: VolumeRecord) -> VolumeRecord:
        """Create the content of a volume as a copy of another's or a snapshot's; return its record."""
        raise UnsupportedError(f"volume {record.name}: its pool does not offer copies")

    def snapshot(
        self, record: VolumeRecord, origin: VolumeRecord, content: Path, *, is_frozen: bool = False
    ) -> VolumeRecord:
        """Create a snapshot's content; return its record. is_frozen: the volume's file system is frozen.

        Raises: ExhaustedError, PreconditionError, HostError.
        """
        raise UnsupportedError(f"volume {origin.name}: its pool does not offer snapshots")

    def snapshot_together(self, copies: Sequence[tuple[Path, Path]], late: Callable[[], bool]) -> None:
        """Copy contents to the paths of their snapshots at one moment, as Backend.snapshot_together."""
        raise UnsupportedError(f"{copies[0][0]}: its pool does not offer snapshots of several volumes")

    def shows_use(self, record: VolumeRecord, content: Path) -> bool:
        """As Backend.shows_use, by default of a directory: it holds something. Raises: OSError."""
        return bool(os.listdir(content))

    def stillness(self, record: VolumeRecord) -> Stillness:
        """As Backend.stillness."""
        return Stillness.UNUSED

    def copied_bytes(self, record: VolumeRecord) -> int:
        """As Backend.copied_bytes."""
        return 0

    def freeze(self, record: VolumeRecord) -> Freeze:
        """As Backend.freeze."""
        raise UnsupportedError(f"volume {record.name}: its pool does not freeze file systems")

    def extend(self, record: VolumeRecord, larger: VolumeRecord) -> None:  # noqa: B027 - few kinds do something
        """Extend the content to the expanded record, before that is written. Raises: ExhaustedError, HostError."""

    def modify(self, record: VolumeRecord) -> None:  # noqa: B027 - few kinds do something
        """Apply the changed parameters of a record, before that is written. Idempotent. Raises: HostError."""

    @abstractmethod
    def remove(self, content: Path) -> None:
        """Remove content; success when it is gone. Raises: HostError."""

    def renamed(self, name: str, aside: Path) -> None:  # noqa: B027 - few kinds do something
        """React to the rename of a deleted volume's content to `aside`."""

    def in_use(self, content: Path) -> bool:
        """Whether content without a record is used by somebody, and so must stay."""
        return False

    @abstractmethod
    def changed(self, name: str) -> None:
        """React to a changed size or changed snapshots of a volume, which may be deleted. Idempotent.

        Raises: HostError.
        """

    def claim(self, record: VolumeRecord) -> tuple[int, Allocated]:
        """The maximum bytes of the disk for a volume's content, and its allocated bytes; by default its size."""
        return record.size, self.held

    def allocates(self, record: VolumeRecord, origin: VolumeRecord | None) -> int:
        """Bytes of the disk that make(), fill() or snapshot() allocates at once; 0 where that is little.

        Raises: PreconditionError when the source cannot be copied while it is in use, HostError.
        """
        return 0

    def is_shared(self, record: VolumeRecord) -> bool:
        """Whether the deletion of a volume may free less than it has: snapshots or copies may have its blocks, too."""
        return False

    @abstractmethod
    def held(self, content: Path) -> int:
        """Allocated bytes of content on the disk; 0 when unknown."""

    @abstractmethod
    def fault(self, record: VolumeRecord) -> str:
        """The problem of a volume's content, "" for none."""

    def limits(self, bounds: PoolLimits) -> PoolLimits:
        """New limits as they apply to the directory. Raises: UnsupportedError."""
        return bounds

    def commit(self) -> None:  # noqa: B027 - few kinds do something
        """Make all changes durable, where not `durable`. Raises: HostError."""

    def limit(self) -> int:
        """Maximum number of volumes, 0 for unlimited."""
        return 0
