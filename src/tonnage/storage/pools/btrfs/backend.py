"""The btrfs back end: each volume is a subvolume with a limit, made by one ioctl. The fastest kind.

WHERE is a directory on a mounted btrfs. On any other file system, a btrfs image of `size` is made there and mounted.
`df` in a pod shows the whole pool, stats() has the volume's own usage. A write past the limit fails with EDQUOT. File
systems only, no raw block. Needs root, and btrfs-progs for an image.

Nothing is synced here. The kernel keeps the order of steps within and between transactions. The pool commits after
create and delete, many at once.

A snapshot leaves out subvolumes that a pod made inside the volume. Expansion takes effect at once, without growth on
the node.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from uuid import UUID

from msgspec import structs

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import HostError, UnavailableError, UnsupportedError, host_errors
from tonnage.host import btrfs, tree
from tonnage.host.descriptor import opened
from tonnage.storage.pools.base.contract import NO_KEEP, Features, PoolLimits, Stillness
from tonnage.storage.pools.base.parameters import COMPRESSION, ERASE, FILLED, check_shared, compression_of
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.btrfs import together
from tonnage.storage.pools.btrfs.image_file import BtrfsImage
from tonnage.storage.pools.btrfs.kind import is_btrfs
from tonnage.storage.pools.directory.backend import DirectoryBackend, PoolFolder
from tonnage.storage.pools.directory.bind_mounts import LEAST, REJECTED, BindMounts, check_no_erasure, limit_for, seed
from tonnage.storage.pools.directory.content import VolumeContent
from tonnage.storage.pools.directory.directory import disk_errors

log = logging.getLogger(__name__)
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_AT_ONCE = 4  # groups of deleted subvolumes tried at each commit, beside two for each that was deleted
FEATURES = Features(
    "btrfs",
    fstypes=("btrfs",),
    blocks=False,
    parameters=FILLED | {COMPRESSION},
    modifiable=frozenset({ERASE, COMPRESSION}),
    snapshots=True,
    clones=True,
    expansion=True,
    rejected=REJECTED,
    least=LEAST,
)


class Subvolumes(VolumeContent):
    """Subvolumes in a directory of a btrfs, or of a btrfs image made there."""

    is_file = durable = False
    shares = True
    fstypes: tuple[str, ...] = ("btrfs",)

    def __init__(self, folder: PoolFolder) -> None:
        self._folder = folder
        self.mounts = BindMounts(folder, self.held)
        self._image: BtrfsImage | None = None
        self._fs: UUID | None = None
        self._stale: dict[int, None] = {}
        self._deleted = 0
        self._taking = threading.Lock()

    def check(self, parameters: Mapping[str, str]) -> None:
        check_shared(parameters)
        check_no_erasure(parameters)

    def close(self) -> None:
        if self._image is not None:
            self._image.close()

    def limits(self, bounds: PoolLimits) -> PoolLimits:
        if self._image is None:
            return bounds
        if (bounds.size, bounds.sparse) != (self._folder.bounds.size, self._folder.bounds.sparse):
            raise UnsupportedError(f"{self._folder.where} is in an image, which was made as large as it is")
        return dataclasses.replace(bounds, keep=NO_KEEP)  # of the disk outside

    @property
    def at(self) -> int:
        """The open directory of the subvolumes."""
        return self._folder.directory.at

    def prepare(self) -> None:
        """Find or make the btrfs."""
        if not is_btrfs(self._folder.path):
            self._image = BtrfsImage(self._folder.path, self._folder.bounds, self._folder.disks)
            self._image.open()
            self._folder.settle_in(self._image.root)
            self._folder.bounds = dataclasses.replace(self._folder.bounds, keep=NO_KEEP)  # of the disk outside

    def found(self, records: dict[str, VolumeRecord]) -> None:
        """Switch quotas on."""
        self._fs = btrfs.fsid(self.at)
        if self._fs is None:
            raise UnavailableError(f"{self._folder.directory.path} is not on btrfs")
        if not btrfs.has_quota(self._fs):
            btrfs.enable_quota(self.at)
        self.mounts.find("btrfs")
        together.clean(self._folder.snapshots.path, self.remove)

    def ready(self) -> None:
        for name, record in self._folder.records.volumes.items():
            with suppress(HostError):  # condition() reports a damaged one
                self.changed(name)  # an expand() or delete_snapshot() may have been killed before it
                self.modify(record)  # one may have been killed before its record was written

    def changed(self, name: str) -> None:
        """Set a volume's limit to what its record says."""
        if (record := self._folder.records.volumes.get(name)) is None or self._fs is None:
            return
        size = limit_for(record.size)
        if btrfs.has_simple_quota(self._fs):
            others = (*self._folder.snapshots.records.values(), *self._folder.records.volumes.values())
            size += sum(other.length for other in others if other.from_volume == name)
        with host_errors(f"cannot set the limit of {self._folder.content(name)}"):
            btrfs.limit(self.at, self._id(self._folder.content(name)), size)

    def modify(self, record: VolumeRecord) -> None:
        path, method = self._folder.content(record.name), compression_of(record.volume().effective)
        with host_errors(f"cannot set the compression of {path}"), opened(path, _ROOT) as fd:
            btrfs.compress(fd, method)

    def make(self, record: VolumeRecord) -> VolumeRecord:
        path = self._folder.content(record.name)
        with disk_errors(f"cannot make subvolume {path}", full=f"for a subvolume in {self._folder.path}"):
            self._create(path, limit_for(record.size))
            os.chmod(path, 0o755)
        if compression_of(record.volume().effective):
            self.modify(record)
        seed(record, self._folder.content(record.name))
        return record

    def _create(self, path: Path, limit: int) -> None:
        try:
            btrfs.create(self.at, path.name, limit)
        except FileExistsError:  # a leftover
            self.remove(path)
            btrfs.create(self.at, path.name, limit)

    def remove(self, content: Path) -> None:
        """Delete a subvolume with those that a pod made inside it."""
        with host_errors(f"cannot delete subvolume {content}"), suppress(FileNotFoundError):
            identity = self._id(content)
            with opened(content.parent, _ROOT) as at:
                tree.remove_subvolume(at, content.name)
            self._stale[identity] = None
            self._deleted += 1

    def _id(self, path: Path) -> int:
        with opened(path, _ROOT) as fd:
            return btrfs.subvolume_id(fd)

    def commit(self) -> None:
        """Make everything durable, and remove the qgroups of deleted subvolumes. Raises: HostError."""
        with host_errors(f"cannot commit {self._folder.path}"):
            btrfs.commit(self.at)
            self._remove_groups()

    def _remove_groups(self) -> None:
        """Remove qgroups of deleted subvolumes, oldest first: a few more than were added since the last time.

        Kernels since 6.11 remove them themselves.
        """
        count, self._deleted = _AT_ONCE + 2 * self._deleted, 0
        for identity in list(islice(self._stale, count)):
            del self._stale[identity]
            # One that still counts something would, when removed, make all limits void until a rescan.
            is_empty = self._fs is not None and btrfs.is_unused(self._fs, identity)
            if not is_empty or not btrfs.remove_qgroup(self.at, identity):
                self._stale[identity] = None  # at the end: a snapshot may keep it for long

    def is_shared(self, record: VolumeRecord) -> bool:
        """By the records, as simple quotas do not say. Copies that were made after it and lost their source may be its.

        Kernels report a file's shared blocks, but a volume may have millions of files.
        """
        snapshots, volumes = dict(self._folder.snapshots.records), dict(self._folder.records.volumes)  # others add some

        def may_share(other: VolumeRecord) -> bool:
            is_known = other.from_snapshot in snapshots if other.from_snapshot else other.from_volume in volumes
            is_later = other.created >= record.created
            return other.from_volume == record.name or (other.source is not None and not is_known and is_later)

        return record.source is not None or any(map(may_share, (*snapshots.values(), *volumes.values())))

    def held(self, content: Path) -> int:
        """Allocated bytes: what a subvolume refers to."""
        if self._fs is None:
            return 0
        try:
            return btrfs.usage(self._fs, self._id(content)).referenced
        except (OSError, ValueError):
            return 0

    def fill(self, record: VolumeRecord, origin: VolumeRecord) -> VolumeRecord:
        """Create a subvolume as a copy of another; return its record. Raises: ExhaustedError, HostError."""
        source = (
            self._folder.snapshots.content(origin.name) if record.from_snapshot else self._folder.content(origin.name)
        )
        self.remove(self._folder.content(record.name))
        self._copy(self.at, self._folder.content(record.name), source, readonly=False)
        self.modify(record)
        return structs.replace(record, length=0 if record.from_snapshot else self.held(source))

    def _copy(self, at: int, target: Path, source: Path, *, readonly: bool) -> None:
        what, full = f"cannot make a snapshot of {source} at {target}", f"for a snapshot in {self._folder.path}"
        with disk_errors(what, full=full), opened(source, _ROOT) as fd:
            btrfs.snapshot(at, target.name, fd, readonly=readonly)

    def stillness(self, record: VolumeRecord) -> Stillness:
        """Freezing the btrfs would stop the snapshot itself."""
        return Stillness.TOGETHER if self.mounts.uses(record.name) else Stillness.UNUSED

    def snapshot_together(self, copies: Sequence[tuple[Path, Path]], late: Callable[[], bool]) -> None:
        while not self._taking.acquire(timeout=0.1):  # one group at a time: they work in the same folders
            if late():
                raise HostError("another group of snapshots is being taken in this pool; repeat it")
        try:
            for _, content in copies:
                self.remove(content)
            together.snapshot(self._folder.snapshots.path, copies, late, self.remove)
        finally:
            self._taking.release()

    def snapshot(
        self, record: VolumeRecord, origin: VolumeRecord, content: Path, *, is_frozen: bool = False
    ) -> VolumeRecord:
        self.remove(content)
        self._copy(self._folder.snapshots.directory.at, content, self._folder.content(origin.name), readonly=True)
        return record

    def fault(self, record: VolumeRecord) -> str:
        content = self._folder.content(record.name)
        try:
            if os.lstat(content).st_ino != btrfs.FIRST_INODE:
                return f"{content} is no subvolume: its content is not what the pool made"
            if os.fstatvfs(self.at).f_flag & os.ST_RDONLY:
                return f"the btrfs under {self._folder.path} is read-only: look at the kernel's log"
        except FileNotFoundError:
            return f"its subvolume {content} is gone, and its content with it"
        except OSError as failure:
            return f"its subvolume cannot be reached: {failure.strerror}; look at the disk under {self._folder.path}"
        return ""


def make_backend(
    directory: Path, bounds: PoolLimits | None = None, *, disks: Disks | None = None, clock: Clock | None = None
) -> DirectoryBackend:
    """Subvolumes in a directory. bounds.sparse: whether an image, where one is needed, is sparse."""
    folder = PoolFolder(directory, bounds, kind="btrfs", suffix=".vol", disks=disks, clock=clock)
    subvolumes = Subvolumes(folder)
    return DirectoryBackend(folder, subvolumes, subvolumes.mounts, FEATURES)
