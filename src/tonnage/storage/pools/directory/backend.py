"""The back end of pools in a directory: a record file and content for each volume.

The parts are the folder (records, snapshots, erase queue, account of the disk), the content (images, subvolumes,
directories with quotas) and the mounts.

Order of steps, so that a kill between any two loses nothing: create marks the name, makes the content, writes the
record, removes the mark; delete renames the content so that its name says so, removes the record, then the content. The
next open removes marked and renamed content. Other content without a record is an orphan: its record was lost, so it is
left alone and reported like one with a damaged record. Bytes that content may still allocate are counted together with
all pools of this process on that disk.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid5

from msgspec.structs import replace

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.errors import (
    ExhaustedError,
    HostError,
    OutOfRangeError,
    TonnageError,
    UnavailableError,
    UnsupportedError,
    host_errors,
    ignore_errno,
)
from tonnage.host import tree
from tonnage.host.descriptor import opened
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.pools.base.contract import (
    Capacity,
    Erasure,
    Features,
    PoolLimits,
    SnapshotRequest,
    Stillness,
    VolumeRequest,
)
from tonnage.storage.pools.base.parameters import ERASE, erase_of
from tonnage.storage.pools.base.record import FORMAT, Records, VolumeRecord, new_record, upgraded
from tonnage.storage.pools.base.reservation import HUGE, LARGEST, Disks, SharedDisk
from tonnage.storage.pools.core.backend import Backend, Mounts, RequestedVolume
from tonnage.storage.pools.core.wipe import OVERWRITES, EraseJob, Medium, medium_of, wipe
from tonnage.storage.pools.directory.content import Allocated, VolumeContent, nothing
from tonnage.storage.pools.directory.directory import Directory
from tonnage.storage.pools.directory.erase_queue import Erasures
from tonnage.storage.pools.directory.snapshots import Snapshots
from tonnage.storage.pools.fs.formats import BLOCK, Format, enlarged, form_for, length_of
from tonnage.storage.pools.fs.online import Freeze


class PoolFolder:
    """The parts of one pool in a directory.

    kind: as in the directory's marker. suffix: of the content's name. disks: those of all pools that may share
    one with it, by default it shares none.
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
        self.disks = disks or Disks()
        self.clock = clock or RealClock()
        self.name = ""
        """The pool's name."""
        self.records = Records(f"{kind} pool {self.path}", most=self.bounds.size)
        self.medium = Medium()
        """How the pool's disk overwrites files; known when the pool is open."""
        self.largest = LARGEST
        """The largest size of a file there; known when the pool is open."""
        self.disk: SharedDisk | None = None
        self.settle_in(self.path)

    def settle_in(self, path: Path) -> None:
        """Use that directory for records and content."""
        self.directory = Directory(path, self.kind)
        self.snapshots = Snapshots(path, self.kind, self.suffix)
        self.erasures = Erasures(path, self.kind, self._erased)

    def _erased(self, job: EraseJob) -> None:
        self.records.reserve(job.name, -job.reserved)

    @property
    def where(self) -> str:
        """The pool and its location, for messages."""
        return self.records.where

    @property
    def account(self) -> SharedDisk:
        """The account of the disk. Raises: UnavailableError when the pool is not open."""
        if self.disk is None:
            raise self.records.closed()
        return self.disk

    def content(self, name: str) -> Path:
        """Path of a volume's content."""
        return self.directory.path / f"{name}{self.suffix}"

    def bytes_left(self) -> int:
        """Free bytes of the disk, reserved or not. Raises: UnavailableError, HostError."""
        with host_errors(f"cannot see how full the disk under {self.path} is"):
            return self.account.free()

    def write(self, record: VolumeRecord, *, durable: bool = True) -> None:
        """Write a volume's record. Raises: ExhaustedError, HostError."""
        self.directory.write(record, durable=durable)
        self.records.volumes[record.name] = record
        if record.name in self.directory.unfinished:  # before the first stage, after which it may hold data
            self.directory.finish(record.name)


log = logging.getLogger(__name__)
_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EIO, errno.EUCLEAN)  # of one volume's content


class DirectoryBackend(Backend):
    """Records in a directory, with the volumes' content and mounts."""

    def __init__(self, folder: PoolFolder, contents: VolumeContent, mounts: Mounts, features: Features) -> None:
        self.features = features
        self.folder, self.contents, self.mounts = folder, contents, mounts
        self.records = folder.records
        self.erasures = folder.erasures
        self.shares_commit = not contents.durable
        self._seen: Sequence[VolumeRecord] = ()

    def load(self) -> None:
        self.folder.name = self.name
        self.contents.prepare()
        self.erasures = self.folder.erasures  # of the directory that the content is in
        self.features = dataclasses.replace(self.features, fstypes=self.contents.fstypes)
        self.folder.directory.open(self.name)
        self.folder.directory.clean()
        records, damaged = self.folder.directory.records()
        self.folder.erasures.open()
        for record in self._moved(list(records.values()), self.folder.directory):
            self.folder.directory.remove(record.name)
            del records[record.name]
        self.contents.found(records)
        self._seen = list(records.values())
        self.folder.snapshots.pool = self.name
        self.folder.snapshots.open()
        for record in self._moved(self.folder.snapshots.all(), self.folder.snapshots.directory):
            self.folder.snapshots.forget(record.name, durable=self.contents.durable)
        self.folder.snapshots.clean(self._discard)
        damaged |= self._clean(records, damaged)
        for record in list(records.values()):
            try:
                self.contents.restore(record)
            except (OSError, ValueError) as failure:
                if isinstance(failure, OSError) and failure.errno not in _DAMAGE:
                    raise
                log.error("volume is damaged, left alone volume=%s error=%s", record.name, failure)
                damaged[record.name] = str(failure)
                del records[record.name]
        self.records.volumes, self.records.damaged = records, damaged
        self._upgrade(self.folder.directory, records)
        self._upgrade(self.folder.snapshots.directory, self.folder.snapshots.records)
        volumes = sum(record.size for record in records.values()) + sum(map(self._size_of_damaged, damaged))
        self.records.used = volumes + self.folder.snapshots.used() + self.folder.erasures.used()
        self.folder.disk = self.folder.disks.of(self.folder.directory.path)
        self._remember()
        self._join()
        if self.contents.is_file:
            self.folder.medium = medium_of(self.folder.path)
            self.folder.largest = self.folder.directory.largest_file()
        self.contents.ready()

    def probe(self) -> None:
        """Write a file without a name; where the file system has none, nothing is known.

        A full disk is no fault: trash makes way there.
        """
        what = f"{self.records.where}: cannot write"
        with (
            host_errors(what),
            ignore_errno(errno.ENOSPC, errno.EDQUOT, errno.EOPNOTSUPP, errno.EISDIR),
            opened(self.folder.path, os.O_TMPFILE | os.O_WRONLY) as fd,
        ):
            os.write(fd, b"\0")
            os.fsync(fd)

    def _join(self) -> None:
        """Share the disk's free bytes with the other pools on it, unless overcommit= is unlimited."""
        if self.folder.bounds.ratio == float("inf"):
            self.folder.account.leave(self.folder.path)
        else:
            self.folder.account.join(self.folder.path, lambda: (self.records.used, self.folder.bounds.size))

    def _upgrade(self, directory: Directory, records: dict[str, VolumeRecord]) -> None:
        """Rewrite records of the first format, which passed all checks, with a checksum."""
        for record in list(records.values()):
            if record.version == FORMAT:
                continue
            try:
                directory.write(upgraded(record), durable=self.contents.durable)
                records[record.name] = upgraded(record)
            except TonnageError as failure:  # the next start does it
                log.warning("record keeps its old format volume=%s error=%s", record.name, failure)

    def problems(self, erasing: Sequence[Erasure]) -> list[str]:
        snapshots = [
            f"snapshot {name}: {self.folder.snapshots.fault_of(name)}" for name in sorted(self.folder.snapshots.damaged)
        ]
        return [*snapshots, *self.folder.erasures.faults()]

    def _clean(self, *known: Container[str]) -> dict[str, str]:
        """Remove half-made and deleted contents; return the fault of each other without a record, by name."""
        directory, suffix = self.folder.directory, self.folder.suffix
        rubbish, lost = directory.without_record(suffix, *known)
        for content in rubbish:
            self._discard(content)
        directory.finish_all(suffix, *known, lost)
        return lost

    def _discard(self, content: Path) -> None:
        try:
            if self.contents.in_use(content):
                log.error("content without a record is in use, left alone path=%s", content)
                return
            # It may be half a copy of a volume that is to be overwritten at its end.
            log.info("removing content of an interrupted call path=%s", content)
            self._undo(content, is_secret=is_overwritten(*self._seen, *self.folder.snapshots.all()))
        except HostError as failure:  # rubbish that stays must not keep the volumes from being served
            log.error("content without a record stays path=%s error=%s", content, failure)

    def _moved(self, records: Sequence[VolumeRecord], directory: Directory) -> Iterator[VolumeRecord]:
        """Volumes whose deletion was killed after their content was renamed, or moved to the erase queue."""
        suffix = self.folder.suffix
        for record in records:
            aside = directory.deleted(record.name, record.uuid, suffix)
            is_gone = not (directory.path / f"{record.name}{suffix}").exists()
            if is_gone and (self.folder.erasures.holds(record) or os.path.lexists(aside)):
                log.info("resuming a deletion volume=%s", record.name)
                yield record

    def _remember(self) -> None:
        for record in self.records.volumes.values():
            length, allocated = self.contents.claim(record)
            self.folder.account.remember(self.folder.content(record.name), length, allocated=allocated)
        for record in self.folder.snapshots.all():
            content = self.folder.snapshots.content(record.name)
            length = record.length if self.contents.shares else self.contents.held(content)
            self.folder.account.remember(content, length, allocated=self._allocation(record))

    def _allocation(self, record: VolumeRecord) -> Allocated:
        return nothing if self.contents.shares or record.shared else None

    def close(self) -> None:
        """Release the directory. Idempotent."""
        if self.folder.disk is not None:
            for name in self.records.volumes:
                self.folder.disk.forget(self.folder.content(name))
            for name in self.folder.snapshots.records:
                self.folder.disk.forget(self.folder.snapshots.content(name))
            self.folder.disk.leave(self.folder.path)
        self.folder.disk = None
        self.folder.erasures.close()
        self.folder.snapshots.close()
        self.folder.directory.close()
        self.contents.close()

    @property
    def is_open(self) -> bool:
        return self.folder.disk is not None

    def commit(self) -> None:
        self.contents.commit()

    def limit(self) -> int:
        return self.contents.limit()

    def rebound(self, bounds: PoolLimits) -> None:
        self.folder.bounds = self.contents.limits(bounds)
        self.records.most = bounds.size
        if self.is_open:
            self._join()

    # Capacity

    def check(self, parameters: Mapping[str, str], fstype: str, *, block: bool) -> None:
        self.contents.check(parameters)

    def grain(self, fstype: str, parameters: Mapping[str, str]) -> tuple[int, int]:
        form = self._form(fstype, parameters)
        return form.least if form else self.features.least, BLOCK

    def _form(self, fstype: str, parameters: Mapping[str, str]) -> Format | None:
        """The file system format for a volume of a class, None where none is made. Raises: InvalidError."""
        return form_for(fstype if self.contents.is_file else "", parameters)

    @property
    def knows_capacity(self) -> bool:
        """What may be allocated without limit is not compared with what the disk has."""
        return self.folder.bounds.ratio == float("inf")

    def capacity(self, fstype: str, parameters: Mapping[str, str], *, block: bool) -> Capacity:
        folder, form = self.folder, self._form(fstype, parameters)
        free, enough = self.needs(form)
        with host_errors(f"cannot see how full the disk under {folder.path} is", error=UnavailableError):
            capacity = folder.account.free_bytes(
                ratio=folder.bounds.ratio, enough=enough, keep=folder.bounds.keep, pool=folder.path
            )
        if capacity < enough:
            free = min(free, form.usable(capacity) if form else capacity // BLOCK * BLOCK)
        return self.capacity_with(free, self.grain(fstype, parameters), piece=self._largest(form))

    def _largest(self, form: Format | None) -> int:
        """Bytes of a volume whose image is as large as a file can be."""
        if not self.contents.is_file or self.folder.largest >= HUGE:
            return LARGEST
        return form.usable(self.folder.largest) if form else self.folder.largest

    # Volumes

    def want(self, request: VolumeRequest) -> RequestedVolume:
        want = super().want(request)
        form = self._form(want.fstype, request.parameters)
        self._check_length(request.name, form.length(want.size) if form else want.size)
        return want

    def _check_length(self, name: str, length: int) -> None:
        """Raises: OutOfRangeError for a file that is larger than the file system allows."""
        if self.contents.is_file and length > self.folder.largest:
            raise OutOfRangeError(
                f"volume {name}: its image of {from_bytes(length)} can never fit: the file system under"
                f" {self.folder.path} allows {from_bytes(self.folder.largest)} for one file; ask for less, or put the"
                " pool on xfs or btrfs"
            )

    def check_create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> None:
        self.folder.directory.check_place()
        if request.name not in self.records.volumes:  # trash of that name goes before
            self.folder.directory.check_free(request.name, self.folder.suffix)
        record = self._new_record(request, want, origin)
        self._check_disk(self.folder.content(record.name), self.contents.claim(record)[0], [(record, origin)])

    def check_expand(self, record: VolumeRecord, size: int) -> None:
        self.folder.directory.check_place()
        larger = self._enlarged(record, size)
        self._check_length(record.name, larger.length)
        content, length = self.folder.content(record.name), self.contents.claim(larger)[0]
        more = 0 if record.sparse or not self.contents.is_file else larger.length - record.length
        bounds = self.folder.bounds
        self.folder.account.check(content, length, now=more, ratio=bounds.ratio, keep=bounds.keep)

    def check_snapshots(self, origins: Sequence[VolumeRecord]) -> None:
        self.folder.directory.check_place()
        held = {origin.name: self.contents.held(self.folder.content(origin.name)) for origin in origins}
        snapshots = [(replace(self._snapshot_of(one, "", {}, held[one.name]), sparse=True), one) for one in origins]
        self._check_disk(self.folder.snapshots.path, sum(held.values()), snapshots)

    def _check_disk(self, path: Path, length: int, copies: Sequence[tuple[VolumeRecord, VolumeRecord | None]]) -> None:
        """Check what new contents need of the disk. copies: each with its source. Raises: as check_create()."""
        if not self.folder.account.has_trash:
            return  # nothing is lost by trying
        now = sum(self.contents.allocates(record, origin) for record, origin in copies)
        bounds = self.folder.bounds
        self.folder.account.check(path, length, now=now, ratio=bounds.ratio, keep=bounds.keep)

    def write(self, record: VolumeRecord) -> None:
        self.folder.write(record, durable=self.contents.durable)

    def create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> VolumeRecord:
        self.records.check_damaged(request.name)
        self.folder.directory.check_place()
        self.folder.directory.check_free(request.name, self.folder.suffix)
        record = self._new_record(request, want, origin)
        content = self.folder.content(record.name)
        self.records.reserve(record.name, record.size)
        try:
            length, allocated = self.contents.claim(record)
            self._reserve(content, length, allocated)
            self.folder.directory.begin(record.name)
            record = self.contents.make(record) if origin is None else self.contents.fill(record, origin)
            self.write(record)
            self.folder.directory.try_finish(record.name)
            if origin is not None:
                self.contents.changed(record.name)
                self.contents.changed(record.from_volume)
        except BaseException:
            self._release(record, content)
            self.records.volumes.pop(record.name, None)
            with suppress(HostError):
                self.folder.directory.remove(
                    record.name, durable=self.contents.durable
                )  # it may be there: only its fsync failed
                self._undo(content, is_secret=is_overwritten(record, *([origin] if origin else ())))
                self.folder.directory.finish(record.name)
            raise
        return record

    def _new_record(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None) -> VolumeRecord:
        created, form = self.folder.clock.time(), self._form(want.fstype, request.parameters)
        uuid = self._new_uuid(request.name, created)
        record = new_record(request, want.size, want.fstype, uuid=uuid, created=created, origin=origin)
        if not self.contents.is_file:
            return record
        length = length_of(origin, want.size) if origin else form.length(want.size) if form else want.size
        return replace(record, length=length, sparse=self.folder.bounds.sparse)

    def _new_uuid(self, name: str, created: float) -> UUID:
        return uuid5(NAMESPACE_URL, f"{self.folder.path}/{name}/{created!r}")

    def _undo(self, content: Path, *, is_secret: bool) -> None:
        """Remove content without a volume; secret content is overwritten first. Raises: HostError, UnavailableError."""
        if is_secret and content.exists():
            with suppress(ExhaustedError):
                self.folder.erasures.add_rubbish(content)
                return
            wipe(EraseJob("", content.stem, "zero", os.stat(content).st_size), content)
        self.contents.remove(content)

    def _reserve(self, content: Path, length: int, allocated: Allocated) -> None:
        bounds = self.folder.bounds
        self.folder.account.reserve(content, length, ratio=bounds.ratio, keep=bounds.keep, allocated=allocated)

    def _release(self, record: VolumeRecord, content: Path) -> None:
        self.records.reserve(record.name, -record.size)
        self.folder.account.forget(content)

    def delete(self, name: str) -> None:
        self.check_open()
        self.folder.directory.check_place()
        record = self.records.volumes.get(name)
        if record is None:
            self.records.check_damaged(name)
            self._finish(name)
            return
        self.mounts.check_unused(name)
        is_taken = self._let_go(record, self.folder.content(name))
        aside = self._set_aside(record, self.folder.directory)
        self.contents.renamed(name, aside)
        del self.records.volumes[name]
        self._free(record, self.folder.content(name), aside, is_taken=is_taken)
        self.contents.changed(record.from_volume)
        self.contents.changed(name)

    def _set_aside(self, record: VolumeRecord, directory: Directory) -> Path:
        """Rename the content of a volume or snapshot, then remove its record; return the content's path.

        Where a full disk allows no rename, the content is removed before the record: a deletion that fails or is killed
        between the two is repeated, and leaves no content without a record.
        """
        aside = directory.set_aside(record.name, record.uuid, self.folder.suffix)
        if aside == directory.path / f"{record.name}{self.folder.suffix}":
            self.contents.remove(aside)
        try:
            directory.remove(record.name, durable=self.contents.durable)
        except BaseException:
            directory.put_back(record.name, record.uuid, self.folder.suffix)
            raise
        return aside

    def _finish(self, name: str) -> None:
        """Remove the content of a volume whose creation, or deletion after its record was removed, has failed.

        Raises: HostError for any other content without a record.
        """
        directory, content = self.folder.directory, self.folder.content(name)
        for aside in directory.all_deleted(name, self.folder.suffix):
            self.contents.remove(aside)
        if os.path.lexists(content):
            directory.check_free(name, self.folder.suffix)
            self.mounts.check_unused(name)
            self.contents.remove(content)
        directory.finish(name)
        self.contents.changed(name)

    @property
    def disk(self) -> SharedDisk | None:
        return self.folder.disk

    def trash_fault(self) -> str:
        if self.folder.bounds.ratio > 1:
            return "with overcommit= a disk may get full before a reservation shows it"
        return ""

    def frees(self, record: VolumeRecord) -> bool:
        """Not while snapshots or copies have its blocks, too."""
        return not self.contents.is_shared(record)

    def prepare_eviction(self, record: VolumeRecord) -> None:
        tree.drop_cache(self.folder.content(record.name))

    def discount(self, record: VolumeRecord) -> None:
        self.records.reserve(record.name, -record.size)
        self.folder.account.discount(self.folder.content(record.name))

    def restore(self, record: VolumeRecord) -> None:
        bounds, (length, allocated) = self.folder.bounds, self.contents.claim(record)
        path = self.folder.content(record.name)
        self.folder.account.restore(path, length, ratio=bounds.ratio, keep=bounds.keep, allocated=allocated)
        self.records.recount(record)

    def recount(self, record: VolumeRecord) -> None:
        self.records.recount(record)
        length, allocated = self.contents.claim(record)
        self.folder.account.remember(self.folder.content(record.name), length, allocated=allocated)

    def modify(self, name: str, mutable: Mapping[str, str]) -> VolumeRecord:
        """Record changed parameters. Raises: UnsupportedError where old content may be in blocks that others share."""
        record = self.record(name)
        is_new_secret = is_overwritten(replace(record, mutable=dict(mutable))) and not is_overwritten(record)
        if self.folder.medium.shares and is_new_secret:
            raise UnsupportedError(
                f"volume {name}: {self.records.where} is on a disk where files can share blocks, so what is"
                " overwritten at the end must be known from the beginning: set erase in the class"
            )
        self.contents.modify(replace(record, mutable=dict(mutable)))
        return super().modify(name, mutable)

    def fault(self, record: VolumeRecord) -> str:
        return self.folder.directory.fault() or self.contents.fault(record)

    def _size_of_damaged(self, name: str) -> int:
        """Bytes to count for a volume with a damaged record."""
        with suppress(OSError):
            return os.stat(self.folder.content(name)).st_size if self.contents.is_file else 0
        return 0

    def _let_go(self, record: VolumeRecord, content: Path) -> bool:
        """Move content that must be erased to the erase queue; whether it was moved."""
        method = erase_method(record) if self.contents.is_file else "none"
        if method == "none":
            return False
        if not content.exists():
            return self.folder.erasures.holds(record)
        try:
            self.folder.erasures.add(record, method, content)
        except ExhaustedError as failure:  # a full disk must not keep volumes from being deleted
            log.warning("erasing at once volume=%s reason=%s", record.name, failure)
            wipe(EraseJob("", record.name, method, record.length), content)
            return False
        return True

    def _free(self, record: VolumeRecord, content: Path, aside: Path, *, is_taken: bool) -> None:
        """Free the bytes of deleted content, which is aside now. is_taken: the erase queue does or has done so."""
        if is_taken:
            self.folder.account.forget(content)
            return
        self._release(record, content)
        self.contents.remove(aside)

    def expand(self, name: str, size: int) -> VolumeRecord:
        self.folder.directory.check_place()
        record, content = self.record(name), self.folder.content(name)
        larger = self._enlarged(record, size)
        length, allocated = self.contents.claim(larger)
        self.records.reserve(name, size - record.size)
        try:
            self._reserve(content, length, allocated)
            self.contents.extend(record, larger)
            self.write(larger)
        except BaseException:
            self.records.reserve(name, record.size - size)
            length, allocated = self.contents.claim(record)
            self.folder.account.remember(content, length, allocated=allocated)
            raise
        self.contents.changed(name)
        return larger

    def _enlarged(self, record: VolumeRecord, size: int) -> VolumeRecord:
        if not self.contents.is_file:
            return replace(record, size=size)
        return enlarged(record, size, is_used=record.state != "new" or record.block)

    # Snapshots

    def snapshot(self, wanted: SnapshotRequest, *, is_frozen: bool = False) -> VolumeRecord:
        with ExitStack() as undo:
            record, origin, content = self._begin_snapshot(wanted, undo)
            record = self.contents.snapshot(record, origin, content, is_frozen=is_frozen)
            self._add_snapshot(record, content)
            undo.pop_all()
        self.contents.changed(wanted.volume)
        return record

    def snapshot_together(self, wanted: Sequence[SnapshotRequest], late: Callable[[], bool]) -> None:
        with ExitStack() as undo:
            begun = [self._begin_snapshot(one, undo) for one in wanted]
            copies = [(self.folder.content(origin.name), content) for _, origin, content in begun]
            self.contents.snapshot_together(copies, late)
            for record, _, content in begun:
                self._add_snapshot(record, content)
            undo.pop_all()
        for one in wanted:
            self.contents.changed(one.volume)

    def own_snapshot(self, name: str, owner: Mapping[str, str]) -> None:
        record = replace(self.snapshot_record(name), owner=dict(owner))
        self.folder.snapshots.add(record, durable=self.contents.durable)

    def _begin_snapshot(self, wanted: SnapshotRequest, undo: ExitStack) -> tuple[VolumeRecord, VolumeRecord, Path]:
        """Reserve the bytes of a snapshot; return its record, its volume's, and where its content is to be."""
        self.folder.directory.check_place()
        self.folder.snapshots.directory.check_free(wanted.name, self.folder.suffix)
        origin, content = self.record(wanted.volume), self.folder.snapshots.content(wanted.name)
        held = self.contents.held(self.folder.content(wanted.volume))
        record = self._snapshot_of(origin, wanted.name, wanted.owner, held)
        self.records.reserve(wanted.name, record.size)
        undo.callback(self._undo_snapshot, record, content)
        self.folder.snapshots.prepare()
        self._reserve(content, held, self._allocation(record))
        self.folder.snapshots.directory.begin(record.name)
        return record, origin, content

    def _add_snapshot(self, record: VolumeRecord, content: Path) -> None:
        held = self.contents.held(self.folder.content(record.from_volume))
        self.folder.account.remember(content, held, allocated=self._allocation(record))
        self.folder.snapshots.add(record, durable=self.contents.durable)

    def _undo_snapshot(self, record: VolumeRecord, content: Path) -> None:
        self._release(record, content)
        with suppress(HostError):
            self.folder.snapshots.forget(record.name, durable=self.contents.durable)
            self._undo(content, is_secret=is_overwritten(record))
            if self.folder.snapshots.directory.is_open:
                self.folder.snapshots.directory.finish(record.name)

    def shows_use(self, record: VolumeRecord) -> bool:
        content = self.folder.content(record.name)
        with host_errors(f"cannot look at {content}"), suppress(FileNotFoundError):
            return self.contents.shows_use(record, content)
        return False

    def stillness(self, record: VolumeRecord) -> Stillness:
        return self.contents.stillness(record)

    def copied_bytes(self, record: VolumeRecord) -> int:
        return self.contents.copied_bytes(record)

    def freeze(self, record: VolumeRecord) -> Freeze:
        return self.contents.freeze(record)

    def _snapshot_of(self, origin: VolumeRecord, name: str, owner: Mapping[str, str], held: int) -> VolumeRecord:
        created = self.folder.clock.time()
        return replace(
            origin,
            name=name,
            uuid=self._new_uuid(f"snapshot/{name}", created),
            length=held if self.contents.shares else origin.length,
            shared=False,
            parameters={ERASE: erase_method(origin)} if is_overwritten(origin) else {},
            mutable={},
            owner=dict(owner),
            created=created,
            from_snapshot="",
            from_volume=origin.name,
        )

    def delete_snapshot(self, name: str) -> None:
        self.check_open()
        self.folder.directory.check_place()
        if (record := self.find_snapshot(name)) is None:
            return
        content = self.folder.snapshots.content(name)
        is_taken = self._let_go(record, content)
        aside = self._set_aside(record, self.folder.snapshots.directory)
        del self.folder.snapshots.records[name]
        self._free(record, content, aside, is_taken=is_taken)
        self.contents.changed(record.from_volume)

    def find_snapshot(self, name: str) -> VolumeRecord | None:
        return self.folder.snapshots.find(name)

    def make_way(self, name: str) -> None:
        self.folder.directory.check_place()
        self.folder.snapshots.make_way(name)

    def all_snapshots(self) -> list[VolumeRecord]:
        return self.folder.snapshots.all()


def erase_method(record: VolumeRecord) -> str:
    """How to erase the content of a volume or snapshot, "none" for not at all."""
    return erase_of(record.volume().effective)


def is_overwritten(*records: VolumeRecord) -> bool:
    """Whether the content of one of them will be overwritten when deleted, and so must not share blocks."""
    return any(erase_method(record) in OVERWRITES for record in records)
