"""The blocking half of the image pool: a directory of image files and their records, thread-safe.

A caller holds a lock for each volume name; what several volumes share is counted under one lock here. Order of steps,
so that a kill between any two leaves nothing lost: create makes image, then record; format runs mkfs, then writes the
state, then mounts; delete removes record, then image. An image without a record is therefore rubbish.
"""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import msgspec

from tonnage.aio.clock import Clock
from tonnage.errors import AlreadyExists, Exhausted, HostError, NotFound, Precondition, Unavailable
from tonnage.host import loop, mount, superblock
from tonnage.pools import filesystem, imagecopy, imagefile, stillness
from tonnage.pools.base import Capacity, Source, Stats, VolumeRequest
from tonnage.pools.directory import Directory, Record
from tonnage.pools.disks import Disk, Disks
from tonnage.pools.formats import BLOCK, FORMATS
from tonnage.pools.request import Want
from tonnage.pools.snapshots import Snapshots

log = logging.getLogger(__name__)
_IMAGE = ".img"
NODE = "device"
"""Name of the device node inside the staging directory of a raw block volume."""
_HUGE = 2**62


@dataclass(frozen=True)
class Bounds:
    """How much a pool may promise. size: bytes, 0 for what the disk has. ratio: how often the disk's free space may
    be promised, inf for any amount. sparse: images grow as they are written."""

    size: int = 0
    ratio: float = 1.0
    sparse: bool = False


def _nothing(_path: Path) -> int:
    return 0


class ImageStore(ABC):
    """Image files in a directory; imagedepot.py has the rest of it."""

    def __init__(self, path: Path, bounds: Bounds, *, disks: Disks, clock: Clock) -> None:
        self.path = path.parent.resolve() / path.name  # the kernel names the files of loop devices by real paths
        self.bounds = bounds
        self.records: dict[str, Record] = {}
        self._damaged: set[str] = set()
        self._used = 0
        self._lock = threading.Lock()
        self._directory = Directory(self.path, "image")
        self.snapshots = Snapshots(self.path, "image", _IMAGE)
        self._disks = disks
        self._disk: Disk | None = None
        self.clock = clock

    def open(self) -> None:
        """Take the directory, read the records, throw away what a kill left. Raises Unavailable, HostError."""
        self._directory.open()
        try:
            self._load()
        except OSError as failure:
            self.close()
            raise Unavailable(f"pool directory {self.path}: {failure.strerror}") from failure
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        self._disk = self._disks.of(self.path)
        self._directory.clean()
        records, damaged = {}, set()
        for found in self._directory.records():
            if isinstance(found, str):
                damaged.add(found)
            else:
                records[found.name] = found
        self._free_loops()
        for entry in os.listdir(self.path):
            name = entry.removesuffix(_IMAGE)
            if name != entry and name not in records and name not in damaged:
                self._discard(self.path / entry)
        self.snapshots.open(self._discard)
        stillness.thaw_all(self.path, records, _IMAGE)
        self.records, self._damaged = records, damaged
        self._used = sum(record.size for record in records.values()) + sum(map(self._length, damaged))
        self._used += self.snapshots.used()
        for record in records.values():
            self._cut(record)
            image = self.image(record.name)
            self._disk.remember(image, record.length, allocated=_nothing if record.shared else None)
        for record in self.snapshots.all():
            image = self.snapshots.content(record.name)
            self._disk.remember(image, self.held(image), allocated=_nothing if record.shared else None)

    def held(self, image: Path) -> int:
        """Bytes that an image has taken. A missing one has none."""
        with suppress(OSError):
            return os.stat(image).st_blocks * 512
        return 0

    def _cut(self, record: Record) -> None:
        """Take back what an expand() that was killed before its record was written has added: nobody ever saw it."""
        image = self.image(record.name)
        with suppress(FileNotFoundError):
            if os.stat(image).st_size > record.length:
                log.info("cutting what an unfinished expansion added path=%s to=%d", image, record.length)
                os.truncate(image, record.length)

    def _discard(self, image: Path) -> None:
        if imagefile.is_used(image):
            log.error("image without a record is in use, left alone path=%s", image)
            return
        log.info("removing image without a record path=%s", image)
        imagefile.remove(image)

    def _length(self, name: str) -> int:
        with suppress(OSError):
            return os.stat(self.image(name)).st_size
        return 0

    def _free_loops(self) -> None:
        """Free the loop devices of this pool that are mounted nowhere: raw block ones that a kill left behind."""
        images = {(found.st_dev, found.st_ino) for found in map(os.lstat, self.path.glob(f"*{_IMAGE}"))}
        ours = [
            index
            for index, path in loop.attached()
            if os.path.dirname(path) == str(self.path) or loop.identity(index) in images
        ]
        if not ours:
            return
        shown = set()
        for entry in mount.mounts():
            shown.add(entry.source)
            if entry.fstype == "devtmpfs" and entry.root.startswith("/loop"):
                shown.add(f"/dev{entry.root}")
        for index in ours:
            if loop.device(index) not in shown and not loop.is_autoclear(index):
                log.info("freeing loop device that is shown nowhere device=%s", loop.device(index))
                loop.detach(index)

    def close(self) -> None:
        """Give the directory back. May be repeated."""
        if self._disk is not None:
            for name in self.records:
                self._disk.forget(self.image(name))
            for name in self.snapshots.records:
                self._disk.forget(self.snapshots.content(name))
        self._disk = None
        self.snapshots.close()
        self._directory.close()

    def image(self, name: str) -> Path:
        """Where a volume's image lies."""
        return self.path / f"{name}{_IMAGE}"

    def all(self) -> list[Record]:
        """All records in the order of their names. Raises Unavailable."""
        self.check_open()
        return [record for _, record in sorted(self.records.items())]

    def check_open(self) -> None:
        """Raises Unavailable unless the pool is open: what cannot be seen is never taken for gone."""
        _ = self.account

    def record(self, name: str) -> Record:
        """A record. Raises NotFound, Unavailable, HostError for a damaged one."""
        self.check_open()
        if name in self._damaged:
            raise HostError(f"the record of volume {name} in {self.path} is damaged: repair or remove it by hand")
        try:
            return self.records[name]
        except KeyError:
            raise NotFound(f"pool directory {self.path} has no volume {name[:128]!r}") from None

    @property
    def account(self) -> Disk:
        """What is promised of the disk. Raises Unavailable when the pool is not open."""
        if self._disk is None:
            raise Unavailable(f"pool directory {self.path} is not open")
        return self._disk

    def room(self, fstype: str) -> Capacity:
        """Room for volumes with that file system, "" for raw block. Raises Unavailable."""
        size, used = self.bounds.size, self._used
        least = FORMATS[fstype].least if fstype else BLOCK
        free = max(0, size - used) if size else _HUGE
        enough = FORMATS[fstype].length(free) if fstype and size else free
        try:
            room = self.account.room(ratio=self.bounds.ratio, enough=enough)
        except OSError as failure:
            raise Unavailable(f"cannot see how full the disk under {self.path} is: {failure.strerror}") from failure
        if room < enough:
            free = min(free, FORMATS[fstype].usable(room) if fstype else room // BLOCK * BLOCK)
        largest = free // BLOCK * BLOCK
        return Capacity(
            total=size or used + free, free=free, largest=largest if largest >= least else 0, smallest=least, used=used
        )

    def create(self, request: VolumeRequest, want: Want, origin: Record | None = None) -> Record:
        """Make image and record; durable when this returns. origin: what it is filled from. Raises Exhausted,
        HostError."""
        self.record_is_free(request.name)
        record = self._new(request, want, origin)
        self.book(record)
        image = self.image(record.name)
        try:
            self.account.promise(image, record.length, ratio=self.bounds.ratio)
            if origin is None:
                imagefile.make(image, record)
            else:
                record = self.fill(record, origin)
            self.write(record)
        except BaseException:
            self.unbook(record, image)
            with suppress(HostError):
                self._directory.remove(record.name)  # it may be there: only its fsync failed
                imagefile.remove(image)
            raise
        return record

    def _new(self, request: VolumeRequest, want: Want, origin: Record | None) -> Record:
        created = self.clock.time()
        source = request.source or Source()
        return Record(
            request.name,
            want.size,
            uuid5(NAMESPACE_URL, f"{self.path}/{request.name}/{created!r}"),
            length=self._length_for(want) if origin is None else self.length_of(origin, want.size),
            sparse=self.bounds.sparse,
            block=request.block,
            fstype=want.fstype,
            parameters=dict(request.parameters),
            owner=dict(request.owner),
            created=created,
            from_snapshot=source.snapshot,
            from_volume=source.volume,
        )

    def _length_for(self, want: Want) -> int:
        return FORMATS[want.fstype].length(want.size) if want.fstype else want.size

    @abstractmethod
    def length_of(self, origin: Record, size: int) -> int:
        """The length of an image of `size` usable bytes that is filled from origin."""

    @abstractmethod
    def fill(self, record: Record, origin: Record) -> Record:
        """Make the image of a volume from another's; the record as it is then."""

    @abstractmethod
    def grown(self, record: Record) -> Record:
        """Write down that the file system has its size."""

    def write(self, record: Record) -> None:
        """Write a volume's record: it is so from here on. Raises Exhausted, HostError."""
        self._directory.write(record)
        self.records[record.name] = record

    def record_is_free(self, name: str) -> None:
        """Raises HostError when a damaged record has that name."""
        if name in self._damaged:
            self.record(name)

    def book(self, record: Record) -> None:
        """Count a volume or snapshot. Raises Exhausted."""
        self.book_bytes(record.name, record.size)

    def book_bytes(self, name: str, size: int) -> None:
        """Count bytes, less when negative. Raises Exhausted."""
        with self._lock:
            if size > 0 and self.bounds.size and self._used + size > self.bounds.size:
                raise Exhausted(f"{size} bytes for {name} do not fit any more into {self.path}")
            self._used += size

    def unbook(self, record: Record, image: Path) -> None:
        """Count it no more."""
        self.book_bytes(record.name, -record.size)
        self.account.forget(image)

    def delete(self, name: str) -> None:
        """Remove a volume. Raises Precondition while its image is in use, HostError."""
        self.check_open()
        record = self.records.get(name)
        if record is None:
            self.record_is_free(name)
            return
        image = self.image(name)
        if imagefile.is_used(image):
            raise Precondition(f"volume {name} is in use (mounted or attached): unpublish and unstage it first")
        if record.parameters.get("erase") == "zero":
            imagefile.zero(image)
        self._directory.remove(name)
        del self.records[name]
        self.unbook(record, image)
        imagefile.remove(image)

    def stage(self, name: str, path: Path, options: Sequence[str]) -> None:
        """See Pool.stage."""
        record, image = self.record(name), self.image(name)
        if mount.is_mount(path):
            if not imagefile.shows(image, path):
                raise AlreadyExists(f"{path} is a mount of something else: unmount it first")
            if record.pending and record.fstype != "ext4" and "ro" not in options:  # killed between mount and this
                self._grow(record, path)
            return
        filesystem.make_directory(path)
        if record.block:
            self._stage_block(record, image, path / NODE)
            return
        if record.state == "new" and not image.exists():
            imagefile.make(image, record)  # a power cut may take an empty image whose record it kept
        fd = imagefile.open_image(image)
        try:
            if record.state == "new":
                imagefile.format_image(fd, image, record)
                record = msgspec.structs.replace(record, state="formatted", pending=False)
                self.write(record)
            imagefile.fill_holes(fd, image, record)
            if record.pending and record.fstype == "ext4":
                imagecopy.resize_ext4(fd, record.length)
                record = self.grown(record)
            imagefile.mount_image(fd, image, record, path, options)
        finally:
            os.close(fd)
        if record.pending and "ro" not in options:
            self._grow(record, path)

    def _grow(self, record: Record, path: Path) -> None:
        """Let a mounted xfs or btrfs take the room it was given while it was not mounted."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            superblock.grow(fd, record.fstype, record.length)
        except OSError as failure:
            raise HostError(f"cannot grow the file system of volume {record.name}: {failure.strerror}") from failure
        finally:
            os.close(fd)
        self.grown(record)

    def _stage_block(self, record: Record, image: Path, node: Path) -> None:
        if mount.is_mount(node):
            if (index := imagefile.loop_of(node)) is None or not loop.backs(index, image):
                raise AlreadyExists(f"{node} shows something else: unmount it first")
            return
        filesystem.make_file(node)
        self._show_block(record, image, node, readonly=False)
        self.grown(record)

    def _show_block(self, record: Record, image: Path, node: Path, *, readonly: bool) -> None:
        fd = imagefile.open_image(image, shared=readonly)
        try:
            imagefile.fill_holes(fd, image, record)
            index = imagefile.attach_block(fd, image, readonly=readonly)
        finally:
            os.close(fd)
        try:
            mount.bind(loop.device(index), node)
        except BaseException:
            loop.detach(index)
            raise

    def unstage(self, name: str, path: Path) -> None:
        """See Pool.unstage."""
        node = path / NODE
        if not mount.is_mount(path) and mount.is_mount(node):
            self._hide_block(name, node)
        filesystem.unstage(path)

    def _hide_block(self, name: str, node: Path) -> None:
        """Unmount and remove a device node and free its loop device if it is the volume's."""
        index = imagefile.loop_of(node)
        is_ours = index is not None and loop.backs(index, self.image(name))
        filesystem.unpublish(node)
        if index is not None and is_ours:
            loop.detach(index)

    def publish(self, name: str, staging: Path, target: Path, *, readonly: bool) -> None:
        """See Pool.publish."""
        record, image = self.record(name), self.image(name)
        source = staging / NODE if record.block else staging
        if not mount.is_mount(source):
            raise Precondition(f"volume {name} is not staged at {staging}: stage it first")
        if not record.block:
            if not imagefile.shows(image, source):
                raise Precondition(f"{staging} is a mount of something else than volume {name}")
            filesystem.publish(source, target, block=False, readonly=readonly)
        elif mount.is_mount(target):
            index = imagefile.loop_of(target)
            if index is None or not loop.backs(index, image) or imagefile.is_readonly(index) != readonly:
                raise AlreadyExists(f"{target} shows something else, or not with readonly={readonly}")
        elif readonly:  # a read-only bind of a device node does not stop writes, a read-only device does
            filesystem.make_file(target)
            self._show_block(record, image, target, readonly=True)
        else:
            filesystem.publish(source, target, block=True, readonly=False)

    def unpublish(self, name: str, target: Path) -> None:
        """See Pool.unpublish."""
        index = imagefile.loop_of(target)
        if index is not None and imagefile.is_readonly(index):
            self._hide_block(name, target)
        else:
            filesystem.unpublish(target)

    def stats(self, name: str, path: Path) -> Stats:
        """See Pool.stats."""
        record = self.record(name)
        if record.block:
            node = path / NODE if path.is_dir() else path
            if imagefile.loop_of(node) is None:
                raise NotFound(f"volume {name} is not at {path}")
            return Stats(total=record.size, used=record.size, available=0)
        if not mount.is_mount(path) or not imagefile.shows(self.image(name), path):
            raise NotFound(f"volume {name} is not mounted at {path}")
        return filesystem.stats(path)
