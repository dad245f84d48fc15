"""The quota pool: each volume is a directory with a project quota, on xfs or ext4 mounted with `prjquota`.

A write past the limit fails (xfs: ENOSPC, ext4: EDQUOT), `df` in a pod shows the volume's own size. On ext4, quotas do
not limit processes with CAP_SYS_RESOURCE, so privileged pods: a class must set `allowUnenforced: "true"` to have
volumes there. File systems only, no raw block. Needs root and Linux 5.14, no program.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from msgspec import structs

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import HostError, InvalidError, UnavailableError, UnsupportedError, host_errors
from tonnage.host import mount, quota, tree
from tonnage.host.descriptor import opened
from tonnage.storage.pools.base.contract import Features, PoolLimits
from tonnage.storage.pools.base.parameters import FILLED, check_shared
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.directory.backend import DirectoryBackend, PoolFolder
from tonnage.storage.pools.directory.bind_mounts import LEAST, REJECTED, BindMounts, check_no_erasure, limit_for, seed
from tonnage.storage.pools.directory.content import VolumeContent
from tonnage.storage.pools.directory.directory import disk_errors
from tonnage.storage.pools.fs.formats import BLOCK

log = logging.getLogger(__name__)
FSTYPES = ("xfs", "ext4")
_FIRST, _SPAN = 0x40000000, 0x3FFF0000  # projects below are left to people (/etc/projects)
PROJECTS = 0xFFFFFFFE - _FIRST
"""Project numbers for volumes."""


def _limit_of(fd: int, number: int) -> int:
    with suppress(FileNotFoundError):
        return quota.get(fd, number).limit
    return 0


class QuotaDirectories(VolumeContent):
    """Directories with project quotas as the content of volumes. fstypes is the one that is there, once prepared."""

    is_file = shares = False
    durable = True

    def __init__(self, folder: PoolFolder) -> None:
        self.fstypes: tuple[str, ...] = FSTYPES
        self.fstype = ""
        self._folder = folder
        self.mounts = BindMounts(folder, self.held)
        self._projects: dict[str, int] = {}
        self._numbers = threading.Lock()
        self._next = 0

    def limit(self) -> int:
        """The kernel numbers projects with 32 bits."""
        return PROJECTS

    def check(self, parameters: Mapping[str, str]) -> None:
        """Check parameters. Raises: UnsupportedError for ext4 without `allowUnenforced`."""
        check_shared(parameters)
        check_no_erasure(parameters)
        allowed = parameters.get("allowUnenforced", "false")
        if allowed not in ("true", "false"):
            raise InvalidError(f"parameter allowUnenforced={allowed[:40]!r}: want true or false")
        if self.fstype == "ext4" and allowed != "true":
            raise UnsupportedError(
                f"pool {self._folder.name!r} is on ext4, which holds no process with CAP_SYS_RESOURCE (no privileged"
                ' pod) to a quota: say allowUnenforced: "true" in the class, or use xfs'
            )

    def _opened(self, entry: str) -> AbstractContextManager[int]:
        return opened(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self._folder.directory.at)

    def prepare(self) -> None:
        """Raises: UnavailableError unless the file system there holds projects to their limits."""
        existing = next(path for path in (self._folder.path, *self._folder.path.parents) if path.exists())
        device = os.stat(existing).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        fstype = next((entry.fstype for entry in mount.mounts() if entry.device == number), "an unknown file system")
        if fstype not in FSTYPES:
            raise UnavailableError(f"{self._folder.where} is on {fstype}: project quotas need xfs or ext4")
        with opened(existing, os.O_RDONLY | os.O_DIRECTORY) as fd:
            if not quota.is_enforced(fd):
                raise UnavailableError(
                    f"{self._folder.where}: project quotas are off on this {fstype}: mount it with -o prjquota"
                    " (ext4: made or tuned with -O quota,project before); needs Linux 5.14"
                )
        self.fstype, self.fstypes = fstype, (fstype,)

    def found(self, records: dict[str, VolumeRecord]) -> None:
        self._next = _FIRST + zlib.crc32(os.fsencode(self._folder.path)) % _SPAN
        self._projects = {}
        self.mounts.find(self.fstype)

    def restore(self, record: VolumeRecord) -> None:
        """Find the project of a volume; set its limit again where it differs.

        Raises: ValueError when it is in no project of ours, so that its size is not enforced, OSError.
        """
        with self._opened(self._folder.content(record.name).name) as fd:
            number = quota.project(fd)
            if number < _FIRST or number != (record.project or number):  # the pod's doing, or a person's
                raise ValueError(f"it is in project {number}")
            if not record.size <= _limit_of(fd, number) <= limit_for(record.size) + BLOCK:
                log.warning("limit of a volume was not what its record says, set again volume=%s", record.name)
                quota.set_limit(fd, number, limit_for(record.size))
        self._projects[record.name] = number

    def make(self, record: VolumeRecord) -> VolumeRecord:
        folder = self._folder.content(record.name)
        with disk_errors(f"cannot make {folder}", full=f"for a directory in {self._folder.path}"):
            if folder.exists():
                self.remove(folder)
            os.mkdir(folder.name, 0o755, dir_fd=self._folder.directory.at)
            os.chmod(folder.name, 0o755, dir_fd=self._folder.directory.at)  # whatever the umask
            with self._opened(folder.name) as fd, self._numbers:
                number = self._unused(fd)
                quota.set_project(fd, number)  # which counts the directory: the number is in use now
                quota.set_limit(fd, number, limit_for(record.size))
        self._projects[record.name] = number
        seed(record, self._folder.content(record.name))
        return structs.replace(record, project=number)

    def _unused(self, fd: int) -> int:
        """An unused project. Raises: OSError."""
        while True:
            self._next += 1
            with suppress(FileNotFoundError):  # xfs knows only those that were used
                found = quota.get(fd, self._next)
                if found.used or found.inodes or found.limit:
                    continue
            return self._next

    def remove(self, content: Path) -> None:
        """Its limit, then the folder with all that is in it."""
        name = content.name.removesuffix(self._folder.suffix)
        try:
            with self._opened(content.name) as fd:
                number = self._projects.get(name) or quota.project(fd)
            # Who owns a folder may put it into any project: into that of another volume, which keeps its limit.
            if number >= _FIRST and number not in self._others(name):
                quota.set_limit(self._folder.directory.at, number, 0)
            tree.remove(content)
        except FileNotFoundError:
            return
        except OSError as failure:
            raise HostError(f"cannot remove {content}: {failure.strerror}") from failure
        self._projects.pop(name, None)

    def renamed(self, name: str, aside: Path) -> None:
        if (number := self._projects.pop(name, None)) is not None:
            self._projects[aside.name.removesuffix(self._folder.suffix)] = number

    def _others(self, name: str) -> set[int]:
        """The projects of all other volumes."""
        return {number for other, number in list(self._projects.items()) if other != name}

    def changed(self, name: str) -> None:
        """Set a volume's limit to what its record says."""
        if (record := self._folder.records.volumes.get(name)) is None or (number := self._projects.get(name)) is None:
            return
        with host_errors(f"cannot set the limit of {self._folder.content(name)}"):
            quota.set_limit(self._folder.directory.at, number, limit_for(record.size))

    def fault(self, record: VolumeRecord) -> str:
        content = self._folder.content(record.name)
        try:
            with self._opened(content.name) as fd:
                number, is_readonly = quota.project(fd), os.fstatvfs(fd).f_flag & os.ST_RDONLY
        except FileNotFoundError:
            return f"its folder {content} is gone, and its content with it"
        except OSError as failure:
            return f"its folder cannot be reached: {failure.strerror}; look at the disk under {self._folder.path}"
        if number != self._projects.get(record.name):
            return f"its folder {content} is in another project, {number}: its size is no limit any more"
        if is_readonly:
            return f"the file system under {self._folder.path} is read-only: look at the kernel's log"
        return ""

    def held(self, content: Path) -> int:
        """Bytes that a project is charged with."""
        number = self._projects.get(content.name.removesuffix(self._folder.suffix))
        try:
            return quota.get(self._folder.directory.at, number).used if number else 0
        except (OSError, UnavailableError):
            return 0


FEATURES = Features(
    "quota",
    fstypes=FSTYPES,
    blocks=False,
    parameters=FILLED | {"allowUnenforced"},
    expansion=True,
    rejected=REJECTED,
    least=LEAST,
)


def make_backend(
    directory: Path, bounds: PoolLimits | None = None, *, disks: Disks | None = None, clock: Clock | None = None
) -> DirectoryBackend:
    """Directories with project quotas in a directory."""
    folder = PoolFolder(directory, bounds, kind="quota", suffix=".vol", disks=disks, clock=clock)
    directories = QuotaDirectories(folder)
    return DirectoryBackend(folder, directories, directories.mounts, FEATURES)
