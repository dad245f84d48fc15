"""Subvolumes that come from others and subvolumes that grow: snapshots, clones, expansion, health. The rest of
BtrfsStore; the caller commits.

A snapshot is a read-only subvolume in `.snapshots`, a clone a writable one with a limit of its own. Subvolumes that a
pod made inside a volume are not in its snapshots, as with any btrfs snapshot.

Where quotas are simple ones, what a volume has written stays charged to it while a snapshot or clone still has it, and
the new volume begins at nothing. So that a volume with snapshots can still be overwritten, its limit is raised by what
it had when each of them was made, and falls again when they are gone.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from msgspec.structs import replace

from tonnage.errors import Exhausted, HostError
from tonnage.host import btrfs, mount
from tonnage.pools.base import WELL, Condition, Source
from tonnage.pools.btrfsstore import BtrfsStore
from tonnage.pools.directory import Record

log = logging.getLogger(__name__)


class BtrfsDepot(BtrfsStore):
    """A btrfs store with all that subvolumes can do."""

    def origin(self, source: Source) -> Record:
        """What a volume shall be filled from. Raises NotFound."""
        return self.snapshots.record(source.snapshot) if source.snapshot else self.record(source.volume)

    def fill(self, record: Record, origin: Record) -> Record:
        """Make the subvolume of a volume from another; the record as it is then. Raises Exhausted, HostError."""
        source = self.snapshots.content(origin.name) if record.from_snapshot else self.subvolume(origin.name)
        with suppress(FileNotFoundError):
            self.destroy(self.subvolume(record.name))
        self._copy(self.at, self.subvolume(record.name), source, readonly=False)
        return replace(record, length=0 if record.from_snapshot else self.allocated(source))

    def _copy(self, at: int, target: Path, source: Path, *, readonly: bool) -> None:
        try:
            fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                btrfs.snapshot(at, target.name, fd, readonly=readonly)
            finally:
                os.close(fd)
        except OSError as failure:
            if failure.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Exhausted(f"no room for a snapshot in {self.path}: {failure.strerror}") from failure
            raise HostError(f"cannot make a snapshot of {source} at {target}: {failure.strerror}") from failure

    def snapshot(self, name: str, volume: str, owner: Mapping[str, str]) -> Record:
        """Make a snapshot. Raises NotFound, Exhausted, HostError."""
        origin, source = self.record(volume), self.subvolume(volume)
        held = self.allocated(source)
        record = replace(
            origin,
            name=name,
            uuid=uuid4(),
            length=held,
            parameters={},
            owner=dict(owner),
            created=self.clock.time(),
            from_snapshot="",
            from_volume=volume,
        )
        self.book(name, record.size)
        path = self.snapshots.content(name)
        try:
            self.snapshots.prepare()
            self.account.promise(path, held, ratio=self.bounds.ratio, allocated=_nothing)
            with suppress(FileNotFoundError):
                self.destroy(path)
            self._copy(self.snapshots.directory.at, path, source, readonly=True)
            self.snapshots.add(record, durable=False)
        except BaseException:
            self.unbook(record, path)
            with suppress(HostError):
                self.snapshots.forget(name, durable=False)
                self.destroy(path)
            raise
        self.limit(volume)
        return record

    def delete_snapshot(self, name: str) -> None:
        """Remove a snapshot; an unknown one is success. Raises HostError."""
        self.check_open()
        record = self.snapshots.find(name)
        if record is None:
            return
        path = self.snapshots.content(name)
        self.snapshots.forget(name, durable=False)
        self.unbook(record, path)
        self.destroy(path)
        self.limit(record.from_volume)

    def expand(self, name: str, size: int) -> Record:
        """Raise a volume's limit. Raises Exhausted, HostError."""
        record, path = self.record(name), self.subvolume(name)
        larger = replace(record, size=size)
        self.book(name, size - record.size)
        try:
            self.account.promise(path, size, ratio=self.bounds.ratio, allocated=self.allocated)
            self.write(larger)
        except BaseException:
            self.book(name, record.size - size)
            self.account.remember(path, record.size, allocated=self.allocated)
            raise
        self.limit(name)
        return larger

    def condition(self, name: str, path: Path | None) -> Condition:
        """See Pool.condition."""
        try:
            self.record(name)
        except HostError as failure:
            return Condition(abnormal=True, message=str(failure))
        if fault := self._fault(name, path):
            return Condition(abnormal=True, message=f"volume {name}: {fault}")
        return WELL

    def _fault(self, name: str, path: Path | None) -> str:
        try:
            if os.lstat(self.subvolume(name)).st_ino != btrfs.FIRST_INODE:
                return f"{self.subvolume(name)} is no subvolume: its content is not what the pool made"
            if os.fstatvfs(self.at).f_flag & os.ST_RDONLY:
                return f"the btrfs under {self.path} is read-only: look at the kernel's log"
        except FileNotFoundError:
            return f"its subvolume {self.subvolume(name)} is gone, and its content with it"
        except OSError as failure:
            return f"its subvolume cannot be reached: {failure.strerror}; look at the disk under {self.path}"
        if path is not None and not mount.is_mount(path):
            return f"it is not mounted at {path}"
        return ""


def _nothing(_path: Path) -> int:
    return 0
