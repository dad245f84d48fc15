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
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from tonnage.errors import Exhausted, HostError
from tonnage.host import btrfs
from tonnage.pools.btrfsstore import BtrfsStore
from tonnage.pools.directory import Record

log = logging.getLogger(__name__)


class BtrfsDepot(BtrfsStore):
    """A btrfs store with all that subvolumes can do."""

    def fill(self, record: Record, origin: Record) -> Record:
        """Make the subvolume of a volume from another; the record as it is then. Raises Exhausted, HostError."""
        source = self.snapshots.content(origin.name) if record.from_snapshot else self.content(origin.name)
        with suppress(FileNotFoundError):
            self.remove(self.content(record.name))
        self._copy(self.at, self.content(record.name), source, readonly=False)
        return replace(record, length=0 if record.from_snapshot else self.held(source))

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

    def keep(self, record: Record, origin: Record, content: Path) -> Record:
        """See FolderStore."""
        with suppress(FileNotFoundError):
            self.remove(content)
        self._copy(self.snapshots.directory.at, content, self.content(origin.name), readonly=True)
        return record

    def fault(self, record: Record, path: Path | None) -> str:
        """See RecordStore."""
        content = self.content(record.name)
        try:
            if os.lstat(content).st_ino != btrfs.FIRST_INODE:
                return f"{content} is no subvolume: its content is not what the pool made"
            if os.fstatvfs(self.at).f_flag & os.ST_RDONLY:
                return f"the btrfs under {self.path} is read-only: look at the kernel's log"
        except FileNotFoundError:
            return f"its subvolume {content} is gone, and its content with it"
        except OSError as failure:
            return f"its subvolume cannot be reached: {failure.strerror}; look at the disk under {self.path}"
        return self.mount_fault(path)
