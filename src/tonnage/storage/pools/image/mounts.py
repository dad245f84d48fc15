"""Images on their node: attached as loop devices, formatted once, mounted, published. Blocking.

The file system is made when a volume is first staged: mkfs runs, then the record leaves state new, then it is mounted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from tonnage.base.errors import AlreadyExistsError, BusyError, InUseError, NotFoundError, PreconditionError, host_errors
from tonnage.host import filesystem, loop, mount
from tonnage.host.descriptor import closing, opened
from tonnage.storage.pools.base.contract import Stats
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.backend import Mounts
from tonnage.storage.pools.core.device_mounts import NODE
from tonnage.storage.pools.directory.backend import PoolFolder
from tonnage.storage.pools.fs import block_device, mounts, online, shutdown
from tonnage.storage.pools.image import consistent_copy, ext4_resize, file


class ImageMounts(Mounts):
    """Stages and publishes the images of a directory."""

    def __init__(self, folder: PoolFolder) -> None:
        self._folder = folder
        self._down = shutdown.ShutDowns()

    def check_unused(self, name: str) -> None:
        """Raises: InUseError while a volume is mounted or attached."""
        image = self._folder.content(name)
        if file.is_used(image, wait=False) and not self._set_free(image):
            raise InUseError(f"volume {name} is in use (mounted or attached): unpublish and unstage it first")

    def _set_free(self, image: Path) -> bool:
        """Whether an image is unused, after freeing devices that a failed unstage left attached to it."""
        found = os.stat(image)
        free_loops(self._folder.path, {(found.st_dev, found.st_ino)})
        return not file.is_used(image, wait=False)

    def stage(self, record: VolumeRecord, path: Path, options: Sequence[str]) -> None:
        """Format an image once and mount it at path; attach raw block. Idempotent. Raises: AlreadyExistsError."""
        self._folder.directory.check_place()
        image = self._folder.content(record.name)
        if mount.is_mount(path) and self._stays(record, image, path, options):
            return
        mounts.make_directory(path)
        if record.block:
            self._stage_block(record, image, path / NODE)
            return
        if record.state == "new" and not image.exists():
            file.make(image, record)  # after a power cut an empty image may be missing although its record exists
        ext4_resize.settle(image, record)
        try:
            fd = file.open_image(image)
        except BusyError:
            if not self._mount_attached(record, image, path, options):
                raise
        else:
            with closing(fd):
                record = self._mount(record, image, fd, path, options)
        self._down.staged(record.name, path)
        if record.pending and "ro" not in options:
            self._grow(record, path)

    def _stays(self, record: VolumeRecord, image: Path, path: Path, options: Sequence[str]) -> bool:
        """Whether an image that is mounted at path stays so; False for one that has shut down, which is unmounted.

        Raises: AlreadyExistsError for a mount of something else or with another SELinux context, PreconditionError.
        """
        if not file.shows(image, path):
            raise AlreadyExistsError(f"{path} is a mount of something else: unmount it first")
        if not record.block and self._down.release(record.name, path):
            return False
        if not record.block:
            mounts.check_context(record.name, path, options)
        if record.pending and "ro" not in options and not _grows_unmounted(record):
            self._grow(record, path)  # killed between mount and this
        return True

    def writes_record(self, record: VolumeRecord) -> bool:
        return record.state == "new" and not record.block

    def _mount(self, record: VolumeRecord, image: Path, fd: int, path: Path, options: Sequence[str]) -> VolumeRecord:
        """Mount a locked image, formatted before if it is new; return its record."""
        if record.state == "new":
            file.format_image(fd, image, record)
            file.fill_image(fd, image, record)
            record = replace(record, state="formatted", pending=False)
            self._folder.write(record)
        file.fill_holes(fd, image, record)
        if record.pending and _grows_unmounted(record):
            ext4_resize.grow(fd, image, record)
            record = self.grown(record)
            ext4_resize.forget(image)
        file.mount_image(fd, image, record, path, options)
        return record

    def _mount_attached(self, record: VolumeRecord, image: Path, path: Path, options: Sequence[str]) -> bool:
        """Mount an image that something else still holds, if that needs no lock; whether it is mounted."""
        if record.state == "new" or (record.pending and _grows_unmounted(record)) or "ro" in options:
            return False
        return file.mount_attached(image, record, path, options)

    def _grow(self, record: VolumeRecord, path: Path) -> None:
        """Grow a mounted file system that was expanded while it was not mounted."""
        what = f"cannot grow the file system of volume {record.name}"
        with opened(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as fd, host_errors(what):
            filesystem.grow(fd, record.fstype, record.length)
        self.grown(record)

    def _stage_block(self, record: VolumeRecord, image: Path, node: Path) -> None:
        if mount.is_mount(node):
            if (index := block_device.loop_of(node)) is None or not loop.backs(index, image):
                raise AlreadyExistsError(f"{node} shows something else: unmount it first")
            return
        mounts.make_file(node)
        self._show_block(record, image, node, readonly=False)
        self.grown(record)

    def _show_block(self, record: VolumeRecord, image: Path, node: Path, *, readonly: bool) -> None:
        try:
            fd = file.open_image(image, shared=readonly)
        except BusyError:
            if not self._set_free(image):
                raise
            fd = file.open_image(image, shared=readonly)
        with closing(fd):
            file.fill_holes(fd, image, record)
            block_device.bind_loop(fd, str(image), node, readonly=readonly)

    def unstage(self, name: str, path: Path) -> None:
        """Undo stage. Idempotent."""
        node = path / NODE
        if not mount.is_mount(path) and mount.is_mount(node):
            self._hide_block(name, node)
        self._down.unstaged(name, path)
        mounts.unstage(path)

    def _hide_block(self, name: str, node: Path) -> None:
        """Unmount and remove a device node, and free its loop device if it is the volume's.

        A device that is still published elsewhere stays: the kernel could reuse it for another volume.
        """
        index = block_device.loop_of(node)
        is_ours = index is not None and loop.backs(index, self._folder.content(name))
        mounts.unpublish(node)
        if index is not None and is_ours and loop.device(index) not in block_device.shown():
            loop.detach(index)

    def publish(self, record: VolumeRecord, staging: Path, target: Path, *, readonly: bool) -> None:
        """Publish a staged volume. Idempotent. Raises: PreconditionError, AlreadyExistsError, UnavailableError."""
        self._folder.directory.check_place()
        name, image = record.name, self._folder.content(record.name)
        source = staging / NODE if record.block else staging
        if not mount.is_mount(source):
            raise PreconditionError(f"volume {name} is not staged at {staging}: stage it first")
        if not record.block:
            if not file.shows(image, source):
                raise PreconditionError(f"{staging} is a mount of something else than volume {name}")
            self.revive(record, staging)
            mounts.publish(source, target, block=False, readonly=readonly)
        elif mount.is_mount(target):
            index = block_device.loop_of(target)
            if index is None or not loop.backs(index, image) or loop.is_readonly(index) != readonly:
                raise AlreadyExistsError(f"{target} shows something else, or not with readonly={readonly}")
        elif readonly:  # a read-only bind of a device node does not stop writes, a read-only device does
            mounts.make_file(target)
            self._show_block(record, image, target, readonly=True)
        else:
            mounts.publish(source, target, block=True, readonly=False)

    def unpublish(self, name: str, target: Path) -> None:
        """Undo publish. Idempotent."""
        self._hide_block(name, target)

    def device(self, record: VolumeRecord) -> tuple[int, int] | None:
        """The loop device of a volume, while it is attached writable."""
        image = self._folder.content(record.name)
        for index in loop.of_file(image):
            if not loop.is_readonly(index):
                number = os.stat(loop.device(index)).st_rdev
                return os.major(number), os.minor(number)
        return None

    def stats(self, record: VolumeRecord, path: Path) -> Stats:
        """Usage of a volume at path. Raises: NotFoundError."""
        name = record.name
        if record.block:
            node = path / NODE if path.is_dir() else path
            if block_device.loop_of(node) is None:
                raise NotFoundError(f"volume {name} is not at {path}")
            return Stats(total=record.size, used=record.size, available=0)
        if not mount.is_mount(path) or not file.shows(self._folder.content(name), path):
            raise NotFoundError(f"volume {name} is not mounted at {path}")
        return mounts.stats(path)

    def grow_used(self, record: VolumeRecord) -> VolumeRecord:
        """Grow the mounted file system, or the loop device. Raises: NotFoundError, PreconditionError, HostError."""
        image = self._folder.content(record.name)
        for index in loop.of_file(image):
            loop.set_capacity(index)
        if record.pending and not record.block:
            online.grow(record, consistent_copy.roots(image, record))
        return self.grown(record)

    def grown(self, record: VolumeRecord) -> VolumeRecord:
        """Record that the file system has its size."""
        if record.pending:
            record = replace(record, pending=False)
            self._folder.write(record)
        return record

    def places(self, records: Sequence[VolumeRecord]) -> Mapping[str, Path]:
        found = dict[str, Path]()
        for number, path in block_device.places().items():
            index = loop.index_of(number)
            image = Path((loop.backing(index) if index is not None else None) or "/")
            if image.parent == self._folder.path and image.suffix == self._folder.suffix:
                found[image.stem] = path
        return found

    def fault_at(self, record: VolumeRecord, path: Path) -> str:
        """The problem of a volume's mount, "" for none."""
        if not record.block:
            return online.mount_fault(path)
        where = path / NODE if path.is_dir() else path
        return "" if block_device.loop_of(where) is not None else f"its device is not at {path}"


def free_loops(folder: Path, images: set[tuple[int, int]], *, orphans: bool = False) -> None:
    """Free the loop devices of images that are mounted nowhere: a kill or an error left them attached for raw block.

    images: device and inode of each. orphans: also those of removed images in the directory.
    """
    ours = {*loop.of_files(images, folder)}
    if orphans:
        ours |= {index for index, _ in loop.attached() if loop.lies_in(index, str(folder))}
    block_device.free_loops(ours)


def _grows_unmounted(record: VolumeRecord) -> bool:
    """Whether the kernel forbids us to grow the file system while it is mounted."""
    return record.fstype == "ext4" and not filesystem.may_grow_ext4()
