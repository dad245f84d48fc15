"""Snapshots, clones, expansion and health of images: the full store of the image pool.

Order of steps, so that a kill between any two loses nothing: a copy is complete before its record is written; an image
is extended before its record says so, and its file system grows after that. An image longer than its record belongs to
a call that never returned, and is cut at the next start.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from msgspec.structs import replace

from tonnage.errors import HostError
from tonnage.host import loop
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.directory.content import nothing
from tonnage.pools.fs import block_device, online
from tonnage.pools.image import consistent_copy, copy, file
from tonnage.pools.image.store import NODE, ImageStore

log = logging.getLogger(__name__)


class ImageDepot(ImageStore):
    """An image store with snapshots, clones and expansion."""

    def fill(self, record: VolumeRecord, origin: VolumeRecord) -> VolumeRecord:
        """Make the image of a volume from another's; return its record. Raises Exhausted, Precondition."""
        image = self.content(record.name)
        if origin.state == "new" and not origin.block:
            file.make(image, record)  # it was never used: nothing to copy, and to be formatted still
            return record
        if record.from_snapshot:
            fd, shared = self._copy_snapshot(origin, image, share=not self.overwritten(record, origin))
        else:
            share = not self.overwritten(record, origin)
            fd, shared = consistent_copy.copy(self.content(origin.name), origin, image, share=share)
        try:
            if shared:
                self.account.promise(image, record.length, ratio=float("inf"), allocated=nothing)
            copy.extend(fd, image, record.length, sparse=record.sparse)
            if record.block:
                return replace(record, shared=shared)
            copy.renew(fd, image, record.fstype, record.uuid)
            pending = origin.pending or record.length > origin.length
            if pending and record.fstype == "ext4":
                copy.resize_ext4(fd, record.length)
                pending = False
            os.fsync(fd)
        finally:
            os.close(fd)
        made = origin.made or origin.length
        return replace(record, shared=shared, state="formatted", made=made, pending=pending)

    def _copy_snapshot(self, origin: VolumeRecord, image: Path, *, share: bool) -> tuple[int, bool]:
        """Copy a snapshot's image. It is never in use, so it needs no freezing."""
        path = self.snapshots.content(origin.name)
        fd = copy.make(image)
        try:
            source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return fd, copy.copy(fd, source, image, share=share)
            finally:
                os.close(source)
        except OSError as failure:
            os.close(fd)
            raise HostError(f"cannot open {path}: {failure.strerror}; the snapshot's content is lost") from failure
        except BaseException:
            os.close(fd)
            raise

    def keep(self, record: VolumeRecord, origin: VolumeRecord, content: Path) -> VolumeRecord:
        record = replace(record, sparse=True)
        if origin.state == "new" and not origin.block:
            file.make(content, record)  # it was never used
            return replace(record, shared=False)
        share = not self.overwritten(record)
        fd, shared = consistent_copy.copy(self.content(origin.name), origin, content, share=share)
        try:
            os.fsync(fd)
        except OSError as failure:
            raise HostError(f"cannot write {content}: {failure.strerror}") from failure
        finally:
            os.close(fd)
        return replace(record, shared=shared)

    def enlarged(self, record: VolumeRecord, size: int) -> VolumeRecord:
        is_used = record.state != "new" or record.block
        made = (record.made or record.length) if is_used else 0
        return replace(record, size=size, length=self.length_of(record, size), made=made, pending=is_used)

    def extend(self, record: VolumeRecord, larger: VolumeRecord) -> None:
        image = self.content(record.name)
        if record.state == "new" and not record.block and not image.exists():
            return  # a power cut took it; it is made when it is staged
        fd = file.open_image(image, shared=True)
        try:
            copy.extend(fd, image, larger.length, sparse=record.sparse)
        finally:
            os.close(fd)

    def grow(self, name: str, path: Path) -> VolumeRecord:
        record, image = self.record(name), self.content(name)
        self.stats(name, path)  # raises NotFound
        indexes = loop.of_file(image)
        for index in indexes:
            loop.set_capacity(index)
        if record.pending and not record.block:
            online.grow(record, consistent_copy.roots(image, record))
        return self.grown(record)

    def fault(self, record: VolumeRecord, path: Path | None) -> str:
        return self._fault(record) or (_shown_fault(record, path) if path else "")

    def _fault(self, record: VolumeRecord) -> str:
        try:
            found = os.lstat(self.content(record.name))
        except FileNotFoundError:
            unused = record.state == "new" and not record.block
            return "" if unused else f"its image {self.content(record.name)} is gone, and its content with it"
        except OSError as failure:
            return f"its image cannot be reached: {failure.strerror}; look at the disk under {self.path}"
        if found.st_size < record.length:
            return f"its image has {found.st_size} bytes, it must have {record.length}: it was cut off"
        return ""


def _shown_fault(record: VolumeRecord, path: Path) -> str:
    if not record.block:
        return online.fault(path)
    where = path / NODE if path.is_dir() else path
    return "" if block_device.loop_of(where) is not None else f"its device is not at {path}"
