"""Inspection of a block device for a pool: its users and its signatures. Read-only. Blocking."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tonnage.base.errors import HostError, InvalidError, host_errors
from tonnage.host import files, mount
from tonnage.host.descriptor import opened
from tonnage.host.run import run

_TRIES, _PAUSE = 100, 0.01  # seconds between them


class DiskSignature(msgspec.Struct, frozen=True):
    """A signature that wipefs(8) recognizes on a device. label and uuid are None where there is none."""

    type: str
    offset: str
    uuid: str | None = None
    label: str | None = None


class _Signatures(msgspec.Struct):
    signatures: list[DiskSignature] = []


@dataclass(frozen=True)
class Disk:
    """A block device.

    path: as named. node: the device itself, symlinks resolved. size: bytes. users: descriptions of its users, none when
    it is free. signatures: of a free device.
    """

    path: Path
    node: Path
    size: int
    users: tuple[str, ...]
    signatures: tuple[DiskSignature, ...]


def inspect(path: Path) -> Disk:
    """Inspect a block device. Raises: InvalidError when it is not one, HostError when wipefs cannot read it."""
    with host_errors(f"device {path}", error=InvalidError):
        node = path.resolve(strict=True)
        found = os.stat(node)
    if not path.is_absolute() or not stat.S_ISBLK(found.st_mode):
        raise InvalidError(f"{path} is not a block device: name one, as /dev/sdb or /dev/disk/by-id/...")
    users = tuple(users_of(node, found.st_rdev))
    # What is in use is not looked into: it is rejected already, and the kernel may reject to open it.
    return Disk(path, node, _size(found.st_rdev), users, () if users else _signatures(node))


def _size(number: int) -> int:
    sectors = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/size").read_text()
    return int(sectors) * 512


def users_of(node: Path, number: int) -> Iterator[str]:
    """Users of the device of that number, the most direct first; none if it is free. Raises: OSError."""
    place = f"{os.major(number)}:{os.minor(number)}"
    described = Path("/sys/dev/block") / place
    known = set(os.listdir(described))
    if parts := sorted(entry for entry in known if (described / entry / "partition").exists()):
        yield f"it has partitions ({', '.join(parts)})"
    if (described / "ro").exists() and (described / "ro").read_text().strip() == "1":
        yield "it is read-only"
    mounts = [entry.target for entry in mount.mounts() if entry.device == place or entry.source == str(node)]
    if mounts:
        yield f"it is mounted at {mounts[0]}"
    if _is_swap(number):
        yield "it is swap"
    if holders := os.listdir(described / "holders") if (described / "holders").is_dir() else []:
        yield f"{', '.join(sorted(holders))} is on top of it (LVM, RAID or encryption)"
    if not mounts and not holders and _is_taken(node):
        yield "the kernel or another program has opened it exclusively"


def _is_swap(number: int) -> bool:
    with suppress(OSError), open("/proc/swaps") as table:
        for line in list(table)[1:]:
            with suppress(OSError):
                if os.stat(line.split()[0]).st_rdev == number:
                    return True
    return False


def _is_taken(node: Path) -> bool:
    """Whether the device is opened exclusively: by a mount, a holder or an array, in any namespace."""
    try:
        with _locked(node), opened(node, os.O_EXCL):
            pass
    except OSError as failure:
        return failure.errno == errno.EBUSY
    return False


@contextmanager
def _locked(node: Path) -> Iterator[None]:
    """Take the lock that programs hold while they read or change a device (systemd's BLOCK_DEVICE_LOCKING).

    Without it, two processes that inspect a device would each report the other as a user. Raises: OSError, EBUSY when
    the lock is not free within a second.
    """
    with opened(node) as fd:
        for left in reversed(range(_TRIES)):
            if files.try_lock(fd):
                break
            if not left:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            time.sleep(_PAUSE)
        yield


def _signatures(node: Path) -> tuple[DiskSignature, ...]:
    said = run(["wipefs", "--no-act", "--json", "--output", "TYPE,OFFSET,UUID,LABEL", str(node)])
    try:
        return tuple(msgspec.json.decode(said or "{}", type=_Signatures).signatures)
    except msgspec.MsgspecError as failure:
        raise HostError(f"cannot understand what wipefs says of {node}: {failure}") from failure
