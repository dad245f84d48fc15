"""FolderStore: records in a directory, with each volume's content and snapshots in a subdirectory.

Order of steps, so that a kill between any two loses nothing: create makes the content, then writes the record; delete
removes the record, then the content. So content without a record is a leftover, and the next open removes it. Bytes
that content may still allocate are counted together with all pools of this process on that disk.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from tonnage.aio.clock import Clock
from tonnage.errors import Exhausted, HostError, TonnageError, Unavailable
from tonnage.pools.base.contract import Capacity, PoolLimits, VolumeOrigin, VolumeRequest
from tonnage.pools.base.overcommit import HUGE, Disks, SharedDisk
from tonnage.pools.base.parameters import ERASE, MKFS_OPTIONS, SOURCE
from tonnage.pools.base.record import VERSION, VolumeRecord, upgraded
from tonnage.pools.core.request import RequestedVolume
from tonnage.pools.core.wipe import EraseJob, wipe
from tonnage.pools.directory.content import Allocated, FolderContent, nothing
from tonnage.pools.directory.directory import Damage, Directory
from tonnage.pools.directory.erase_queue import Erasures
from tonnage.pools.directory.snapshots import Snapshots
from tonnage.pools.fs.formats import BLOCK

log = logging.getLogger(__name__)
_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EIO, errno.EUCLEAN)  # of one volume's content


class FolderStore(FolderContent):
    """Records in a directory, with the volumes' content."""

    def __init__(self, path: Path, bounds: PoolLimits, *, disks: Disks, clock: Clock) -> None:
        self.path = path.parent.resolve() / path.name  # the kernel names what is mounted by real paths
        super().__init__(f"{self.kind} pool {self.path}", most=bounds.size, clock=clock)
        self.bounds = bounds
        self.disks = disks
        self._disk: SharedDisk | None = None
        self.settle_in(self.path)

    def settle_in(self, path: Path) -> None:
        """Use that directory for records and content."""
        self.directory = Directory(path, self.kind)
        self.snapshots = Snapshots(path, self.kind, self.suffix)
        self._erasures = Erasures(path, self.kind, self._erased)
        self.erasures = self._erasures

    def rebound(self, bounds: PoolLimits) -> None:
        super().rebound(bounds)
        self.bounds = bounds
        if self.is_open:
            self._join()

    def open(self) -> None:
        """Raises Invalid too."""
        try:
            self.prepare()
            self.directory.open(self.pool)
            self._load()
        except OSError as failure:
            self.close()
            raise Unavailable(f"{self.where}: {failure.strerror}") from failure
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        self.directory.clean()
        records, damaged = self._read()
        self._erasures.open()
        for record in self._moved(list(records.values()), self.content):
            self.directory.remove(record.name)
            del records[record.name]
        self.found(records)
        self.snapshots.pool = self.pool
        self.snapshots.open(self._discard)
        for record in self._moved(self.snapshots.all(), self.snapshots.content):
            self.snapshots.forget(record.name, durable=self.durable)
        for entry in sorted(os.listdir(self.directory.path)):
            name = entry.removesuffix(self.suffix)
            if name != entry and name not in records and name not in damaged:
                self._discard(self.directory.path / entry)
        for record in list(records.values()):
            try:
                self.restore(record)
            except (OSError, ValueError) as failure:
                if isinstance(failure, OSError) and failure.errno not in _DAMAGE:
                    raise
                log.error("volume is damaged, left alone volume=%s error=%s", record.name, failure)
                damaged[record.name] = str(failure)
                del records[record.name]
        self.records, self.damaged = records, damaged
        self._upgrade(self.directory, records)
        self._upgrade(self.snapshots.directory, self.snapshots.records)
        self.used = sum(record.size for record in records.values()) + sum(map(self.held_by_damaged, damaged))
        self.used += self.snapshots.used() + self._erasures.used()
        self._disk = self.disks.of(self.directory.path)
        self._remember()
        self._join()
        self.ready()

    def _join(self) -> None:
        """Share the disk's free bytes with the other pools on it, unless overcommit= is unlimited."""
        if self.bounds.ratio == float("inf"):
            self.account.leave(self.path)
        else:
            self.account.join(self.path, lambda: (self.used, self.bounds.size))

    def _upgrade(self, directory: Directory, records: dict[str, VolumeRecord]) -> None:
        """Rewrite records of the first format, which passed all checks, with a checksum."""
        for record in list(records.values()):
            if record.version == VERSION:
                continue
            try:
                directory.write(upgraded(record), durable=self.durable)
                records[record.name] = upgraded(record)
            except TonnageError as failure:  # the next start does it
                log.warning("record keeps its old format volume=%s error=%s", record.name, failure)

    def problems(self) -> list[str]:
        snapshots = [f"snapshot {name}: {self.snapshots.fault_of(name)}" for name in sorted(self.snapshots.damaged)]
        return [*snapshots, *self._erasures.faults()]

    def _discard(self, content: Path) -> None:
        try:
            self.discard(content)
        except HostError as failure:  # rubbish that stays must not keep the volumes from being served
            log.error("content without a record stays path=%s error=%s", content, failure)

    def _moved(self, records: Sequence[VolumeRecord], content: Callable[[str], Path]) -> Iterator[VolumeRecord]:
        """Volumes whose deletion was killed after their content was moved to the erase queue."""
        for record in records:
            if self._erasures.holds(record) and not content(record.name).exists():
                log.info("resuming a deletion volume=%s", record.name)
                yield record

    def _read(self) -> tuple[dict[str, VolumeRecord], dict[str, str]]:
        records, damaged = {}, {}
        for found in self.directory.records():
            if isinstance(found, Damage):
                damaged[found.name] = found.fault
            else:
                records[found.name] = found
        return records, damaged

    def _remember(self) -> None:
        for record in self.records.values():
            length, allocated = self.claim(record)
            self.account.remember(self.content(record.name), length, allocated=allocated)
        for record in self.snapshots.all():
            content = self.snapshots.content(record.name)
            length = record.length if self.shares else self.held(content)
            self.account.remember(content, length, allocated=self._kept(record))

    def _kept(self, record: VolumeRecord) -> Allocated:
        return nothing if self.shares or record.shared else None

    def close(self) -> None:
        """Release the directory. Idempotent."""
        if self._disk is not None:
            for name in self.records:
                self._disk.forget(self.content(name))
            for name in self.snapshots.records:
                self._disk.forget(self.snapshots.content(name))
            self._disk.leave(self.path)
        self._disk = None
        self._erasures.close()
        self.snapshots.close()
        self.directory.close()

    @property
    def is_open(self) -> bool:
        return self._disk is not None

    @property
    def account(self) -> SharedDisk:
        """The account of the disk. Raises Unavailable when the pool is not open."""
        if self._disk is None:
            raise Unavailable(f"{self.where} is not open")
        return self._disk

    def bytes_left(self) -> int:
        """Free bytes of the disk, reserved or not. Raises Unavailable, HostError."""
        try:
            return self.account.free()
        except OSError as failure:
            raise HostError(f"cannot see how full the disk under {self.path} is: {failure.strerror}") from failure

    def content(self, name: str) -> Path:
        """Path of a volume's content."""
        return self.directory.path / f"{name}{self.suffix}"

    @property
    def knows_room(self) -> bool:
        """What may be promised without bound is not compared with what the disk has."""
        return self.bounds.ratio == float("inf")

    def room(self, fstype: str, parameters: Mapping[str, str]) -> Capacity:
        size, used, form = self.bounds.size, self.used, self.form(fstype, parameters)
        free, least = max(0, size - used) if size else HUGE, self.smallest(form)
        enough = self.length(form, free) if size else free
        try:
            room = self.account.room(ratio=self.bounds.ratio, enough=enough, keep=self.bounds.keep, pool=self.path)
        except OSError as failure:
            raise Unavailable(f"cannot see how full the disk under {self.path} is: {failure.strerror}") from failure
        if room < enough:
            free = min(free, self.largest(form, room))
        largest = free // BLOCK * BLOCK
        return Capacity(
            total=size or used + free, free=free, largest=largest if largest >= least else 0, smallest=least, used=used
        )

    def write(self, record: VolumeRecord) -> None:
        """Without `durable` the caller commits."""
        self.directory.write(record, durable=self.durable)
        self.records[record.name] = record

    def new_record(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None) -> VolumeRecord:
        """The record of a volume that is about to be created."""
        source, created = request.source or VolumeOrigin(), self.clock.time()
        is_empty = origin is None or origin.state == "new"
        mkfs = request.parameters.get(MKFS_OPTIONS, "") if origin is None else origin.mkfs
        folder = request.parameters.get(SOURCE, "") if origin is None else origin.from_folder
        return VolumeRecord(
            request.name,
            want.size,
            self.new_uuid(request.name, created),
            block=request.block,
            fstype=want.fstype,
            parameters=dict(request.parameters),
            owner=dict(request.owner),
            created=created,
            from_snapshot=source.snapshot,
            from_volume=source.volume,
            from_folder=folder if is_empty else "",
            mkfs=mkfs,
            mutable={key: value for key, value in request.mutable.items() if value},
        )

    def create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> VolumeRecord:
        self.check_damaged(request.name)
        self.directory.check_place()
        record = self.new_record(request, want, origin)
        content = self.content(record.name)
        self.book(record.name, record.size)
        try:
            length, allocated = self.claim(record)
            self._promise(content, length, allocated)
            record = self.make(record) if origin is None else self.fill(record, origin)
            self.write(record)
            if origin is not None:
                self.changed(record.name)
                self.changed(record.from_volume)
        except BaseException:
            self._unbook(record, content)
            self.records.pop(record.name, None)
            with suppress(HostError):
                self.directory.remove(record.name, durable=self.durable)  # it may be there: only its fsync failed
                self.undo(content, is_secret=self.overwritten(record, *([origin] if origin else ())))
            raise
        return record

    def undo(self, content: Path, *, is_secret: bool) -> None:
        """Remove content without a volume; secret content is overwritten first. Raises HostError, Unavailable."""
        if is_secret and content.exists():
            with suppress(Exhausted):
                self._erasures.add_rubbish(content)
                return
            wipe(EraseJob("", content.stem, "zero", os.stat(content).st_size), content)
        self.remove(content)

    def _promise(self, content: Path, length: int, allocated: Allocated) -> None:
        bounds = self.bounds
        self.account.promise(content, length, ratio=bounds.ratio, keep=bounds.keep, allocated=allocated)

    def _unbook(self, record: VolumeRecord, content: Path) -> None:
        self.book(record.name, -record.size)
        self.account.forget(content)

    def delete(self, name: str) -> None:
        self.check_open()
        self.directory.check_place()
        record = self.records.get(name)
        if record is None:
            self.check_damaged(name)
            self._finish(name)
            return
        self.check_unused(name)
        is_taken = self._let_go(record, self.content(name))
        self.directory.remove(name, durable=self.durable)
        del self.records[name]
        self._free(record, self.content(name), is_taken=is_taken)
        self.changed(record.from_volume)

    def _finish(self, name: str) -> None:
        """Remove the content of a volume whose deletion failed after its record was removed."""
        content = self.content(name)
        if os.path.lexists(content):
            self.check_unused(name)
            self.remove(content)

    def pool_fault(self) -> str:
        return self.directory.fault()

    def _let_go(self, record: VolumeRecord, content: Path) -> bool:
        """Move content that must be erased to the erase queue; whether it was moved."""
        method = self.erase_method(record) if self.erases else "none"
        if method == "none":
            return False
        if not content.exists():
            return self._erasures.holds(record)
        try:
            self._erasures.add(record, method, content)
        except Exhausted as failure:  # a full disk must not keep volumes from being deleted
            log.warning("erasing at once volume=%s reason=%s", record.name, failure)
            wipe(EraseJob("", record.name, method, record.length), content)
            return False
        return True

    def _free(self, record: VolumeRecord, content: Path, *, is_taken: bool) -> None:
        """Free the bytes of deleted content. is_taken: the erase queue frees them or has freed them."""
        if is_taken:
            self.account.forget(content)
            return
        self._unbook(record, content)
        self.remove(content)

    def _erased(self, job: EraseJob) -> None:
        self.book(job.name, -job.room)

    def expand(self, name: str, size: int) -> VolumeRecord:
        self.directory.check_place()
        record, content = self.record(name), self.content(name)
        larger = self.enlarged(record, size)
        length, allocated = self.claim(larger)
        self.book(name, size - record.size)
        try:
            self._promise(content, length, allocated)
            self.extend(record, larger)
            self.write(larger)
        except BaseException:
            self.book(name, record.size - size)
            length, allocated = self.claim(record)
            self.account.remember(content, length, allocated=allocated)
            raise
        self.changed(name)
        return larger

    def snapshot(self, name: str, volume: str, owner: Mapping[str, str]) -> VolumeRecord:
        self.directory.check_place()
        origin, content = self.record(volume), self.snapshots.content(name)
        held = self.held(self.content(volume))
        record = self._snapshot_of(origin, name, owner, held)
        self.book(name, record.size)
        try:
            self.snapshots.prepare()
            self._promise(content, held, self._kept(record))
            record = self.keep(record, origin, content)
            self.account.remember(content, held, allocated=self._kept(record))
            self.snapshots.add(record, durable=self.durable)
        except BaseException:
            self._unbook(record, content)
            with suppress(HostError):
                self.snapshots.forget(name, durable=self.durable)
                self.undo(content, is_secret=self.overwritten(record))
            raise
        self.changed(volume)
        return record

    def _snapshot_of(self, origin: VolumeRecord, name: str, owner: Mapping[str, str], held: int) -> VolumeRecord:
        created = self.clock.time()
        return replace(
            origin,
            name=name,
            uuid=self.new_uuid(f"snapshot/{name}", created),
            length=held if self.shares else origin.length,
            shared=False,
            parameters={ERASE: self.erase_method(origin)} if self.overwritten(origin) else {},
            mutable={},
            owner=dict(owner),
            created=created,
            from_snapshot="",
            from_volume=origin.name,
        )

    def delete_snapshot(self, name: str) -> None:
        self.check_open()
        self.directory.check_place()
        if (record := self.find_snapshot(name)) is None:
            return
        content = self.snapshots.content(name)
        is_taken = self._let_go(record, content)
        self.snapshots.forget(name, durable=self.durable)
        self._free(record, content, is_taken=is_taken)
        self.changed(record.from_volume)

    def find_snapshot(self, name: str) -> VolumeRecord | None:
        self.check_open()
        return self.snapshots.find(name)

    def all_snapshots(self) -> list[VolumeRecord]:
        self.check_open()
        return self.snapshots.all()
