"""The blocking half of the btrfs pool: a directory with one subvolume and one record for each volume, thread-safe.

Nothing is synced here: the kernel keeps the order of steps within and between transactions, and the pool commits after
create and delete, many at once. A subvolume without a record is rubbish of a kill.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

from tonnage.aio.clock import Clock
from tonnage.errors import AlreadyExists, Exhausted, HostError, NotFound, Precondition, Unavailable, Unsupported
from tonnage.host import btrfs, mount, tree
from tonnage.pools import filesystem
from tonnage.pools.base import Capacity, Source, Stats, VolumeRequest
from tonnage.pools.btrfsimage import BtrfsImage
from tonnage.pools.directory import Directory, Record
from tonnage.pools.disks import Disk, Disks
from tonnage.pools.formats import BLOCK, MI
from tonnage.pools.imagestore import Bounds
from tonnage.pools.request import Want
from tonnage.pools.snapshots import Snapshots

log = logging.getLogger(__name__)
_SUBVOLUME = ".vol"
_HUGE = 2**62
_AT_ONCE = 64  # groups of deleted subvolumes tried at one commit
LEAST = MI


def _limit(size: int) -> int:
    """The limit of a volume's subvolume: what was asked and what btrfs counts for its own trees."""
    return size + MI + size // 512


def _nothing(_path: Path) -> int:
    return 0


class BtrfsStore(ABC):
    """Subvolumes in a directory of a btrfs, or of a btrfs image made there; btrfsdepot.py has the rest of it."""

    def __init__(self, path: Path, bounds: Bounds, *, disks: Disks, clock: Clock) -> None:
        self.path = path.parent.resolve() / path.name
        self.bounds = bounds
        self.records: dict[str, Record] = {}
        self._damaged: set[str] = set()
        self._used = 0
        self._lock = threading.Lock()
        self._disks = disks
        self.clock = clock
        self._image: BtrfsImage | None = None
        self._directory = Directory(self.path, "btrfs")
        self.snapshots = Snapshots(self.path, "btrfs", _SUBVOLUME)
        self._fs: UUID | None = None
        self._disk: Disk | None = None
        self._shown: dict[str, set[Path]] = {}
        self._stale: dict[int, None] = {}

    def open(self) -> None:
        """Find or make the btrfs, switch quotas on, read the records, throw away what a kill left.

        Raises Unavailable, Invalid, HostError.
        """
        try:
            if not self._is_btrfs():
                self._image = BtrfsImage(self.path, self.bounds, self._disks)
                self._image.open()
                self._directory = Directory(self._image.root, "btrfs")
            self._directory.open()
            self._load()
        except OSError as failure:
            self.close()
            raise Unavailable(f"btrfs pool {self.path}: {failure.strerror}") from failure
        except BaseException:
            self.close()
            raise

    def _is_btrfs(self) -> bool:
        existing = next(path for path in (self.path, *self.path.parents) if path.exists())
        at = os.open(existing, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return btrfs.fsid(at) is not None
        finally:
            os.close(at)

    def _load(self) -> None:
        at = self._directory.at
        self._fs = btrfs.fsid(at)
        if self._fs is None:
            raise Unavailable(f"{self._directory.path} is not on btrfs")
        if not btrfs.has_quota(self._fs):
            btrfs.enable_quota(at)
        self._directory.clean()
        records, damaged = {}, set()
        for found in self._directory.records():
            if isinstance(found, str):
                damaged.add(found)
            else:
                records[found.name] = found
        self._find_shown()
        for entry in os.listdir(self._directory.path):
            name = entry.removesuffix(_SUBVOLUME)
            if name != entry and name not in records and name not in damaged:
                log.info("removing subvolume without a record path=%s", self._directory.path / entry)
                self.destroy(self._directory.path / entry)
        self.snapshots = Snapshots(self._directory.path, "btrfs", _SUBVOLUME)
        self.snapshots.open(self._discard)
        self.records, self._damaged = records, damaged
        self._used = sum(record.size for record in records.values()) + self.snapshots.used()
        self._disk = self._disks.of(self._directory.path)
        for record in records.values():
            self._disk.remember(self.subvolume(record.name), record.size, allocated=self.allocated)
        for record in self.snapshots.all():
            self._disk.remember(self.snapshots.content(record.name), record.length, allocated=_nothing)
        for name in records:
            with suppress(HostError):  # condition() tells of one that is damaged
                self.limit(name)  # an expand() or delete_snapshot() may have been killed before it

    def _discard(self, path: Path) -> None:
        log.info("removing subvolume without a record path=%s", path)
        self.destroy(path)

    def _find_shown(self) -> None:
        """Find where volumes are mounted since an earlier run."""
        self._shown = {}
        for entry in mount.mounts():
            name = os.path.basename(entry.root)
            if entry.fstype == "btrfs" and name.endswith(_SUBVOLUME):
                self._shown.setdefault(name.removesuffix(_SUBVOLUME), set()).add(Path(entry.target))

    def close(self) -> None:
        """Give directory and image back. May be repeated."""
        if self._disk is not None:
            for name in self.records:
                self._disk.forget(self.subvolume(name))
            for name in self.snapshots.records:
                self._disk.forget(self.snapshots.content(name))
        self._disk = None
        self.snapshots.close()
        self._directory.close()
        if self._image is not None:
            self._image.close()

    def subvolume(self, name: str) -> Path:
        """Where a volume's content lies."""
        return self._directory.path / f"{name}{_SUBVOLUME}"

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
            raise NotFound(f"btrfs pool {self.path} has no volume {name[:128]!r}") from None

    @property
    def at(self) -> int:
        """The open directory of the subvolumes."""
        return self._directory.at

    @property
    def account(self) -> Disk:
        """What is promised of the disk. Raises Unavailable when the pool is not open."""
        if self._disk is None:
            raise Unavailable(f"btrfs pool {self.path} is not open")
        return self._disk

    def room(self) -> Capacity:
        """Room for volumes. Raises Unavailable."""
        size, used = self.bounds.size, self._used
        free = max(0, size - used) if size else _HUGE
        try:
            free = self.account.room(ratio=self.bounds.ratio, enough=free)
        except OSError as failure:
            raise Unavailable(f"cannot see how full {self.path} is: {failure.strerror}") from failure
        largest = free // BLOCK * BLOCK
        return Capacity(size or used + free, free, largest if largest >= LEAST else 0, LEAST, used)

    def create(self, request: VolumeRequest, want: Want, origin: Record | None = None) -> Record:
        """Make subvolume and record; the caller commits. origin: what it is filled from. Raises Exhausted,
        HostError."""
        if request.name in self._damaged:
            self.record(request.name)
        source = request.source or Source()
        record = Record(
            request.name,
            want.size,
            uuid4(),
            fstype=want.fstype,
            state="formatted",
            parameters=dict(request.parameters),
            owner=dict(request.owner),
            created=self.clock.time(),
            from_snapshot=source.snapshot,
            from_volume=source.volume,
        )
        path = self.subvolume(record.name)
        self.book(record.name, record.size)
        try:
            self.account.promise(path, record.size, ratio=self.bounds.ratio, allocated=self.allocated)
            if origin is None:
                self._make(path, record)
            else:
                record = self.fill(record, origin)
            self.write(record)
            if origin is not None:
                self.limit(record.name)
                self.limit(record.from_volume)
        except BaseException:
            self.unbook(record, path)
            self.records.pop(record.name, None)
            with suppress(HostError):
                self._directory.remove(record.name, durable=False)
                self.destroy(path)
            raise
        return record

    @abstractmethod
    def fill(self, record: Record, origin: Record) -> Record:
        """Make the subvolume of a volume from another; the record as it is then."""

    def write(self, record: Record) -> None:
        """Write a volume's record; the caller commits. Raises Exhausted, HostError."""
        self._directory.write(record, durable=False)
        self.records[record.name] = record

    def limit(self, name: str) -> None:
        """Set a volume's limit to what its record says; none for one that is gone. Repeatable. Raises HostError."""
        if (record := self.records.get(name)) is None or self._fs is None:
            return
        size = _limit(record.size)
        if btrfs.has_simple_quota(self._fs):
            others = (*self.snapshots.records.values(), *self.records.values())
            size += sum(other.length for other in others if other.from_volume == name)
        try:
            btrfs.limit(self.at, self._id(self.subvolume(name)), size)
        except OSError as failure:
            raise HostError(f"cannot set the limit of {self.subvolume(name)}: {failure.strerror}") from failure

    def book(self, name: str, size: int) -> None:
        """Count bytes, less when negative. Raises Exhausted."""
        with self._lock:
            if size > 0 and self.bounds.size and self._used + size > self.bounds.size:
                raise Exhausted(f"{size} bytes for {name} do not fit any more into {self.path}")
            self._used += size

    def _make(self, path: Path, record: Record) -> None:
        try:
            with suppress(FileNotFoundError):
                self.destroy(path)
            btrfs.create(self._directory.at, path.name, _limit(record.size))
            os.chmod(path, 0o755)
        except OSError as failure:
            if failure.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Exhausted(f"no room for a subvolume in {self.path}: {failure.strerror}") from failure
            raise HostError(f"cannot make subvolume {path}: {failure.strerror}") from failure

    def unbook(self, record: Record, path: Path) -> None:
        """Count it no more."""
        self.book(record.name, -record.size)
        self.account.forget(path)

    def delete(self, name: str) -> None:
        """Remove a volume; the caller commits. Raises Precondition while it is mounted, HostError."""
        self.check_open()
        record = self.records.get(name)
        if record is None:
            if name in self._damaged:
                self.record(name)
            return
        if using := self._uses(name):
            raise Precondition(f"volume {name} is in use at {using[0]}: unpublish and unstage it first")
        self._directory.remove(name, durable=False)
        del self.records[name]
        self.unbook(record, self.subvolume(name))
        self.destroy(self.subvolume(name))
        self.limit(record.from_volume)

    def _uses(self, name: str) -> list[Path]:
        """Where a volume is mounted."""
        paths = [path for path in self._shown.get(name, ()) if self._shows(name, path)]
        self._shown.pop(name, None)
        if paths:
            self._shown[name] = set(paths)
        return sorted(paths)

    def _shows(self, name: str, path: Path) -> bool:
        if not mount.is_mount(path):
            return False
        with suppress(OSError):
            wanted, shown = os.stat(self.subvolume(name)), os.stat(path)
            return (wanted.st_dev, wanted.st_ino) == (shown.st_dev, shown.st_ino)
        return False

    def destroy(self, path: Path) -> None:
        """Delete a subvolume with those that a pod made inside it; one that is gone is success. Raises HostError."""
        try:
            identity = self._id(path)
            at = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                btrfs.delete(at, path.name)
            except OSError as failure:
                if failure.errno != errno.ENOTEMPTY:
                    raise
                _delete_nested(path)
                btrfs.delete(at, path.name)
            finally:
                os.close(at)
        except FileNotFoundError:
            return
        except OSError as failure:
            raise HostError(f"cannot delete subvolume {path}: {failure.strerror}") from failure
        self._stale[identity] = None

    def _id(self, path: Path) -> int:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return btrfs.subvolume_id(fd)
        finally:
            os.close(fd)

    def commit(self) -> None:
        """Make everything durable, and remove the groups of deleted subvolumes. Raises HostError."""
        try:
            btrfs.commit(self._directory.at)
            for identity in list(self._stale)[:_AT_ONCE]:
                del self._stale[identity]
                # One that still counts something would, when removed, make all limits void until a rescan.
                is_empty = self._fs is not None and btrfs.is_unused(self._fs, identity)
                if not is_empty or not btrfs.remove_qgroup(self._directory.at, identity):
                    self._stale[identity] = None  # at the end: a snapshot may keep it for long
        except OSError as failure:
            raise HostError(f"cannot commit {self.path}: {failure.strerror}") from failure

    def stage(self, name: str, path: Path, options: Sequence[str]) -> None:
        """See Pool.stage: a bind of the subvolume."""
        self.record(name)
        if strange := [option for option in options if option not in mount.BIND_OPTIONS and option != "rw"]:
            raise Unsupported(f"a btrfs volume cannot have the mount option {strange[0][:40]!r} of its own")
        if mount.is_mount(path):
            if not self._shows(name, path):
                raise AlreadyExists(f"{path} is a mount of something else: unmount it first")
        else:
            filesystem.make_directory(path)
            mount.bind(self.subvolume(name), path, options=("nodev", *options))
        self._shown.setdefault(name, set()).add(path)

    def unstage(self, name: str, path: Path) -> None:
        """See Pool.unstage."""
        filesystem.unstage(path)
        self._uses(name)

    def publish(self, name: str, staging: Path, target: Path, *, readonly: bool) -> None:
        """See Pool.publish."""
        self.record(name)
        if not self._shows(name, staging):
            raise Precondition(f"volume {name} is not staged at {staging}: stage it first")
        filesystem.publish(staging, target, block=False, readonly=readonly)
        self._shown.setdefault(name, set()).add(target)

    def unpublish(self, name: str, target: Path) -> None:
        """See Pool.unpublish."""
        filesystem.unpublish(target)
        self._uses(name)

    def stats(self, name: str, path: Path) -> Stats:
        """See Pool.stats: what the subvolume's group says, since statvfs shows the whole pool."""
        record = self.record(name)
        if not self._shows(name, path):
            raise NotFound(f"volume {name} is not mounted at {path}")
        used = min(record.size, self.allocated(self.subvolume(name)))
        return Stats(record.size, used, min(record.size - used, self.account.free()))

    def allocated(self, path: Path) -> int:
        """Bytes that a subvolume refers to; 0 when it cannot be told."""
        if self._fs is None:
            return 0
        try:
            return btrfs.usage(self._fs, self._id(path)).referenced
        except (OSError, ValueError):
            return 0


def _delete_nested(path: Path) -> None:
    """Delete the subvolumes inside a subvolume, innermost first, without following symlinks. Raises OSError."""
    for name, at in tree.below(path):
        found = os.stat(name, dir_fd=at, follow_symlinks=False)
        if found.st_ino == btrfs.FIRST_INODE and stat.S_ISDIR(found.st_mode):
            btrfs.delete(at, name)
