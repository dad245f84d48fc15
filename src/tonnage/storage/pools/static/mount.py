"""Staging and publishing a disk of a static pool: bind mounts, devices formatted once. Blocking."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from msgspec.structs import replace

from tonnage.base.errors import (
    AlreadyExistsError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnsupportedError,
    host_errors,
)
from tonnage.host import device, mount
from tonnage.storage.pools.base.contract import Stats
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.backend import Mounts
from tonnage.storage.pools.core.device_mounts import NODE, unstage
from tonnage.storage.pools.fs import block_device, mounts, online, shutdown
from tonnage.storage.pools.static import content
from tonnage.storage.pools.static.discovery import StaticDisk

log = logging.getLogger(__name__)
_MAY_HOLD_NODES = frozenset({"devtmpfs", "tmpfs"})


def format_once(record: VolumeRecord, disk: StaticDisk, write: Callable[[VolumeRecord], None]) -> VolumeRecord:
    """Format a block device that was never used; return the record of what is on it then. Idempotent.

    A new file system of that kind stays: the disk was prepared with it. So does a used one of a volume that a former
    version made, which offered such disks. write: writes a record. Raises: PreconditionError when there is anything
    else, BusyError, HostError.
    """
    node = str(disk.node)
    with block_device.locked(node) as fd, host_errors(f"volume {record.name}: cannot read {node}"):
        found = device.probe(fd)
        if found is not None and (uuid := _prepared(record, fd, found)) is not None:
            log.info("file system that is there is used as it is volume=%s disk=%s", record.name, disk.path)
            return replace(record, uuid=uuid)
        if found is None and not record.made:
            if content.is_derived(record.uuid) and not content.is_blank(fd):
                raise PreconditionError(_not_blank(record, disk))
            record = replace(record, made=record.length)  # what an mkfs leaves that a power cut ends is ours
            write(record)
        block_device.prepare(fd, node, record, zeroed=False)
        return record


def _prepared(record: VolumeRecord, fd: int, found: device.Signature) -> UUID | None:
    """The UUID of a file system that the disk was prepared with, None when it was not. Raises: OSError."""
    if found.kind != record.fstype or found.uuid in (None, record.uuid):
        return None
    is_former = not content.is_derived(record.uuid) and found.uuid is not None and not content.is_derived(found.uuid)
    return found.uuid if is_former or device.is_unused(fd) else None


def _not_blank(record: VolumeRecord, disk: StaticDisk) -> str:
    return (
        f"volume {record.name}: disk {disk.path} is new by its record and not blank: it will not be formatted or shown;"
        " look at it, then zero it, or delete the volume"
    )


class StaticMounts(Mounts):
    """Stages and publishes disks.

    disk_of: returns the disk of a volume by its name, raises UnavailableError. write: writes a record.
    """

    def __init__(self, disk_of: Callable[[str], StaticDisk], write: Callable[[VolumeRecord], None]) -> None:
        self._disk_of, self._write = disk_of, write
        self._down = shutdown.ShutDowns()

    def check_unused(self, name: str) -> None:
        check_unused(name, self._disk_of(name))

    def stage(self, record: VolumeRecord, path: Path, options: Sequence[str]) -> None:
        disk, place = self._disk_of(record.name), path / NODE if record.block else path
        if mount.is_mount(place):
            if not _is_of(record, disk, place):
                raise AlreadyExistsError(
                    f"{place} is a mount of something else than volume {record.name}: unmount it first"
                )
            if record.block:
                return
            if not self._down.release(record.name, place, home=disk.path):
                if disk.node is not None:
                    mounts.check_context(record.name, place, options)
                return
        if record.state == "new":
            self._begin(record, disk)
        mounts.make_directory(path)
        if record.block:
            assert disk.node is not None
            mounts.publish(disk.node, place, block=True, readonly=False)
        elif disk.node is not None:
            block_device.mount_at(str(disk.node), record, path, options)
        else:
            what = f"volume {record.name} is a file system that is mounted already: it"
            mounts.check_bind(what, options, f"; mount {disk.path} with it")
            mount.bind(disk.path, path, options=("nodev", *options))
        if not record.block:
            self._down.staged(record.name, path)

    def writes_record(self, record: VolumeRecord) -> bool:
        return record.state == "new"

    def _begin(self, record: VolumeRecord, disk: StaticDisk) -> None:
        """Make a disk ready that was never used. Raises: PreconditionError, BusyError, HostError."""
        if record.fstype and disk.block:
            record = format_once(record, disk, self._write)
        elif record.block and content.is_derived(record.uuid) and content.foreign(disk):
            raise PreconditionError(_not_blank(record, disk))
        content.use(disk)
        self._write(replace(record, state="formatted"))  # a pod may write from here on, so it must be cleaned

    def unstage(self, name: str, path: Path) -> None:
        self._down.unstaged(name, path)
        unstage(path)

    def publish(self, record: VolumeRecord, staging: Path, target: Path, *, readonly: bool) -> None:
        """Publish a volume. Raises: UnsupportedError for read-only raw block."""
        source = staging / NODE if record.block else staging
        if not mount.is_mount(source) or not _is_of(record, self._disk_of(record.name), source):
            raise PreconditionError(f"volume {record.name} is not staged at {staging}: stage it first")
        self.revive(record, staging)
        if record.block and readonly:
            raise UnsupportedError(f"volume {record.name}: raw block volumes of static pools are not shown read-only")
        mounts.publish(source, target, block=record.block, readonly=readonly)

    def unpublish(self, name: str, target: Path) -> None:
        mounts.unpublish(target)

    def stats(self, record: VolumeRecord, path: Path) -> Stats:
        place = path / NODE if record.block and path.is_dir() else path
        if not mount.is_mount(place) or not _is_of(record, self._disk_of(record.name), place):
            raise NotFoundError(f"volume {record.name} is not at {path}")
        return Stats(total=record.size, used=record.size, available=0) if record.block else mounts.stats(path)

    def places(self, records: Sequence[VolumeRecord]) -> Mapping[str, Path]:
        shown, found = {entry.device: Path(entry.target) for entry in mount.mounts()}, dict[str, Path]()
        shown |= {f"{os.major(n)}:{os.minor(n)}": path for n, path in block_device.places().items()}
        for record in records:
            with suppress(UnavailableError):  # backend.fault() says so
                number = self._disk_of(record.name).number
                if not record.block and number in shown:
                    found[record.name] = shown[number]
        return found

    def fault_at(self, record: VolumeRecord, path: Path) -> str:
        return "" if record.block else online.mount_fault(path)


def _is_of(record: VolumeRecord, disk: StaticDisk, place: Path) -> bool:
    if disk.node is not None:
        is_there = block_device.is_shown if record.block else block_device.is_mounted
        return is_there(str(disk.node), place)
    with suppress(OSError):
        wanted, shown = os.stat(disk.path), os.stat(place)
        return (wanted.st_dev, wanted.st_ino) == (shown.st_dev, shown.st_ino)
    home, there = mount.at(disk.path), mount.at(place)  # its file system does not answer
    return home is not None and there is not None and (home.device, home.root) == (there.device, there.root)


def elsewhere(disk: StaticDisk) -> str:
    """Where the disk is mounted or published outside its directory, "" for nowhere."""
    return next(_places(disk), "")


def check_unused(name: str, disk: StaticDisk) -> None:
    """Raises: PreconditionError while the disk of a volume is mounted or published outside its directory."""
    if place := elsewhere(disk):
        raise PreconditionError(f"volume {name} is in use at {place}: unpublish and unstage it first")


def _places(disk: StaticDisk) -> Iterator[str]:
    for entry in mount.mounts():
        if entry.target == str(disk.path):
            continue
        is_ours = entry.device == disk.number
        if disk.node is not None and not is_ours:
            is_ours = _number(entry.source) == disk.number or _is_bound(entry, disk.number)
        if is_ours:
            yield entry.target


def _is_bound(entry: mount.Mount, number: str) -> bool:
    """Whether a device node of that number is bind-mounted somewhere."""
    return entry.fstype in _MAY_HOLD_NODES and entry.root != "/" and _number(entry.target) == number


def _number(path: str) -> str:
    if not path.startswith("/"):
        return ""
    with suppress(OSError):
        found = os.stat(path, follow_symlinks=False)
        if stat.S_ISBLK(found.st_mode):
            return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    return ""
