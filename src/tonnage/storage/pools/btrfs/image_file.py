"""A btrfs of the pool's own, in an image file in a directory of any other file system. Blocking.

The image is made under a temporary name and renamed when it is complete, so it is never half formatted.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from tonnage.base.errors import HostError, InvalidError, PreconditionError, UnavailableError, host_errors
from tonnage.host import loop, mount
from tonnage.host.descriptor import closing
from tonnage.storage.pools.base.contract import PoolLimits
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.directory.directory import HALF, Directory
from tonnage.storage.pools.fs import mounts
from tonnage.storage.pools.fs.formats import BTRFS
from tonnage.storage.pools.image import file

log = logging.getLogger(__name__)
_NAME = "pool"
ROOT = "mounted"
"""Name of the mount point of the image, in the same directory."""
IMAGE_FILES = frozenset({f"{_NAME}.img", ROOT})
"""Files of a directory with a btrfs image. Unlike a volume's image, it has no record."""


class BtrfsImage:
    """`pool.img` in a directory, mounted at the directory's `mounted`."""

    def __init__(self, path: Path, bounds: PoolLimits, disks: Disks) -> None:
        self.root = path / ROOT
        self._image = path / f"{_NAME}.img"
        self._bounds = bounds
        self._disks = disks
        self._directory = Directory(path, "btrfs-image")

    def open(self) -> None:
        """Lock the directory, make the image if it is missing, mount it.

        Raises: UnavailableError, ExhaustedError, HostError.
        """
        self._directory.open()
        try:
            with host_errors(f"pool directory {self._directory.path}", error=UnavailableError):
                self._directory.clean()
                record = self._record()
                if not self._image.exists():
                    self._make(record)
                self._disks.of(self._image.parent).remember(self._image, os.stat(self._image).st_size)
                mounts.make_directory(self.root)
                self._mount(record)
        except BaseException:
            self.close()
            raise

    def _record(self) -> VolumeRecord:
        size = self._bounds.size
        if not size and not self._image.exists():
            raise InvalidError(f"{self._directory.path} is not on btrfs: give the pool a size= for a btrfs image there")
        length = BTRFS.length(size)
        return VolumeRecord(_NAME, size, uuid4(), length=length, sparse=self._bounds.sparse, fstype="btrfs")

    def _make(self, record: VolumeRecord) -> None:
        disk = self._disks.of(self._image.parent)
        disk.reserve(self._image, record.length, ratio=self._bounds.ratio, keep=self._bounds.keep)
        half = self._image.with_name(f"{HALF}{self._image.name}")
        try:
            file.make(half, record)
            with closing(file.open_image(half)) as fd:
                file.format_image(fd, half, record)
            os.rename(half, self._image)
            os.fsync(self._directory.at)
        except BaseException:
            disk.forget(self._image)
            raise

    def _mount(self, record: VolumeRecord) -> None:
        if mount.is_mount(self.root):
            if not file.shows(self._image, self.root):
                raise UnavailableError(f"{self.root} is a mount of something else: unmount it first")
            return
        for index in loop.of_file(self._image):  # volumes of an earlier run are still mounted
            mount.mount(loop.device(index), self.root, "btrfs", ("nodev",))
            return
        with closing(file.open_image(self._image)) as fd:
            file.mount_image(fd, self._image, record, self.root, ())

    def close(self) -> None:
        """Unmount the root unless it is in use; mounted volumes stay. Idempotent."""
        with suppress(PreconditionError, HostError):  # the directory must be let go in any case
            mounts.unstage(self.root)
        with suppress(OSError):
            self._disks.of(self._image.parent).forget(self._image)
        self._directory.close()
