"""Volumes that are directories: limits, parameters, first content, and bind mounts, also of earlier runs. Blocking."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tonnage.base.errors import (
    AlreadyExistsError,
    InvalidError,
    NotFoundError,
    PreconditionError,
)
from tonnage.host import mount, nofollow
from tonnage.storage.pools.base.contract import Stats
from tonnage.storage.pools.base.parameters import BANDWIDTH, IOPS, MKFS_OPTIONS, SOURCE, erase_of, source_of
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.backend import Mounts
from tonnage.storage.pools.directory.backend import PoolFolder
from tonnage.storage.pools.fs import mounts, online, shutdown
from tonnage.storage.pools.fs.formats import MI

LEAST = MI
"""Minimum bytes of a volume: less would be the directory itself."""
_SHARED = "volumes share the pool's disk, and the kernel limits what a pod does to a disk, not to a folder of it"
_MADE = "its volumes are folders of a file system that is there already, none is made for them"
REJECTED = {IOPS: _SHARED, BANDWIDTH: _SHARED, MKFS_OPTIONS: _MADE}
"""Class parameters that a volume in a directory cannot support, with the reason."""


class BindMounts(Mounts):
    """The bind mounts of a pool's volumes. held: returns the allocated bytes of content."""

    def __init__(self, folder: PoolFolder, held: Callable[[Path], int]) -> None:
        self._folder = folder
        self._held = held
        self._shown: dict[str, set[Path]] = {}

    def find(self, fstype: str) -> None:
        """Find the mounts of volumes since an earlier run, on a file system of that type."""
        self._shown = {}
        for entry in mount.mounts():
            name = os.path.basename(entry.root)
            if entry.fstype == fstype and name.endswith(self._folder.suffix):
                self._shown.setdefault(name.removesuffix(self._folder.suffix), set()).add(Path(entry.target))

    def uses(self, name: str) -> list[Path]:
        """The paths where a volume is mounted."""
        paths = [path for path in self._shown.get(name, ()) if self.shows(name, path)]
        self._shown.pop(name, None)
        if paths:
            self._shown[name] = set(paths)
        return sorted(paths)

    def check_unused(self, name: str) -> None:
        """Raises: PreconditionError while a volume is mounted."""
        if using := self.uses(name):
            raise PreconditionError(f"volume {name} is in use at {using[0]}: unpublish and unstage it first")

    def shows(self, name: str, path: Path) -> bool:
        """Whether the mount at path is of that volume, by the mount table where the file system does not answer.

        Raises: HostError when that cannot be read: it may be.
        """
        if not mount.is_mount(path):
            return False
        content = self._folder.content(name)
        try:
            return os.path.samestat(os.stat(content), os.stat(path))
        except FileNotFoundError:
            return False
        except OSError:
            entry = mount.at(path)
            return entry is not None and os.path.basename(entry.root) == content.name

    def stage(self, record: VolumeRecord, path: Path, options: Sequence[str]) -> None:
        """Bind-mount the directory of a volume. Idempotent."""
        self._folder.directory.check_place()
        name = record.name
        mounts.check_bind(f"a {self._folder.kind} volume", options)
        if mount.is_mount(path):
            if not self.shows(name, path):
                raise AlreadyExistsError(f"{path} is a mount of something else: unmount it first")
        else:
            mounts.make_directory(path)
            mount.bind(self._folder.content(name), path, options=("nodev", *options))
        shutdown.check_answers(name, path, "cannot be staged")
        self._shown.setdefault(name, set()).add(path)

    def unstage(self, name: str, path: Path) -> None:
        """Undo stage. Idempotent."""
        mounts.unstage(path)
        self.uses(name)

    def publish(self, record: VolumeRecord, staging: Path, target: Path, *, readonly: bool) -> None:
        """Bind-mount a staged volume at target. Idempotent. Raises: PreconditionError, AlreadyExistsError."""
        name = record.name
        if not self.shows(name, staging):
            raise PreconditionError(f"volume {name} is not staged at {staging}: stage it first")
        shutdown.check_answers(name, staging, "cannot be published")
        mounts.publish(staging, target, block=False, readonly=readonly)
        self._shown.setdefault(name, set()).add(target)

    def unpublish(self, name: str, target: Path) -> None:
        """Undo publish. Idempotent."""
        mounts.unpublish(target)
        self.uses(name)

    def stats(self, record: VolumeRecord, path: Path) -> Stats:
        """Usage that the file system reports for the directory. Raises: NotFoundError."""
        if not self.shows(record.name, path):
            raise NotFoundError(f"volume {record.name} is not mounted at {path}")
        used = min(record.size, self._held(self._folder.content(record.name)))
        left, shown = min(record.size - used, self._folder.bytes_left()), mounts.stats(path)
        return replace(shown, total=record.size, used=used, available=left)

    def places(self, records: Sequence[VolumeRecord]) -> Mapping[str, Path]:
        shown = [(name, path) for name, paths in list(self._shown.items()) for path in list(paths)]
        return {name: path for name, path in shown if mount.is_mount(path)}

    def fault_at(self, record: VolumeRecord, path: Path) -> str:
        """The problem of a volume's mount, "" for none."""
        return online.mount_fault(path)


def check_no_erasure(parameters: Mapping[str, str]) -> None:
    """Check `erase` where the blocks of a volume cannot be located. Raises: InvalidError."""
    if (method := erase_of(parameters)) != "none":
        raise InvalidError(
            f"parameter erase: {method}: want none: a volume here has no device of its own, and what overwrites its"
            " files need not reach the blocks they were in; use an image or lvm pool"
        )


def limit_for(size: int) -> int:
    """The limit that the kernel enforces: the requested size plus its overhead for directories and trees."""
    return size + MI + size // 512


def seed(record: VolumeRecord, content: Path) -> None:
    """Populate a new volume from its class's source, before its record is written.

    Raises: ExhaustedError, OutOfRangeError, PreconditionError, InvalidError, HostError.
    """
    if (folder := source_of({SOURCE: record.from_folder})) is None:
        return
    from tonnage.storage.pools.fs import populate

    with nofollow.opened(content, os.O_RDONLY | os.O_DIRECTORY) as at:
        populate.fill(folder, at, record.size)
