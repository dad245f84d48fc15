"""The blocking half of the quota pool: a directory with a project of its own for each volume, thread-safe.

Order of steps, so that a kill between any two leaves nothing lost: create makes the folder, its limit, its project,
then the record; delete removes the record, then the folder, then the limit. A folder without a record is rubbish. The
number of a project is the folder's own attribute; one is allotted only when the kernel counts nothing for it, so that
what a deleted volume still holds (files that a process has open) is never charged to another.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from tonnage.aio.clock import Clock
from tonnage.errors import AlreadyExists, Exhausted, HostError, NotFound, Precondition, Unavailable, Unsupported
from tonnage.host import mount, quota, tree
from tonnage.pools import filesystem
from tonnage.pools.base import Capacity, Stats, VolumeRequest
from tonnage.pools.directory import Directory, Record
from tonnage.pools.disks import Disk, Disks
from tonnage.pools.formats import BLOCK, MI
from tonnage.pools.imagestore import Bounds
from tonnage.pools.request import Want

log = logging.getLogger(__name__)
LEAST = MI
FSTYPES = ("xfs", "ext4")
_FOLDER = ".vol"
_HUGE = 2**62
_FIRST, _SPAN = 0x40000000, 0x3FFF0000  # projects below are left to people (/etc/projects)


def _limit(size: int) -> int:
    """The limit of a volume's project: what was asked and what its folders and extents take."""
    return size + MI + size // 512


def _limit_of(fd: int, number: int) -> int:
    with suppress(FileNotFoundError):
        return quota.get(fd, number).limit
    return 0


class QuotaStore:
    """Folders with project quotas."""

    def __init__(self, path: Path, bounds: Bounds, *, disks: Disks, clock: Clock) -> None:
        self.path = path.parent.resolve() / path.name
        self.bounds = bounds
        self.records: dict[str, Record] = {}
        self.fstype = ""
        self._projects: dict[str, int] = {}
        self._damaged: set[str] = set()
        self._lock = threading.Lock()
        self._disks = disks
        self._clock = clock
        self._used = 0
        self._next = 0
        self._directory = Directory(self.path, "quota")
        self._disk: Disk | None = None
        self._shown: dict[str, set[Path]] = {}

    def open(self) -> None:
        """Take the directory, check that quotas bind, read the records, finish what a kill left half done.

        Raises Unavailable, HostError.
        """
        try:
            self.fstype = self._check()
            self._directory.open()
            self._load()
        except OSError as failure:
            self.close()
            raise Unavailable(f"quota pool {self.path}: {failure.strerror}") from failure
        except BaseException:
            self.close()
            raise

    def _check(self) -> str:
        """The file system under the pool. Raises Unavailable unless it holds projects to their limits."""
        existing = next(path for path in (self.path, *self.path.parents) if path.exists())
        device = os.stat(existing).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        fstype = next((entry.fstype for entry in mount.mounts() if entry.device == number), "an unknown file system")
        if fstype not in FSTYPES:
            raise Unavailable(f"quota pool {self.path} is on {fstype}: project quotas are had on xfs and ext4")
        fd = os.open(existing, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not quota.is_enforced(fd):
                raise Unavailable(
                    f"quota pool {self.path}: project quotas are off on this {fstype}: mount it with -o prjquota"
                    " (ext4: made or tuned with -O quota,project before); needs Linux 5.14"
                )
        finally:
            os.close(fd)
        return fstype

    def _load(self) -> None:
        self._directory.clean()
        records: dict[str, Record] = {}
        damaged: set[str] = set()
        for found in self._directory.records():
            if isinstance(found, str):
                damaged.add(found)
            else:
                records[found.name] = found
        self._next = _FIRST + zlib.crc32(os.fsencode(self.path)) % _SPAN
        self._find_shown()
        for entry in sorted(os.listdir(self.path)):
            name = entry.removesuffix(_FOLDER)
            if name != entry and name not in records and name not in damaged:
                log.info("removing folder without a record path=%s", self.path / entry)
                self._destroy(entry)
        self._projects = {}
        for record in list(records.values()):
            try:
                self._projects[record.name] = self._restore(record)
            except (FileNotFoundError, ValueError) as failure:
                log.error("volume has lost its folder or project, left alone volume=%s error=%s", record.name, failure)
                damaged.add(record.name)
                del records[record.name]
        self.records, self._damaged = records, damaged
        self._used = sum(record.size for record in records.values())
        self._disk = self._disks.of(self.path)
        for record in records.values():
            self._disk.remember(self._folder(record.name), record.size, allocated=self._allocated)

    def _restore(self, record: Record) -> int:
        """The project of a volume found at start; its limit is set again where it differs.

        Raises ValueError when it is in no project of ours, so that its size would be no limit, OSError.
        """
        with self._opened(f"{record.name}{_FOLDER}") as fd:
            number = quota.project(fd)
            if number < _FIRST:
                raise ValueError(f"it is in project {number}")
            if not record.size <= _limit_of(fd, number) <= _limit(record.size) + BLOCK:
                log.warning("limit of a volume was not what its record says, set again volume=%s", record.name)
                quota.set_limit(fd, number, _limit(record.size))
        return number

    @contextmanager
    def _opened(self, entry: str) -> Iterator[int]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(entry, flags, dir_fd=self._directory.at)
        try:
            yield fd
        finally:
            os.close(fd)

    def _find_shown(self) -> None:
        """Find where volumes are mounted since an earlier run."""
        self._shown = {}
        for entry in mount.mounts():
            name = os.path.basename(entry.root)
            if entry.fstype == self.fstype and name.endswith(_FOLDER):
                self._shown.setdefault(name.removesuffix(_FOLDER), set()).add(Path(entry.target))

    def close(self) -> None:
        """Give the directory back. May be repeated."""
        if self._disk is not None:
            for name in self.records:
                self._disk.forget(self._folder(name))
        self._disk = None
        self._directory.close()

    def _folder(self, name: str) -> Path:
        return self.path / f"{name}{_FOLDER}"

    def all(self) -> list[Record]:
        """All records in the order of their names. Raises Unavailable."""
        self.check_open()
        return [record for _, record in sorted(self.records.items())]

    def check_open(self) -> None:
        """Raises Unavailable unless the pool is open: what cannot be seen is never taken for gone."""
        _ = self._account

    @property
    def _account(self) -> Disk:
        if self._disk is None:
            raise Unavailable(f"quota pool {self.path} is not open")
        return self._disk

    def record(self, name: str) -> Record:
        """A record. Raises NotFound, Unavailable, HostError for a damaged one."""
        self.check_open()
        if name in self._damaged:
            raise HostError(f"volume {name} in {self.path} is damaged (see the log): repair or remove it by hand")
        try:
            return self.records[name]
        except KeyError:
            raise NotFound(f"quota pool {self.path} has no volume {name[:128]!r}") from None

    def room(self) -> Capacity:
        """Room for volumes. Raises Unavailable."""
        size, used = self.bounds.size, self._used
        free = max(0, size - used) if size else _HUGE
        try:
            free = self._account.room(ratio=self.bounds.ratio, enough=free)
        except OSError as failure:
            raise Unavailable(f"cannot see how full {self.path} is: {failure.strerror}") from failure
        largest = free // BLOCK * BLOCK
        return Capacity(size or used + free, free, largest if largest >= LEAST else 0, LEAST, used)

    def create(self, request: VolumeRequest, want: Want) -> Record:
        """Make folder, limit and record; durable when this returns. Raises Exhausted, HostError."""
        if request.name in self._damaged:
            self.record(request.name)
        record = Record(
            request.name,
            want.size,
            uuid4(),
            fstype=want.fstype,
            state="formatted",
            parameters=dict(request.parameters),
            owner=dict(request.owner),
            created=self._clock.time(),
        )
        folder = self._folder(record.name)
        with self._lock:
            if self.bounds.size and self._used + record.size > self.bounds.size:
                raise Exhausted(f"volume {record.name} of {record.size} bytes does not fit any more into {self.path}")
            self._used += record.size
        try:
            self._account.promise(folder, record.size, ratio=self.bounds.ratio, allocated=self._allocated)
            self._projects[record.name] = self._make(folder.name, record)
            self._directory.write(record)
        except BaseException:
            self._unbook(record)
            with suppress(HostError):
                self._directory.remove(record.name)
                self._destroy(folder.name)
            raise
        self.records[record.name] = record
        return record

    def _make(self, entry: str, record: Record) -> int:
        try:
            if (self.path / entry).exists():
                self._destroy(entry)
            os.mkdir(entry, 0o755, dir_fd=self._directory.at)
            os.chmod(entry, 0o755, dir_fd=self._directory.at)  # whatever the umask
            with self._opened(entry) as fd, self._lock:
                number = self._unused(fd)
                quota.set_limit(fd, number, _limit(record.size))  # first, so that nobody else takes the number
                quota.set_project(fd, number)
            return number
        except OSError as failure:
            if failure.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Exhausted(f"no room for a folder in {self.path}: {failure.strerror}") from failure
            raise HostError(f"cannot make {self.path / entry}: {failure.strerror}") from failure

    def _unused(self, fd: int) -> int:
        """A project that nothing is charged to. Raises OSError."""
        while True:
            self._next += 1
            with suppress(FileNotFoundError):  # xfs knows only those that were used
                found = quota.get(fd, self._next)
                if found.used or found.inodes or found.limit:
                    continue
            return self._next

    def _unbook(self, record: Record) -> None:
        with self._lock:
            self._used -= record.size
        self._account.forget(self._folder(record.name))

    def delete(self, name: str) -> None:
        """Remove a volume. Raises Precondition while it is mounted, HostError."""
        self.check_open()
        record = self.records.get(name)
        if record is None:
            if name in self._damaged:
                self.record(name)
            return
        if using := self._uses(name):
            raise Precondition(f"volume {name} is in use at {using[0]}: unpublish and unstage it first")
        self._directory.remove(name)
        del self.records[name]
        self._unbook(record)
        self._destroy(f"{name}{_FOLDER}")
        self._projects.pop(name, None)

    def _destroy(self, entry: str) -> None:
        """Remove a folder with all that is in it, then its limit; one that is gone is success. Raises HostError."""
        try:
            with self._opened(entry) as fd:
                number = quota.project(fd)
            tree.remove(self.path / entry)
            if number >= _FIRST:
                quota.set_limit(self._directory.at, number, 0)
        except FileNotFoundError:
            return
        except OSError as failure:
            raise HostError(f"cannot remove {self.path / entry}: {failure.strerror}") from failure

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
            wanted, shown = os.stat(self._folder(name)), os.stat(path)
            return (wanted.st_dev, wanted.st_ino) == (shown.st_dev, shown.st_ino)
        return False

    def stage(self, name: str, path: Path, options: Sequence[str]) -> None:
        """See Pool.stage: a bind of the folder."""
        self.record(name)
        if strange := [option for option in options if option not in mount.BIND_OPTIONS and option != "rw"]:
            raise Unsupported(f"a quota volume cannot have the mount option {strange[0][:40]!r} of its own")
        if mount.is_mount(path):
            if not self._shows(name, path):
                raise AlreadyExists(f"{path} is a mount of something else: unmount it first")
        else:
            filesystem.make_directory(path)
            mount.bind(self._folder(name), path, options=("nodev", *options))
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
        """See Pool.stats: what the kernel counts for the volume's project."""
        record = self.record(name)
        if not self._shows(name, path):
            raise NotFound(f"volume {name} is not mounted at {path}")
        used = min(record.size, self._allocated(self._folder(name)))
        shown = filesystem.stats(path)
        return Stats(
            record.size,
            used,
            min(record.size - used, self._account.free()),
            shown.inodes,
            shown.inodes_used,
            shown.inodes_free,
        )

    def _allocated(self, path: Path) -> int:
        number = self._projects.get(path.name.removesuffix(_FOLDER))
        try:
            return quota.get(self._directory.at, number).used if number else 0
        except (OSError, Unavailable):
            return 0
