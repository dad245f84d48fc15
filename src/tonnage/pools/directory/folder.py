"""A pool's directory with its parts: record files, snapshots, erase queue, and the account of its disk."""

from __future__ import annotations

from pathlib import Path

from tonnage.aio.clock import Clock, RealClock
from tonnage.errors import host_errors
from tonnage.pools.base import overcommit
from tonnage.pools.base.contract import PoolLimits
from tonnage.pools.base.overcommit import Disks, SharedDisk
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.core.records import Records
from tonnage.pools.core.wipe import EraseJob, Medium
from tonnage.pools.directory.directory import Directory
from tonnage.pools.directory.erase_queue import Erasures
from tonnage.pools.directory.snapshots import Snapshots


class PoolFolder:
    """The parts of one pool in a directory.

    kind: as in the directory's marker. suffix: of the content's name. disks: the account of disks, the process's own by
    default.
    """

    def __init__(
        self,
        path: Path,
        bounds: PoolLimits | None = None,
        *,
        kind: str,
        suffix: str,
        disks: Disks | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.path = path.parent.resolve() / path.name  # the kernel names what is mounted by real paths
        self.bounds = bounds or PoolLimits()
        self.kind, self.suffix = kind, suffix
        self.disks = disks or overcommit.SHARED
        self.clock = clock or RealClock()
        self.name = ""
        """The pool's name."""
        self.records = Records(f"{kind} pool {self.path}", most=self.bounds.size)
        self.medium = Medium()
        """How the pool's disk overwrites files; known when the pool is open."""
        self.disk: SharedDisk | None = None
        self.settle_in(self.path)

    def settle_in(self, path: Path) -> None:
        """Use that directory for records and content."""
        self.directory = Directory(path, self.kind)
        self.snapshots = Snapshots(path, self.kind, self.suffix)
        self.erasures = Erasures(path, self.kind, self._erased)

    def _erased(self, job: EraseJob) -> None:
        self.records.book(job.name, -job.room)

    @property
    def where(self) -> str:
        """The pool and its location, for messages."""
        return self.records.where

    @property
    def account(self) -> SharedDisk:
        """The account of the disk. Raises Unavailable when the pool is not open."""
        if self.disk is None:
            raise self.records.closed()
        return self.disk

    def content(self, name: str) -> Path:
        """Path of a volume's content."""
        return self.directory.path / f"{name}{self.suffix}"

    def bytes_left(self) -> int:
        """Free bytes of the disk, reserved or not. Raises Unavailable, HostError."""
        with host_errors(f"cannot see how full the disk under {self.path} is"):
            return self.account.free()

    def write(self, record: VolumeRecord, *, durable: bool = True) -> None:
        """Write a volume's record. Raises Exhausted, HostError."""
        self.directory.write(record, durable=durable)
        self.records.volumes[record.name] = record
