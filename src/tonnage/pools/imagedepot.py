"""Images that come from others and images that grow: snapshots, clones, expansion, health. The rest of ImageStore.

Order of steps, so that a kill between any two loses nothing: a copy is complete before its record is written; an image
is extended before its record says so, and its file system grows after that. What is longer than its record was never
answered, and is cut at the next start.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from msgspec.structs import replace

from tonnage.errors import Exhausted, HostError, NotFound, Precondition, TonnageError
from tonnage.host import loop, mount, superblock
from tonnage.pools import imagecopy, imagefile, stillness
from tonnage.pools.base import WELL, Condition, Source
from tonnage.pools.directory import Record
from tonnage.pools.formats import FORMATS
from tonnage.pools.imagestore import NODE, ImageStore

log = logging.getLogger(__name__)
_READONLY = 1  # ST_RDONLY of statvfs


def _nothing(_path: Path) -> int:
    return 0


class ImageDepot(ImageStore):
    """An image store with all that images can do."""

    def origin(self, source: Source) -> Record:
        """What a volume shall be filled from. Raises NotFound."""
        return self.snapshots.record(source.snapshot) if source.snapshot else self.record(source.volume)

    def length_of(self, origin: Record, size: int) -> int:
        """How long the image of a copy, or of the volume itself, must be for `size` usable bytes."""
        if origin.block:
            return size
        if origin.state == "new":
            return max(origin.length, FORMATS[origin.fstype].length(size))
        return max(origin.length, FORMATS[origin.fstype].grown(size, origin.made or origin.length))

    def fill(self, record: Record, origin: Record) -> Record:
        """Make the image of a volume from another's; the record as it is then. Raises Exhausted, Precondition."""
        image = self.image(record.name)
        if origin.state == "new" and not origin.block:
            imagefile.make(image, record)  # it was never used: nothing to copy, and to be formatted still
            return record
        if record.from_snapshot:
            fd, shared = self._copy_snapshot(origin, image)
        else:
            fd, shared = stillness.copy(self.image(origin.name), origin, image)
        try:
            if shared:
                self.account.promise(image, record.length, ratio=float("inf"), allocated=_nothing)
            imagecopy.extend(fd, image, record.length, sparse=record.sparse)
            if record.block:
                return replace(record, shared=shared)
            imagecopy.renew(fd, image, record.fstype, record.uuid)
            pending = origin.pending or record.length > origin.length
            if pending and record.fstype == "ext4":
                imagecopy.resize_ext4(fd, record.length)
                pending = False
            os.fsync(fd)
        finally:
            os.close(fd)
        made = origin.made or origin.length
        return replace(record, shared=shared, state="formatted", made=made, pending=pending)

    def _copy_snapshot(self, origin: Record, image: Path) -> tuple[int, bool]:
        """A snapshot is used by nobody: its image is copied as it is."""
        path = self.snapshots.content(origin.name)
        fd = imagecopy.make(image)
        try:
            source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return fd, imagecopy.copy(fd, source, image)
            finally:
                os.close(source)
        except OSError as failure:
            os.close(fd)
            raise HostError(f"cannot open {path}: {failure.strerror}; the snapshot's content is lost") from failure
        except BaseException:
            os.close(fd)
            raise

    def snapshot(self, name: str, volume: str, owner: Mapping[str, str]) -> Record:
        """Make a snapshot; durable when this returns. Raises NotFound, Exhausted, Precondition, HostError."""
        origin = self.record(volume)
        created = self.clock.time()
        record = replace(
            origin,
            name=name,
            uuid=uuid5(NAMESPACE_URL, f"{self.path}/snapshot/{name}/{created!r}"),
            sparse=True,
            parameters={},
            owner=dict(owner),
            created=created,
            from_snapshot="",
            from_volume=volume,
        )
        self.book(record)
        image = self.snapshots.content(name)
        try:
            self.snapshots.prepare()
            held = self.held(self.image(volume))
            self.account.promise(image, held, ratio=self.bounds.ratio)
            record = self._keep(record, origin, image)
            if record.shared:
                self.account.promise(image, held, ratio=float("inf"), allocated=_nothing)
            self.snapshots.add(record, durable=True)
        except BaseException:
            self.unbook(record, image)
            with suppress(HostError):
                self.snapshots.forget(name, durable=True)
                imagefile.remove(image)
            raise
        return record

    def _keep(self, record: Record, origin: Record, image: Path) -> Record:
        if origin.state == "new" and not origin.block:
            imagefile.make(image, record)  # it was never used
            return replace(record, shared=False)
        fd, shared = stillness.copy(self.image(origin.name), origin, image)
        try:
            os.fsync(fd)
        except OSError as failure:
            raise HostError(f"cannot write {image}: {failure.strerror}") from failure
        finally:
            os.close(fd)
        return replace(record, shared=shared)

    def delete_snapshot(self, name: str) -> None:
        """Remove a snapshot; an unknown one is success. Raises HostError."""
        self.check_open()
        record = self.snapshots.find(name)
        if record is None:
            return
        image = self.snapshots.content(name)
        self.snapshots.forget(name, durable=True)
        self.unbook(record, image)
        imagefile.remove(image)

    def expand(self, name: str, size: int) -> Record:
        """Make an image long enough for `size` bytes; durable when this returns. Raises Exhausted, HostError."""
        record, image = self.record(name), self.image(name)
        length, more = self.length_of(record, size), size - record.size
        is_used = record.state != "new" or record.block
        made = (record.made or record.length) if is_used else 0
        larger = replace(record, size=size, length=length, made=made, pending=is_used)
        self.book_bytes(name, more)
        try:
            self.account.promise(image, length, ratio=self.bounds.ratio, allocated=_nothing if record.shared else None)
            self._extend(image, record, length)
            self.write(larger)
        except BaseException:
            self.book_bytes(name, -more)
            self.account.remember(image, record.length, allocated=_nothing if record.shared else None)
            raise
        return larger

    def _extend(self, image: Path, record: Record, length: int) -> None:
        if record.state == "new" and not record.block and not image.exists():
            return  # a power cut took it; it is made when it is staged
        fd = imagefile.open_image(image, shared=True)
        try:
            imagecopy.extend(fd, image, length, sparse=record.sparse)
        finally:
            os.close(fd)

    def grow(self, name: str, path: Path) -> Record:
        """See Pool.grow."""
        record, image = self.record(name), self.image(name)
        self.stats(name, path)  # raises NotFound
        indexes = [index for index, _ in loop.attached() if loop.backs(index, image)]
        for index in indexes:
            loop.set_capacity(index)
        if record.pending and not record.block:
            _grow_mounted(image, record)
        return self.grown(record)

    def grown(self, record: Record) -> Record:
        """Write down that the file system has its size."""
        if record.pending:
            record = replace(record, pending=False)
            self.write(record)
        return record

    def condition(self, name: str, path: Path | None) -> Condition:
        """See Pool.condition."""
        try:
            record = self.record(name)
        except HostError as failure:
            return Condition(abnormal=True, message=str(failure))
        if fault := self._fault(record) or (_mount_fault(record, path) if path else ""):
            return Condition(abnormal=True, message=f"volume {name}: {fault}")
        if record.pending:
            return Condition(abnormal=False, message="the volume is well; its file system is still to be grown")
        return WELL

    def _fault(self, record: Record) -> str:
        try:
            found = os.lstat(self.image(record.name))
        except FileNotFoundError:
            unused = record.state == "new" and not record.block
            return "" if unused else f"its image {self.image(record.name)} is gone, and its content with it"
        except OSError as failure:
            return f"its image cannot be reached: {failure.strerror}; look at the disk under {self.path}"
        if found.st_size < record.length:
            return f"its image has {found.st_size} bytes, it must have {record.length}: it was cut off"
        return ""


def _grow_mounted(image: Path, record: Record) -> None:
    failure: OSError | None = None
    for fd in stillness.roots(image, record):
        try:
            superblock.grow(fd, record.fstype, record.length)
            return
        except OSError as error:
            failure = error
            if error.errno != errno.EROFS:  # read-only there: another mount of it may do
                break
        finally:
            os.close(fd)
    raise _cannot_grow(record, failure)


def _cannot_grow(record: Record, failure: OSError | None) -> TonnageError:
    if failure is None:
        return NotFound(f"volume {record.name} is not mounted where this process can see it")
    if failure.errno == errno.EPERM and record.fstype == "ext4" and not superblock.may_grow_ext4():
        return Precondition(
            f"volume {record.name}: the kernel grows a mounted ext4 only for CAP_SYS_RESOURCE, which is lacking;"
            " it grows when the volume is staged the next time: restart its pod, or run the driver with that capability"
        )
    if failure.errno == errno.EROFS:
        return Precondition(f"volume {record.name} is mounted read-only: it grows when it is staged writable")
    if failure.errno in (errno.ENOSPC, errno.EDQUOT):
        return Exhausted(f"volume {record.name}: no room to grow its file system: {failure.strerror}")
    return HostError(f"cannot grow the file system of volume {record.name}: {failure.strerror}")


def _mount_fault(record: Record, path: Path) -> str:
    try:
        where = path / NODE if record.block and path.is_dir() else path
        if record.block:
            return "" if imagefile.loop_of(where) is not None else f"its device is not at {path}"
        if not mount.is_mount(path):
            return f"it is not mounted at {path}"
        if os.statvfs(path).f_flag & _READONLY and "emergency_ro" in _superblock_options(path):
            return f"its file system went read-only after an error: look at the kernel's log, then at {path}"
    except OSError as failure:
        return f"its mount at {path} cannot be read: {failure.strerror}"
    return ""


def _superblock_options(path: Path) -> str:
    """The options of the file system, rather than of the mount: ext4 tells there that it stopped writing."""
    real = f" {path} "
    with suppress(OSError), open("/proc/self/mountinfo") as table:
        for line in table:
            if real in line:
                return line.rpartition(" ")[2]
    return ""
