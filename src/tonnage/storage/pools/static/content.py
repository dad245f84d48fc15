"""What is on a disk of a static pool: whether it may be offered, and whose it is. Blocking.

Records can be lost, older than the disks, or of another node. So the disk itself is asked, too:

- A device is offered when it is blank, or has a file system that was never mounted and holds no file. Blank: it has no
  signature, and only zeros in all places that a cleaner wipes, which are both ends and what is in between of btrfs.
- A mounted file system is offered when it is empty, or when a person has marked it to be offered with its content.
- A mounted file system is marked with its volume's name from before that volume is answered until it is clean. Only
  root of the machine can change the mark: it is a trusted attribute of the root directory.
- A file system that tonnage makes on a device has a UUID that is derived from its volume's name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid5

from tonnage.base.errors import host_errors, ignore_errno
from tonnage.host import device
from tonnage.host.descriptor import opened
from tonnage.storage.pools.fs.formats import FORMATS, GI, MI
from tonnage.storage.pools.static.discovery import StaticDisk
from tonnage.storage.pools.static.records import DiskRecord

MARK = "trusted.tonnage.disk"
"""The extended attribute of a mounted file system's root directory that says whose it is."""
USED = "trusted.tonnage.used"
"""The extended attribute that says that its volume was staged: the record may be restored from before that."""
OFFERED = "offered"
"""The mark of a file system that is offered with its content."""
_VOLUME = "volume "
_ENDS = 2 * MI
_COPIES = (64 * MI, 256 * GI)  # btrfs has copies of its superblock there
_COPY = 4096
_NO_MARKS = (errno.EOPNOTSUPP, errno.ENODATA)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_LOST_AND_FOUND = "lost+found"


def uuid_of(name: str) -> UUID:
    """The UUID of the file system that a volume's device gets."""
    return uuid5(NAMESPACE_URL, f"static:{name}")


def places(end: int) -> Iterator[tuple[int, int]]:
    """Start and end of the places of a device of `end` bytes that have signatures, and that a cleaner wipes."""
    yield 0, min(_ENDS, end)
    yield max(0, end - _ENDS), end
    for copy in _COPIES:
        if copy + _COPY <= end:
            yield copy, copy + _COPY


def is_blank(fd: int) -> bool:
    """Whether an open device reads as a cleaner leaves it. Raises: OSError."""
    end = device.size(fd)
    if device.probe(fd) is not None:
        return False
    found = (os.pread(fd, stop - start, start) for start, stop in places(end))
    return all(content.count(0) == len(content) for content in found)


def foreign(disk: StaticDisk) -> str:
    """Why a disk without a record is not offered, and what to do; "" when it may be."""
    try:
        return _foreign_mount(disk.path) if disk.node is None else _foreign_device(disk, disk.node)
    except OSError as failure:
        return f"its content cannot be looked at: {failure.strerror}; look at the kernel's log"


def _foreign_device(disk: StaticDisk, node: Path) -> str:
    with opened(node, os.O_RDONLY) as fd:
        if is_blank(fd):
            return ""
        found = device.probe(fd)
        if found is not None and found.kind in FORMATS and device.is_unused(fd):
            return ""
    return (
        f"it holds {_described(found)} and has no record here: it may be a volume whose record is lost, then put a copy"
        f" of that back; if it is not needed, zero it (blkdiscard -z {disk.path})"
    )


def _described(found: device.Signature | None) -> str:
    if found is None:
        return "data"
    return f"a used {found.kind} file system" if found.kind in FORMATS else found.kind


def _foreign_mount(path: Path) -> str:
    if name := owner_of(path):
        return (
            f"it is of volume {name}, whose record is not here: put a copy of the record back; if it is not needed,"
            f" remove its files and its mark (setfattr -x {MARK} {path})"
        )
    if _mark_of(path) == OFFERED or _is_empty(path):
        return ""
    return (
        "it holds files and has no record here: it may be a volume whose record is lost, then put a copy of that back;"
        f" if they are not needed, remove them; to offer it with them, setfattr -n {MARK} -v {OFFERED} {path}"
    )


def _is_empty(path: Path) -> bool:
    """Whether a file system holds no file except an empty `lost+found`."""
    names = os.listdir(path)
    return not names or (names == [_LOST_AND_FOUND] and not os.listdir(path / _LOST_AND_FOUND))


def _mark_of(path: Path, name: str = MARK) -> str:
    """The mark of a mounted file system, "" for none. Raises: OSError."""
    with ignore_errno(*_NO_MARKS), opened(path, _FOLDER) as fd:
        return os.getxattr(fd, name).decode(errors="replace")
    return ""


def owner_of(path: Path) -> str:
    """The volume that a mounted file system says it is, "" for none. Raises: OSError."""
    mark = _mark_of(path)
    return mark.removeprefix(_VOLUME) if mark.startswith(_VOLUME) else ""


def take(disk: StaticDisk, name: str) -> None:
    """Mark a disk as a volume's, durably, where its file system has marks. Idempotent. Raises: HostError."""
    if disk.node is None:
        _put(disk.path, f"{_VOLUME}{name}")


def use(disk: StaticDisk) -> None:
    """Mark a disk as used by a pod, durably, where its file system has marks. Idempotent. Raises: HostError."""
    if disk.node is None:
        _put(disk.path, "yes", USED)


def is_used(disk: StaticDisk) -> bool:
    """Whether a mounted file system is marked as used. Raises: HostError."""
    with host_errors(f"disk {disk.path}: cannot be read"):
        return disk.node is None and bool(_mark_of(disk.path, USED))


def shows_use(disk: StaticDisk) -> bool:
    """Whether the content of a disk shows that a pod had it. Raises: HostError."""
    return is_used(disk) if disk.node is None else bool(foreign(disk))


def give_back(disk: StaticDisk) -> None:
    """Mark a disk as free with the content that it has, which no volume has changed. Idempotent. Raises: HostError."""
    if disk.node is None:
        with host_errors(f"disk {disk.path}: cannot be read"):
            is_prepared = not _is_empty(disk.path)
        _put(disk.path, OFFERED if is_prepared else "")


def clear(disk: StaticDisk) -> None:
    """Remove the mark of a disk that is clean. Idempotent. Raises: HostError."""
    if disk.node is None:
        _put(disk.path, "", USED)
        _put(disk.path, "")


def _put(path: Path, mark: str, name: str = MARK) -> None:
    with host_errors(f"disk {path}: cannot be marked"), ignore_errno(*_NO_MARKS), opened(path, _FOLDER) as fd:
        if mark:
            os.setxattr(fd, name, mark.encode())
        else:
            os.removexattr(fd, name)
        os.fsync(fd)


def stranger(record: DiskRecord, disk: StaticDisk) -> str:
    """Why a disk is not the one of its record any more, "" when it may be: the record may be of an earlier moment."""
    try:
        found = _strange_mount(record, disk.path) if disk.node is None else _strange_device(record, disk.node)
    except OSError as failure:
        return f"its content cannot be looked at: {failure.strerror}; look at the kernel's log"
    return found and (
        f"{found}, its record says volume {_name(record)}: the record is of an earlier moment, or of another node;"
        " nothing was touched, put the newest copy of the record back and restart the driver"
    )


def _name(record: DiskRecord) -> str:
    return record.volume.name if record.volume else record.job.name if record.job else ""


def _strange_mount(record: DiskRecord, path: Path) -> str:
    owner = owner_of(path)
    return f"it is of volume {owner}" if owner not in ("", _name(record)) else ""


def _strange_device(record: DiskRecord, node: Path) -> str:
    """By the UUID of its file system. A device with raw block has what its pod has written: no sign of whose it is."""
    volume = record.volume
    if volume is not None and volume.block:
        return ""
    with opened(node, os.O_RDONLY) as fd:
        found = device.probe(fd)
    if found is None or found.uuid is None:
        return ""
    expected = uuid_of(_name(record)) if volume is None else volume.uuid
    # Former versions made random ones, and did not record that of a file system that was there before.
    is_known = volume is not None and volume.state != "new" and is_derived(expected)
    is_other = found.uuid != expected and (is_known or is_derived(found.uuid))
    return f"its {found.kind} file system has the UUID {found.uuid}" if is_other else ""


def is_derived(uuid: UUID) -> bool:
    """Whether a UUID is of uuid_of(), not of a former version or of mkfs."""
    return uuid.version == 5


def lost_volumes(disks: Iterable[StaticDisk]) -> dict[str, str]:
    """Volumes that mounted file systems say they are -> their entries."""
    found = {}
    for disk in disks:
        with suppress(OSError):
            if disk.node is None and (name := owner_of(disk.path)):
                found[name] = disk.entry
    return found
