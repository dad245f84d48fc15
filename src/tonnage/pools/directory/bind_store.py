"""A RecordStore whose volumes are directories, published by bind mounts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tonnage.aio.clock import Clock
from tonnage.errors import Invalid, NotFound
from tonnage.host import mount, nofollow
from tonnage.pools.base.contract import PoolLimits, Stats
from tonnage.pools.base.overcommit import Disks
from tonnage.pools.base.parameters import BANDWIDTH, IOPS, MKFS_OPTIONS, SOURCE, erase_of, source_of
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.directory.bind_mounts import Binds
from tonnage.pools.directory.content import Allocated
from tonnage.pools.directory.store import FolderStore
from tonnage.pools.fs.formats import MI, Format

LEAST = MI
"""Minimum bytes of a volume: less would be the directory itself."""
_SHARED = "volumes share the pool's disk, and the kernel limits what a pod does to a disk, not to a folder of it"
_MADE = "its volumes are folders of a file system that is there already, none is made for them"
REFUSED = {IOPS: _SHARED, BANDWIDTH: _SHARED, MKFS_OPTIONS: _MADE}
"""Class parameters that a volume in a directory cannot support, with the reason."""


def check_no_erasure(parameters: Mapping[str, str]) -> None:
    """Check `erase` where the blocks of a volume cannot be located. Raises Invalid."""
    if (method := erase_of(parameters)) != "none":
        raise Invalid(
            f"parameter erase: {method}: want none: a volume here has no device of its own, and what overwrites its"
            " files need not reach the blocks they were in; use an image or lvm pool"
        )


def limit_for(size: int) -> int:
    """The limit that the kernel enforces: the requested size plus its overhead for directories and trees."""
    return size + MI + size // 512


class BindStore(FolderStore):
    """Subdirectories of a directory, each limited to its size by the file system."""

    suffix = ".vol"

    def __init__(self, path: Path, bounds: PoolLimits, *, disks: Disks, clock: Clock) -> None:
        super().__init__(path, bounds, disks=disks, clock=clock)
        self.binds = Binds(self.kind, self.suffix, self.content)

    def claim(self, record: VolumeRecord) -> tuple[int, Allocated]:
        return record.size, self.held

    def smallest(self, form: Format | None) -> int:
        return LEAST

    def check_unused(self, name: str) -> None:
        self.binds.check_unused(name)

    def stage(self, name: str, path: Path, options: Sequence[str]) -> None:
        """A bind of the folder."""
        self.record(name)
        self.directory.check_place()
        self.binds.stage(name, path, options)

    def unstage(self, name: str, path: Path) -> None:
        self.binds.unstage(name, path)

    def publish(self, name: str, staging: Path, target: Path, *, readonly: bool) -> None:
        self.record(name)
        self.binds.publish(name, staging, target, readonly=readonly)

    def unpublish(self, name: str, target: Path) -> None:
        self.binds.unpublish(name, target)

    def stats(self, name: str, path: Path) -> Stats:
        """Usage that the file system reports for the directory; it has no inodes of its own."""
        record = self.record(name)
        if not self.binds.shows(name, path):
            raise NotFound(f"volume {name} is not mounted at {path}")
        used = min(record.size, self.held(self.content(name)))
        return Stats(record.size, used, min(record.size - used, self.bytes_left()))

    def seed(self, record: VolumeRecord) -> None:
        """Populate a new volume from its class's source, before its record is written.

        Raises Exhausted, OutOfRange, Precondition, Invalid, HostError.
        """
        if (folder := source_of({SOURCE: record.from_folder})) is None:
            return
        from tonnage.pools.fs import populate

        with nofollow.opened(self.content(record.name), os.O_RDONLY | os.O_DIRECTORY) as at:
            populate.fill(folder, at, record.size)

    def mount_fault(self, path: Path | None) -> str:
        """The problem of a volume's mount, "" for none."""
        return f"it is not mounted at {path}" if path is not None and not mount.is_mount(path) else ""
