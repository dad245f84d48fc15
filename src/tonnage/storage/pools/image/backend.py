"""The image back end: each volume is a file in a directory, attached as a loop device. It works on any disk.

Order of steps, so that a kill between any two loses nothing: a copy is complete before its record is written; an image
is extended before its record says so, and its file system grows after that. An image longer than its record belongs to
a call that never returned, and is cut at the next start.

Images are thick by default (allocated when the volume is made). Sparse ones count against the pool's size and the
disk's free bytes, together with all pools of this process on that disk. The image is longer than the volume by the
overhead of its file system, so the requested size is usable in full. The pool's size counts requested sizes. Raw block
volumes are exactly as long as requested. Needs root, e2fsprogs for ext4, xfsprogs for xfs, btrfs-progs for btrfs.

The class parameter `erase` says how a volume's content is erased when it is deleted (a new volume never shows old
content in any case).

A mounted file system is frozen while it is copied for a snapshot or clone: for a moment where the disk can share blocks
between files (xfs, btrfs), else as long as copying its data takes. A raw block volume in use can be copied only where
blocks can be shared. xfs and btrfs grow while they are mounted, ext4 only with CAP_SYS_RESOURCE.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import HostError, host_errors
from tonnage.host import device, extents, loop
from tonnage.host.descriptor import closing, opened
from tonnage.host.device import filesystem_length
from tonnage.storage.pools.base.contract import Features, PoolLimits, Stillness
from tonnage.storage.pools.base.parameters import ERASE, FORMATTED, LIMITS, check_shared, erase_of
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.core.wipe import OVERWRITES, check_overwrites
from tonnage.storage.pools.directory.backend import DirectoryBackend, PoolFolder, is_overwritten
from tonnage.storage.pools.directory.content import Allocated, VolumeContent, nothing
from tonnage.storage.pools.fs.formats import FORMATS
from tonnage.storage.pools.fs.online import Freeze
from tonnage.storage.pools.image import consistent_copy, copy, ext4_resize, file
from tonnage.storage.pools.image.mounts import ImageMounts, free_loops

log = logging.getLogger(__name__)
FEATURES = Features(
    "image",
    fstypes=tuple(FORMATS),
    parameters=FORMATTED | LIMITS,
    modifiable=LIMITS | {ERASE},
    snapshots=True,
    clones=True,
    expansion=True,
    shares_limit=True,
)


class ImageContent(VolumeContent):
    """Image files in a directory."""

    is_file = durable = True
    shares = False
    fstypes: tuple[str, ...] = tuple(FORMATS)

    def __init__(self, folder: PoolFolder) -> None:
        self._folder = folder

    def check(self, parameters: Mapping[str, str]) -> None:
        check_shared(parameters)
        if erase_of(parameters) in OVERWRITES:
            check_overwrites(self._folder.path, self._folder.medium)

    def ready(self) -> None:
        folder = self._folder
        ext4_resize.settle_all(folder.path, folder.records.volumes, folder.suffix, spared=folder.records.damaged)

    def limit(self) -> int:
        """Each volume in use takes a loop device."""
        return loop.most()

    def in_use(self, content: Path) -> bool:
        return file.is_used(content)

    def changed(self, name: str) -> None:
        if name and name not in self._folder.records.volumes:
            ext4_resize.forget(self._folder.content(name))

    def found(self, records: dict[str, VolumeRecord]) -> None:
        images = {
            (image.st_dev, image.st_ino) for image in map(os.lstat, self._folder.path.glob(f"*{self._folder.suffix}"))
        }
        free_loops(self._folder.path, images, orphans=True)
        consistent_copy.thaw_all(self._folder.path, records, self._folder.suffix)

    def restore(self, record: VolumeRecord) -> None:
        """Cut what an expand() added that was killed before its record was written: it never returned.

        Raises: ValueError for an image with content there: its record is restored from an earlier moment.
        """
        if record.length < record.size:
            raise ValueError(f"its size is {record.size}, its length {record.length}")
        if not record.block and record.fstype not in FORMATS:
            raise ValueError(f"it has the file system {record.fstype[:20]!r}")
        image = self._folder.content(record.name)
        with suppress(FileNotFoundError):
            if os.lstat(image).st_size > record.length:
                with opened(image, os.O_RDWR | os.O_NOFOLLOW) as fd:
                    _cut(fd, image, record)

    def remove(self, content: Path) -> None:
        file.remove(content)

    def claim(self, record: VolumeRecord) -> tuple[int, Allocated]:
        return record.length, nothing if record.shared else None

    def shows_use(self, record: VolumeRecord, content: Path) -> bool:
        with opened(content, os.O_RDONLY | os.O_NOFOLLOW) as fd:
            if record.block or device.is_pristine(fd):
                return not device.is_pristine(fd)
            return device.probe(fd) is not None and not device.is_unused(fd)

    def is_shared(self, record: VolumeRecord) -> bool:
        if not self._folder.medium.shares:
            return False
        try:
            with opened(self._folder.content(record.name), os.O_RDONLY | os.O_NOFOLLOW) as fd:
                return any(extent.is_shared for extent in extents.extents(fd))
        except OSError:
            return True  # not known

    def allocates(self, record: VolumeRecord, origin: VolumeRecord | None) -> int:
        if origin is None or (origin.state == "new" and not origin.block):
            return 0 if record.sparse else record.length
        folder = self._folder.snapshots if record.from_snapshot else self._folder
        image, share = folder.content(origin.name), not is_overwritten(record, origin)
        copied = consistent_copy.check(image, origin, self._folder.path, share=share)
        if record.sparse:
            return copied
        return record.length if copied else max(0, record.length - origin.length)

    def held(self, content: Path) -> int:
        with suppress(OSError):
            return os.stat(content).st_blocks * 512
        return 0

    def make(self, record: VolumeRecord) -> VolumeRecord:
        file.make(self._folder.content(record.name), record)
        return record

    def fill(self, record: VolumeRecord, origin: VolumeRecord) -> VolumeRecord:
        """Make the image of a volume from another's; return its record. Raises: ExhaustedError, PreconditionError."""
        image = self._folder.content(record.name)
        if origin.state == "new" and not origin.block:
            file.make(image, record)  # it was never used: nothing to copy, and to be formatted still
            return record
        if record.from_snapshot:
            fd, shared = self._copy_snapshot(origin, image, share=not is_overwritten(record, origin))
        else:
            share = not is_overwritten(record, origin)
            fd, shared = consistent_copy.copy(self._folder.content(origin.name), origin, image, share=share)
        try:
            if shared:
                self._folder.account.reserve(image, record.length, ratio=float("inf"), allocated=nothing)
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
        path = self._folder.snapshots.content(origin.name)
        fd = copy.make(image)
        try:
            with opened(path, os.O_RDONLY | os.O_NOFOLLOW) as source:
                return fd, copy.copy(fd, source, image, share=share)
        except OSError as failure:
            os.close(fd)
            raise HostError(f"cannot open {path}: {failure.strerror}; the snapshot's content is lost") from failure
        except BaseException:
            os.close(fd)
            raise

    def stillness(self, record: VolumeRecord) -> Stillness:
        image = self._folder.content(record.name)
        if (record.state == "new" and not record.block) or not file.is_used(image):
            return Stillness.UNUSED
        return Stillness.ALONE if record.block else Stillness.FROZEN

    def copied_bytes(self, record: VolumeRecord) -> int:
        self._folder.snapshots.prepare()
        image, folder = self._folder.content(record.name), self._folder.snapshots.path
        return consistent_copy.copied_bytes(image, folder, share=not is_overwritten(record))

    def freeze(self, record: VolumeRecord) -> Freeze:
        return consistent_copy.freeze(self._folder.content(record.name), record)

    def snapshot(
        self, record: VolumeRecord, origin: VolumeRecord, content: Path, *, is_frozen: bool = False
    ) -> VolumeRecord:
        record = replace(record, sparse=True)
        if origin.state == "new" and not origin.block:
            file.make(content, record)  # it was never used
            return replace(record, shared=False)
        share = not is_overwritten(record)
        fd, shared = consistent_copy.copy(
            self._folder.content(origin.name), origin, content, share=share, is_frozen=is_frozen
        )
        try:
            with host_errors(f"cannot write {content}"):
                os.fsync(fd)
        finally:
            os.close(fd)
        return replace(record, shared=shared)

    def extend(self, record: VolumeRecord, larger: VolumeRecord) -> None:
        image = self._folder.content(record.name)
        if record.state == "new" and not record.block and not image.exists():
            return  # a power cut took it; it is made when it is staged
        with closing(file.open_image(image, shared=True)) as fd:
            copy.extend(fd, image, larger.length, sparse=record.sparse)

    def fault(self, record: VolumeRecord) -> str:
        try:
            found = os.lstat(self._folder.content(record.name))
        except FileNotFoundError:
            unused = record.state == "new" and not record.block
            return "" if unused else f"its image {self._folder.content(record.name)} is gone, and its content with it"
        except OSError as failure:
            return f"its image cannot be reached: {failure.strerror}; look at the disk under {self._folder.path}"
        if found.st_size < record.length:
            return f"its image has {found.st_size} bytes, it must have {record.length}: it was cut off"
        return ""


def _cut(fd: int, image: Path, record: VolumeRecord) -> None:
    if (length := filesystem_length(fd)) > record.length:
        raise ValueError(f"its image {image} has a file system of {length} bytes, the record says {record.length}")
    if device.has_data(fd, record.length):
        raise ValueError(f"its image {image} has content behind the {record.length} bytes that the record says")
    log.info("cutting an interrupted expansion path=%s to=%d", image, record.length)
    os.ftruncate(fd, record.length)


def make_backend(
    directory: Path, bounds: PoolLimits | None = None, *, disks: Disks | None = None, clock: Clock | None = None
) -> DirectoryBackend:
    """Image files in a directory."""
    folder = PoolFolder(directory, bounds, kind="image", suffix=".img", disks=disks, clock=clock)
    return DirectoryBackend(folder, ImageContent(folder), ImageMounts(folder), FEATURES)
