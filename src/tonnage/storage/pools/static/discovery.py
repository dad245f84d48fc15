"""Disks in a discovery directory: prepared mount points and block devices, each one volume. Blocking.

The rules are those of sig-storage-local-static-provisioner (docs/provisioner.md there): a directory that is a mount
point is a file system, a block device or a symlink to one is raw block, sizes are rounded down to readable ones. Unsafe
entries are rejected with the reason: a directory that is no mount (a pod would fill the disk below), two entries on one
file system (sizes would not be enforced), a device in use elsewhere. Nothing in the directory is ever changed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tonnage.base.errors import HostError, InvalidError, TonnageError, UnavailableError
from tonnage.host import device, mount
from tonnage.host.descriptor import opened
from tonnage.host.mount import Mount
from tonnage.storage.pools.base.contract import check_name
from tonnage.storage.pools.fs.formats import FORMATS, GI, MI

LONGEST_ENTRY = 63
_QUIET = frozenset({"lost+found"})
_UNITS = 10
_IDS = ("wwid", "device/wwid", "serial", "device/serial", "dm/uuid", "md/uuid", "loop/backing_file")


@dataclass(frozen=True)
class StaticDisk:
    """An entry that can be a volume.

    path: in the directory. node: the device itself, of a block device. size: usable bytes. fstype: of the mounted file
    system, "" for a block device. identity: the same as long as it is the same disk with the same file system. number:
    device number, major:minor.
    """

    entry: str
    path: Path
    size: int
    identity: str
    number: str
    fstype: str = ""
    node: Path | None = None

    @property
    def block(self) -> bool:
        """Whether it is a block device."""
        return self.node is not None

    def usable(self, fstype: str) -> int:
        """Usable bytes of a volume with that file system, "" for the disk as it is."""
        return readable(FORMATS[fstype].usable(self.size)) if self.block and fstype else self.size


@dataclass(frozen=True)
class FoundDisk:
    """The disks found in the directory. rejected: entry -> why it is not a volume, and what to do."""

    disks: Mapping[str, StaticDisk]
    rejected: Mapping[str, str]


def readable(size: int) -> int:
    """A size rounded down to whole Gi, or Mi, of which there are at least 10; smaller sizes are unchanged."""
    for unit in (GI, MI):
        if size >= _UNITS * unit:
            return size // unit * unit
    return size


def check_directory(directory: Path) -> None:
    """Raises: UnavailableError unless it is a plain directory that only root or this user can write to.

    A link planted there would give away any disk of this machine.
    """
    try:
        found = os.lstat(directory)
    except OSError as failure:
        hint = ": make it and mount the disks below it" if isinstance(failure, FileNotFoundError) else ""
        raise UnavailableError(f"discovery directory {directory}: {failure.strerror}{hint}") from failure
    if not stat.S_ISDIR(found.st_mode):
        raise UnavailableError(f"discovery directory {directory} is not a directory: name the directory itself")
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise UnavailableError(
            f"discovery directory {directory} can be written to by others than root: chown root {directory} &&"
            f" chmod 755 {directory}"
        )


def look(directory: Path) -> FoundDisk:
    """All disks in the directory. Raises: UnavailableError when it cannot be read."""
    try:
        entries = sorted(entry for entry in os.listdir(directory) if not entry.startswith(".") and entry not in _QUIET)
        here = os.stat(directory).st_dev
        mounts = {entry.target: entry for entry in mount.mounts()}  # the last one at a place is the one that is seen
    except (OSError, HostError) as failure:
        raise UnavailableError(f"discovery directory {directory}: {failure}") from failure
    found: dict[str, StaticDisk] = {}
    rejected: dict[str, str] = {}
    for entry in entries:
        try:
            found[entry] = _disk(directory, entry, here, mounts)
        except TonnageError as reason:
            rejected[entry] = str(reason)
        except OSError as failure:
            rejected[entry] = f"it cannot be looked at: {failure.strerror}"
    for entry, first in _doubles(found):
        rejected[entry] = f"it is the same disk as {first}: sizes would not be limits; remove one of the two"
        del found[entry]
    return FoundDisk(found, rejected)


def _doubles(found: Mapping[str, StaticDisk]) -> list[tuple[str, str]]:
    """Entries with the same disk as an earlier one, with that one."""
    first: dict[str, str] = {}
    doubles = []
    for entry, disk in sorted(found.items()):
        if (other := first.setdefault(disk.number, entry)) != entry:
            doubles.append((entry, other))
    return doubles


def _disk(directory: Path, entry: str, here: int, mounts: Mapping[str, Mount]) -> StaticDisk:
    """The disk of one entry. Raises: InvalidError saying why it is not a volume, OSError."""
    try:
        check_name(entry)
    except InvalidError:
        raise InvalidError("its name is not one for a volume: letters, digits, '-', '_' and '.'") from None
    if len(entry) > LONGEST_ENTRY:
        raise InvalidError(f"its name has more than {LONGEST_ENTRY} characters")
    path = directory / entry
    mode = os.lstat(path).st_mode
    if stat.S_ISDIR(mode):
        return _mounted(path, entry, here, mounts)
    if not stat.S_ISLNK(mode):
        if stat.S_ISBLK(mode):
            return _device(path, entry, path)
        raise InvalidError("it is neither a mount point nor a block device: remove it, or mount a disk there")
    try:
        node = path.resolve(strict=True)
    except (FileNotFoundError, RuntimeError):
        raise InvalidError(f"it leads to {os.readlink(path)}, which does not exist") from None
    if not stat.S_ISBLK(os.stat(node).st_mode):
        raise InvalidError(f"it leads to {node}, which is no block device: mount file systems, do not link to them")
    return _device(path, entry, node)


def _mounted(path: Path, entry: str, here: int, mounts: Mapping[str, Mount]) -> StaticDisk:
    shown = mounts.get(str(path))
    if shown is None or not mount.is_mount(path):
        raise InvalidError(
            "it is a directory and no mount point: a pod would fill the disk below it; mount a disk there"
        )
    if os.stat(path).st_dev == here:
        raise InvalidError("it is a bind mount of the disk that the directory is on: mount a disk of its own there")
    statistics = os.statvfs(path)
    if statistics.f_flag & os.ST_RDONLY:
        raise InvalidError("it is mounted read-only: mount it writable")
    reserved = statistics.f_bfree - statistics.f_bavail  # for root, so that no pod can have it
    size = readable((statistics.f_blocks - reserved) * statistics.f_frsize)
    if size <= 0:
        raise InvalidError(f"its file system ({shown.fstype}) has no size")
    return StaticDisk(entry, path, size, _file_system(shown, statistics.f_fsid), shown.device, fstype=shown.fstype)


def _file_system(shown: Mount, fsid: int) -> str:
    """The identity of a file system: the UUID on its device, else what the kernel reports."""
    place = f"{shown.fstype}:{shown.root}"
    with suppress(OSError):
        if stat.S_ISBLK(os.stat(shown.source).st_mode):
            with opened(shown.source, os.O_RDONLY) as fd:
                found = device.probe(fd)
            if found is not None and found.uuid is not None:
                return f"{place}:{found.uuid}"
    return f"{place}:{fsid:x}"


def _device(path: Path, entry: str, node: Path) -> StaticDisk:
    number = os.stat(node).st_rdev
    place = f"{os.major(number)}:{os.minor(number)}"
    size = int(_read(Path("/sys/dev/block") / place / "size") or 0) * 512
    if not size:
        raise InvalidError(f"its device {node} has no size: is a medium in it?")
    return StaticDisk(entry, path, readable(size), f"{_device_id(place)}:{size}", place, node=node)


def _device_id(place: str) -> str:
    """The identity of a device: its serial number or similar; of a partition its disk's and its start."""
    described = (Path("/sys/dev/block") / place).resolve()
    if (start := _read(described / "start")) and (described / "partition").exists():
        return f"{_first_id(described.parent)}+{start}"
    return _first_id(described)


def _first_id(described: Path) -> str:
    return next((f"{key}={text}" for key, text in _ids(described)), "") or f"at={_slot(described)}"


def _slot(described: Path) -> str:
    """The bus location of a disk without an identity, such as a virtual one without a serial number.

    Its /dev/vdb may be another disk after a restart, and a cleaner must not erase that one.
    """
    if "virtual" in described.parts:
        return described.name
    parts = described.relative_to("/sys/devices").parts[:-2]  # block/vdb
    return "/".join(part for part in parts if not re.fullmatch(r"virtio\d+", part))  # numbered as they are found


def _ids(described: Path) -> Iterator[tuple[str, str]]:
    for key in _IDS:
        if text := _read(described / key):
            yield key, text


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""
