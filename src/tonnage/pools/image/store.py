"""The blocking back end of the image pool: a directory of image files and their records. Thread-safe.

The file system is made when a volume is first staged: mkfs runs, then the record leaves state new, then it is mounted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid5

from msgspec.structs import replace

from tonnage.errors import AlreadyExists, Busy, HostError, InUse, NotFound, Precondition, Unsupported
from tonnage.host import device, loop, mount, ondisk, superblock
from tonnage.pools.base.contract import Stats, VolumeRequest
from tonnage.pools.base.parameters import MKFS_OPTIONS, SOURCE, source_of
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.core.request import RequestedVolume
from tonnage.pools.core.wipe import Medium, medium_of
from tonnage.pools.directory.content import Allocated, nothing
from tonnage.pools.directory.store import FolderStore
from tonnage.pools.fs import block_device, mounts
from tonnage.pools.fs.formats import BLOCK, FORMATS, Format, form_of
from tonnage.pools.image import consistent_copy, ext4_resize, file

log = logging.getLogger(__name__)
NODE = "device"
"""Name of the device node inside the staging directory of a raw block volume."""


class ImageStore(FolderStore):
    """Image files in a directory."""

    kind = "image"
    suffix = ".img"
    erases = True
    medium = Medium()
    """How the pool's disk overwrites files; known when the pool is open."""
    _seen: Sequence[VolumeRecord] = ()

    def ready(self) -> None:
        self.medium = medium_of(self.path)
        ext4_resize.settle_all(self.path, self.records, self.suffix, spared=self.damaged)

    def modify(self, name: str, mutable: Mapping[str, str]) -> VolumeRecord:
        """Raises Unsupported where old content may be in blocks that others share already."""
        record = self.record(name)
        changed = replace(record, mutable=dict(mutable))
        if self.medium.shares and self.overwritten(changed) and not self.overwritten(record):
            raise Unsupported(
                f"volume {name}: {self.where} lies on a disk where files can share blocks, so what is overwritten at"
                " the end must be known from the beginning: set erase in the class"
            )
        return super().modify(name, mutable)

    def found(self, records: dict[str, VolumeRecord]) -> None:
        images = {(image.st_dev, image.st_ino) for image in map(os.lstat, self.path.glob(f"*{self.suffix}"))}
        self._free_loops(images, folder=str(self.path))
        consistent_copy.thaw_all(self.path, records, self.suffix)
        self._seen = list(records.values())

    def restore(self, record: VolumeRecord) -> None:
        """Cut what an expand() added that was killed before its record was written: it never returned.

        Raises ValueError for an image with content there: its record is restored from an earlier moment.
        """
        if record.length < record.size:
            raise ValueError(f"its size is {record.size}, its length {record.length}")
        if not record.block and record.fstype not in FORMATS:
            raise ValueError(f"it has the file system {record.fstype[:20]!r}")
        image = self.content(record.name)
        with suppress(FileNotFoundError):
            if os.lstat(image).st_size > record.length:
                fd = os.open(image, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    _cut(fd, image, record)
                finally:
                    os.close(fd)

    def discard(self, content: Path) -> None:
        if file.is_used(content):
            log.error("image without a record is in use, left alone path=%s", content)
            return
        # It may be half a copy of a volume that is to be overwritten at its end.
        log.info("removing image without a record path=%s", content)
        self.undo(content, is_secret=self.overwritten(*self._seen, *self.snapshots.all()))

    def held_by_damaged(self, name: str) -> int:
        with suppress(OSError):
            return os.stat(self.content(name)).st_size
        return 0

    def _free_loops(self, images: set[tuple[int, int]], *, folder: str = "") -> None:
        """Free the loop devices of images, also of removed ones, that are mounted nowhere.

        A kill or an error left them attached for raw block.
        """
        ours = {*loop.of_files(images, self.path)}
        if folder:
            ours |= {index for index, _ in loop.attached() if loop.lies_in(index, folder)}
        if not ours:
            return
        shown = _shown()
        for index in ours:
            if loop.device(index) not in shown and not loop.is_autoclear(index):
                log.info("freeing loop device that is shown nowhere device=%s", loop.device(index))
                loop.detach(index)

    def remove(self, content: Path) -> None:
        file.remove(content)

    def delete(self, name: str) -> None:
        super().delete(name)
        ext4_resize.forget(self.content(name))

    def check_unused(self, name: str) -> None:
        image = self.content(name)
        if file.is_used(image, wait=False) and not self._set_free(image):
            raise InUse(f"volume {name} is in use (mounted or attached): unpublish and unstage it first")

    def _set_free(self, image: Path) -> bool:
        """Whether an image is unused, after freeing devices that a failed unstage left attached to it."""
        found = os.stat(image)
        self._free_loops({(found.st_dev, found.st_ino)})
        return not file.is_used(image, wait=False)

    def claim(self, record: VolumeRecord) -> tuple[int, Allocated]:
        return record.length, nothing if record.shared else None

    def held(self, content: Path) -> int:
        with suppress(OSError):
            return os.stat(content).st_blocks * 512
        return 0

    def form(self, fstype: str, parameters: Mapping[str, str]) -> Format | None:
        return form_of(fstype, parameters.get(MKFS_OPTIONS, "")) if fstype else None

    def smallest(self, form: Format | None) -> int:
        return form.least if form else BLOCK

    def length(self, form: Format | None, size: int) -> int:
        return form.length(size) if form else size

    def largest(self, form: Format | None, bytes_left: int) -> int:
        return form.usable(bytes_left) if form else bytes_left // BLOCK * BLOCK

    def new_uuid(self, name: str, created: float) -> UUID:
        return uuid5(NAMESPACE_URL, f"{self.path}/{name}/{created!r}")

    def new_record(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None) -> VolumeRecord:
        record = super().new_record(request, want, origin)
        if origin is None:
            length = self.length(self.form(record.fstype, request.parameters), record.size)
        else:
            length = self.length_of(origin, record.size)
        return replace(record, length=length, sparse=self.bounds.sparse)

    def length_of(self, origin: VolumeRecord, size: int) -> int:
        """Length of the image of a copy, or of the volume itself, for `size` usable bytes."""
        if origin.block:
            return size
        form = form_of(origin.fstype, origin.mkfs)
        if origin.state == "new":
            return max(origin.length, form.length(size))
        return max(origin.length, form.grown(size, origin.made or origin.length))

    def make(self, record: VolumeRecord) -> VolumeRecord:
        file.make(self.content(record.name), record)
        return record

    def grown(self, record: VolumeRecord) -> VolumeRecord:
        """Record that the file system has its size."""
        if record.pending:
            record = replace(record, pending=False)
            self.write(record)
        return record

    def stage(self, name: str, path: Path, options: Sequence[str]) -> None:
        record, image = self.record(name), self.content(name)
        self.directory.check_place()
        if mount.is_mount(path):
            if not file.shows(image, path):
                raise AlreadyExists(f"{path} is a mount of something else: unmount it first")
            if record.pending and "ro" not in options and not _grows_unmounted(record):
                self._grow(record, path)  # killed between mount and this
            return
        mounts.make_directory(path)
        if record.block:
            self._stage_block(record, image, path / NODE)
            return
        if record.state == "new" and not image.exists():
            file.make(image, record)  # after a power cut an empty image may be missing although its record exists
        ext4_resize.settle(image, record)
        fd = file.open_image(image)
        try:
            if record.state == "new":
                file.format_image(fd, image, record)
                if folder := source_of({SOURCE: record.from_folder}):
                    file.fill_image(fd, image, record, folder)
                record = replace(record, state="formatted", pending=False)
                self.write(record)
            file.fill_holes(fd, image, record)
            if record.pending and _grows_unmounted(record):
                ext4_resize.grow(fd, image, record)
                record = self.grown(record)
                ext4_resize.forget(image)
            file.mount_image(fd, image, record, path, options)
        finally:
            os.close(fd)
        if record.pending and "ro" not in options:
            self._grow(record, path)

    def _grow(self, record: VolumeRecord, path: Path) -> None:
        """Grow a mounted file system that was expanded while it was not mounted."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            superblock.grow(fd, record.fstype, record.length)
        except OSError as failure:
            raise HostError(f"cannot grow the file system of volume {record.name}: {failure.strerror}") from failure
        finally:
            os.close(fd)
        self.grown(record)

    def _stage_block(self, record: VolumeRecord, image: Path, node: Path) -> None:
        if mount.is_mount(node):
            if (index := block_device.loop_of(node)) is None or not loop.backs(index, image):
                raise AlreadyExists(f"{node} shows something else: unmount it first")
            return
        mounts.make_file(node)
        self._show_block(record, image, node, readonly=False)
        self.grown(record)

    def _show_block(self, record: VolumeRecord, image: Path, node: Path, *, readonly: bool) -> None:
        try:
            fd = file.open_image(image, shared=readonly)
        except Busy:
            if not self._set_free(image):
                raise
            fd = file.open_image(image, shared=readonly)
        try:
            file.fill_holes(fd, image, record)
            index = file.attach_block(fd, image, readonly=readonly)
        finally:
            os.close(fd)
        try:
            mount.bind(loop.device(index), node)
        except BaseException:
            loop.detach(index)
            raise

    def unstage(self, name: str, path: Path) -> None:
        node = path / NODE
        if not mount.is_mount(path) and mount.is_mount(node):
            self._hide_block(name, node)
        mounts.unstage(path)

    def _hide_block(self, name: str, node: Path) -> None:
        """Unmount and remove a device node, and free its loop device if it is the volume's.

        A device that is still published elsewhere stays: the kernel could reuse it for another volume.
        """
        index = block_device.loop_of(node)
        is_ours = index is not None and loop.backs(index, self.content(name))
        mounts.unpublish(node)
        if index is not None and is_ours and loop.device(index) not in _shown():
            loop.detach(index)

    def publish(self, name: str, staging: Path, target: Path, *, readonly: bool) -> None:
        record, image = self.record(name), self.content(name)
        source = staging / NODE if record.block else staging
        if not mount.is_mount(source):
            raise Precondition(f"volume {name} is not staged at {staging}: stage it first")
        if not record.block:
            if not file.shows(image, source):
                raise Precondition(f"{staging} is a mount of something else than volume {name}")
            mounts.publish(source, target, block=False, readonly=readonly)
        elif mount.is_mount(target):
            index = block_device.loop_of(target)
            if index is None or not loop.backs(index, image) or loop.is_readonly(index) != readonly:
                raise AlreadyExists(f"{target} shows something else, or not with readonly={readonly}")
        elif readonly:  # a read-only bind of a device node does not stop writes, a read-only device does
            mounts.make_file(target)
            self._show_block(record, image, target, readonly=True)
        else:
            mounts.publish(source, target, block=True, readonly=False)

    def unpublish(self, name: str, target: Path) -> None:
        self._hide_block(name, target)

    def device(self, name: str) -> tuple[int, int] | None:
        """A loop device, while it is attached writable."""
        image = self.content(self.record(name).name)
        for index in loop.of_file(image):
            if not loop.is_readonly(index):
                number = os.stat(loop.device(index)).st_rdev
                return os.major(number), os.minor(number)
        return None

    def stats(self, name: str, path: Path) -> Stats:
        record = self.record(name)
        if record.block:
            node = path / NODE if path.is_dir() else path
            if block_device.loop_of(node) is None:
                raise NotFound(f"volume {name} is not at {path}")
            return Stats(total=record.size, used=record.size, available=0)
        if not mount.is_mount(path) or not file.shows(self.content(name), path):
            raise NotFound(f"volume {name} is not mounted at {path}")
        return mounts.stats(path)


def _cut(fd: int, image: Path, record: VolumeRecord) -> None:
    if (length := ondisk.length(fd)) > record.length:
        raise ValueError(f"its image {image} has a file system of {length} bytes, the record says {record.length}")
    if device.has_data(fd, record.length):
        raise ValueError(f"its image {image} has content behind the {record.length} bytes that the record says")
    log.info("cutting an interrupted expansion path=%s to=%d", image, record.length)
    os.ftruncate(fd, record.length)


def _shown() -> set[str]:
    """The devices that are mounted, or whose nodes are bind-mounted."""
    found = set()
    for entry in mount.mounts():
        found.add(entry.source)
        if entry.fstype == "devtmpfs" and entry.root.startswith("/loop"):
            found.add(f"/dev{entry.root}")
    return found


def _grows_unmounted(record: VolumeRecord) -> bool:
    """Whether the kernel forbids us to grow the file system while it is mounted."""
    return record.fstype == "ext4" and not superblock.may_grow_ext4()
