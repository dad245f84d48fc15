"""RecordStore: the blocking back end of a pool whose volumes have records.

A kind of pool writes records where its volumes are (files, tags, labels) and caches them in `records` while it is open.
Methods are called from threads, with a lock held for each volume's name. What all volumes share, the sum of reserved
bytes, is counted under one lock here.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from tonnage.aio.clock import Clock
from tonnage.errors import Exhausted, HostError, NotFound, Unavailable, Unsupported
from tonnage.pools.base.contract import WELL, Capacity, PoolLimits, Stats, VolumeCondition, VolumeOrigin, VolumeRequest
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.core.request import RequestedVolume
from tonnage.pools.core.wipe import EraseRecords


class RecordStore(ABC):
    """Volumes and their records.

    where: the pool and its location, for messages. most: maximum bytes to reserve, 0 for unlimited.
    """

    remedy = "put a copy of the record back and restart the driver, or save its content and remove both by hand"
    """What to do about a damaged record."""

    def __init__(self, where: str, *, most: int = 0, clock: Clock) -> None:
        self.where = where
        self.most = most
        self.clock = clock
        self.pool = ""
        """The pool's name, the prefix of its volumes' ids; "" where it has none."""
        self.records: dict[str, VolumeRecord] = {}
        self.damaged: dict[str, str] = {}
        """Volumes with damaged records, and the damage; they are left alone."""
        self.used = 0
        """Reserved bytes."""
        self.problem = ""
        """Why the last open() failed, "" when it succeeded or was not called."""
        self.lock = threading.RLock()
        self.erasures: EraseRecords | None = None
        """The erase queue, for kinds that erase."""

    @abstractmethod
    def open(self) -> None:
        """Lock the pool and read the records; finish or undo what a kill interrupted.

        Raises Unavailable, HostError.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the resources of the process. Idempotent."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether the records are known."""

    @property
    def knows_room(self) -> bool:
        """Whether room() is computed without I/O on the disk, which could block its caller."""
        return False

    @abstractmethod
    def room(self, fstype: str, parameters: Mapping[str, str]) -> Capacity:
        """Capacity for volumes of a class with that file system, "" for raw block. Raises Unavailable."""

    @abstractmethod
    def create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> VolumeRecord:
        """Create a volume that does not exist yet. origin: what to copy. Raises Exhausted, HostError."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a volume; an unknown one is success. Raises Precondition while it is in use, HostError."""

    @abstractmethod
    def write(self, record: VolumeRecord) -> None:
        """Write a volume's record, which commits the change. Raises Exhausted, HostError."""

    @abstractmethod
    def stage(self, name: str, path: Path, options: Sequence[str]) -> None:
        """Stage a volume, as Pool.stage."""

    @abstractmethod
    def unstage(self, name: str, path: Path) -> None:
        """Unstage a volume, as Pool.unstage."""

    @abstractmethod
    def publish(self, name: str, staging: Path, target: Path, *, readonly: bool) -> None:
        """Publish a volume, as Pool.publish."""

    @abstractmethod
    def unpublish(self, name: str, target: Path) -> None:
        """Unpublish a volume, as Pool.unpublish."""

    @abstractmethod
    def stats(self, name: str, path: Path) -> Stats:
        """Usage of a volume, as Pool.stats."""

    def check_open(self) -> None:
        """Raises Unavailable unless the pool is open: an unreachable volume is never taken for a deleted one."""
        if not self.is_open:
            raise Unavailable(f"{self.where} is not open{self.problem and ': '}{self.problem}")

    def check_damaged(self, name: str) -> None:
        """Raises HostError when a damaged record has that name."""
        if (fault := self.damaged.get(name)) is not None:
            raise HostError(
                f"the record of volume {name} in {self.where} is damaged ({fault}), nothing was touched: {self.remedy}"
            )

    def record(self, name: str) -> VolumeRecord:
        """A record. Raises NotFound, Unavailable, HostError for a damaged one."""
        self.check_open()
        self.check_damaged(name)
        try:
            return self.records[name]
        except KeyError:
            raise NotFound(f"{self.where} has no volume {name[:128]!r}") from None

    def all(self) -> list[VolumeRecord]:
        """All records, sorted by name. Raises Unavailable."""
        self.check_open()
        return [record for _, record in sorted(self.records.items())]

    def rebound(self, bounds: PoolLimits) -> None:
        """Set new limits. Raises Unsupported."""
        self.most = bounds.size

    def book(self, name: str, size: int) -> None:
        """Count bytes of a volume or snapshot as reserved; negative releases them. Raises Exhausted."""
        with self.lock:
            if size > 0 and self.most and self.used + size > self.most:
                raise Exhausted(f"{size} bytes for {name} do not fit any more into {self.where}")
            self.used += size

    def modify(self, name: str, mutable: Mapping[str, str]) -> VolumeRecord:
        """Record a volume's changed parameters. Raises NotFound, Exhausted, HostError."""
        record = replace(self.record(name), mutable=dict(mutable))
        self.write(record)
        return record

    def condition(self, name: str, path: Path | None) -> VolumeCondition:
        try:
            record = self.record(name)
        except HostError as failure:
            return VolumeCondition(abnormal=True, message=str(failure))
        if fault := self.pool_fault() or self.fault(record, path):
            return VolumeCondition(abnormal=True, message=f"volume {name}: {fault}")
        if record.pending:
            return VolumeCondition(abnormal=False, message="the volume is well; its file system is still to be grown")
        return WELL

    def pool_fault(self) -> str:
        """The problem of the pool, and so of all its volumes; "" for none."""
        return ""

    def problems(self) -> list[str]:
        """Problems of the pool's own files and what to do about each, one line each."""
        return []

    def put_back(self, record: VolumeRecord) -> None:
        """Count a volume again whose deletion did not become durable: it may reappear."""
        self.records[record.name] = record
        with self.lock:
            self.used += record.size

    def fault(self, record: VolumeRecord, path: Path | None) -> str:
        """The problem of a volume, and of its mount at path if one is given; "" for none."""
        return ""

    def expand(self, name: str, size: int) -> VolumeRecord:
        """Expand a volume to `size` bytes, more than it has. Raises Exhausted, HostError."""
        raise self._unsupported("larger volumes")

    def grow(self, name: str, path: Path) -> VolumeRecord:
        """See Pool.grow; here for kinds where expand() is effective at once."""
        self.stats(name, path)  # raises NotFound
        return self.record(name)

    def device(self, name: str) -> tuple[int, int] | None:
        """Raises NotFound, Unsupported."""
        self.record(name)
        raise self._unsupported("block devices of its volumes")

    def origin(self, source: VolumeOrigin) -> VolumeRecord:
        """The source of a new volume. Raises NotFound."""
        return self.snapshot_record(source.snapshot) if source.snapshot else self.record(source.volume)

    def snapshot(self, name: str, volume: str, owner: Mapping[str, str]) -> VolumeRecord:
        """Create a snapshot that does not exist yet. Raises NotFound, Exhausted, Precondition, HostError."""
        raise self._unsupported("snapshots")

    def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot; an unknown one is success. Raises HostError."""
        raise self._unsupported("snapshots")

    def find_snapshot(self, name: str) -> VolumeRecord | None:
        """A snapshot's record, None for none. Raises Unavailable, HostError for a damaged one."""
        raise self._unsupported("snapshots")

    def snapshot_record(self, name: str) -> VolumeRecord:
        """A snapshot's record. Raises NotFound, Unavailable, HostError for a damaged one."""
        if (found := self.find_snapshot(name)) is None:
            raise NotFound(f"{self.where} has no snapshot {name[:128]!r}")
        return found

    def all_snapshots(self) -> Sequence[VolumeRecord]:
        """All snapshots' records, sorted by name. Raises Unavailable."""
        raise self._unsupported("snapshots")

    def _unsupported(self, what: str) -> Unsupported:
        return Unsupported(f"{self.where} does not offer {what}")
