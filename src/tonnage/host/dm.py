"""Device-mapper by ioctl (linux/dm-ioctl.h): who uses a device, how full a thin pool is, without starting a program."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from dataclasses import dataclass

from tonnage.errors import HostError

CONTROL = "/dev/mapper/control"
_DEV_STATUS, _TABLE_STATUS = 0xC138FD07, 0xC138FD0C
_HEAD = struct.Struct("=3I2I1IiIIIQ128s129s7x")  # struct dm_ioctl
_TARGET = struct.Struct("=QQiI16s")  # struct dm_target_spec
_SIZE = 16 * 1024


def _ask(command: int, name: str) -> bytes | None:
    """The kernel's answer about a device, None when there is none of that name. Raises HostError."""
    head = _HEAD.pack(4, 0, 0, _SIZE, _HEAD.size, 0, 0, 0, 0, 0, 0, name.encode(), b"")
    buffer = bytearray(head.ljust(_SIZE, b"\0"))
    try:
        fd = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, command, buffer)
        finally:
            os.close(fd)
    except OSError as failure:
        if failure.errno == errno.ENXIO:
            return None
        raise HostError(f"cannot ask device-mapper about {name}: {failure.strerror}") from failure
    return bytes(buffer)


def open_count(name: str) -> int:
    """How many have the device open: mounts in any namespace, processes, other devices; 0 when it does not exist.

    Raises HostError.
    """
    answer = _ask(_DEV_STATUS, name)
    return _HEAD.unpack_from(answer)[6] if answer else 0


def status(name: str) -> tuple[str, str] | None:
    """Type and status line of a device's first target, None when there is no such device. Raises HostError."""
    answer = _ask(_TABLE_STATUS, name)
    if answer is None or not _HEAD.unpack_from(answer)[5]:
        return None
    start = _HEAD.unpack_from(answer)[4]
    kind = _TARGET.unpack_from(answer, start)[4]
    line = answer[start + _TARGET.size :].split(b"\0", 1)[0]
    return kind.rstrip(b"\0").decode(), line.decode(errors="replace")


@dataclass(frozen=True)
class ThinPool:
    """How full a thin pool is, each from 0 to 1. writable: whether it takes writes."""

    data: float
    metadata: float
    writable: bool


def thin_pool(name: str) -> ThinPool | None:
    """The state of a thin pool (Documentation/admin-guide/device-mapper/thin-provisioning.rst), None when it is not
    active. A pool that has failed counts as full. Raises HostError."""
    found = status(name)
    if found is None or found[0] != "thin-pool":
        return None
    words = found[1].split()
    if len(words) < 6:  # "Fail" or "Error"
        return ThinPool(1.0, 1.0, writable=False)
    return ThinPool(_ratio(words[2]), _ratio(words[1]), writable="rw" in words)


def _ratio(text: str) -> float:
    used, _, total = text.partition("/")
    return int(used) / max(1, int(total))
