"""Device mapper by ioctl (linux/dm-ioctl.h): users of a device, fullness of a thin pool. Starts no program."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from dataclasses import dataclass

from tonnage.base.errors import HostError, PreconditionError, host_errors, ignore_errno
from tonnage.host.descriptor import opened

CONTROL = "/dev/mapper/control"
_DEV_STATUS, _TABLE_STATUS, _TARGET_MESSAGE = 0xC138FD07, 0xC138FD0C, 0xC138FD0E
_HEAD = struct.Struct("=3I2I1IiIIIQ128s129s7x")  # struct dm_ioctl
_TARGET = struct.Struct("=QQiI16s")  # struct dm_target_spec
_MESSAGE = struct.Struct("=Q")  # struct dm_target_msg, without its text
_SIZE = 16 * 1024


def _call(command: int, name: str, payload: bytes = b"") -> bytes:
    """The kernel's response for a device. Raises: OSError, ENXIO when there is none of that name."""
    head = _HEAD.pack(4, 0, 0, _SIZE, _HEAD.size, 0, 0, 0, 0, 0, 0, name.encode(), b"")
    buffer = bytearray((head + payload).ljust(_SIZE, b"\0"))
    with opened(CONTROL, os.O_RDWR) as fd:
        fcntl.ioctl(fd, command, buffer)
    return bytes(buffer)


def _ask(command: int, name: str) -> bytes | None:
    """The kernel's response for a device, None when there is none of that name. Raises: HostError."""
    with host_errors(f"cannot ask device-mapper about {name}"), ignore_errno(errno.ENXIO):
        return _call(command, name)
    return None


def open_count(name: str) -> int:
    """Number of open references of a device (mounts in any namespace, processes, devices); 0 if it does not exist.

    Raises: HostError.
    """
    answer = _ask(_DEV_STATUS, name)
    return _HEAD.unpack_from(answer)[6] if answer else 0


def status(name: str) -> tuple[str, str] | None:
    """Type and status line of a device's first target, None when there is no such device. Raises: HostError."""
    answer = _ask(_TABLE_STATUS, name)
    if answer is None or not _HEAD.unpack_from(answer)[5]:
        return None
    start = _HEAD.unpack_from(answer)[4]
    kind = _TARGET.unpack_from(answer, start)[4]
    line = answer[start + _TARGET.size :].split(b"\0", 1)[0]
    return kind.rstrip(b"\0").decode(), line.decode(errors="replace")


@dataclass(frozen=True)
class ThinPool:
    """Fullness of a thin pool, from 0 to 1.

    writable: whether it takes writes. transaction: LVM's transaction id, -1 where it is unknown.
    """

    data: float
    metadata: float
    writable: bool
    transaction: int = -1


def thin_pool(name: str) -> ThinPool | None:
    """The state of a thin pool, None when it is not active. A failed pool counts as full. Raises: HostError.

    Documentation/admin-guide/device-mapper/thin-provisioning.rst
    """
    found = status(name)
    if found is None or found[0] != "thin-pool":
        return None
    words = found[1].split()
    if len(words) < 6:  # "Fail" or "Error"
        return ThinPool(1.0, 1.0, writable=False)
    return ThinPool(_ratio(words[2]), _ratio(words[1]), writable="rw" in words, transaction=int(words[0]))


def thin_mapped(name: str) -> int:
    """Mapped sectors of a thin volume's device: 0 if it was never written.

    Raises: HostError, also where there is no such device or it has failed.
    """
    found = status(name)
    words = found[1].split() if found and found[0] == "thin" else []
    if not words or not words[0].isdigit():
        raise HostError(f"{name} is no thin volume that can be looked at (dmsetup status): {found}")
    return int(words[0])


def delete_thin(pool: str, number: int) -> bool:
    """Delete a thin device from an active thin pool by its number; return whether it existed.

    Raises: PreconditionError while it is active, HostError.
    """
    with host_errors(f"cannot remove device {number} of thin pool {pool}"), ignore_errno(errno.ENODATA):
        try:
            _send(pool, f"delete {number}")
        except OSError as failure:
            if failure.errno != errno.EBUSY:
                raise
            raise PreconditionError(f"device {number} of thin pool {pool} is in use") from failure
        return True
    return False


def set_transaction(pool: str, before: int, after: int) -> None:
    """Set the transaction id of an active thin pool, if it is `before`. Raises: HostError."""
    with host_errors(f"thin pool {pool} does not take transaction {after}"):
        _send(pool, f"set_transaction_id {before} {after}")


def _send(name: str, text: str) -> None:
    """A message to a device's target. Raises: OSError."""
    _call(_TARGET_MESSAGE, name, _MESSAGE.pack(0) + text.encode() + b"\0")


def _ratio(text: str) -> float:
    used, _, total = text.partition("/")
    return int(used) / max(1, int(total))
