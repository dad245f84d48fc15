"""A filter of system calls for containers that are given a device: they use it, they do not rule it.

A raw block volume is a loop device, and who has one open may detach it from its file, whatever his capabilities. The
kernel then gives the same number to the next volume of the machine, perhaps another pod's, and the container still
holds the node. So ioctls of the loop driver are refused (EPERM). System calls of another architecture's table, which
would need a filter of their own, are refused as well (ENOSYS).
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass

from tonnage.errors import Unsupported

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06  # linux/bpf_common.h
_NUMBER, _ARCHITECTURE, _SECOND = 0, 4, 24  # offsets in struct seccomp_data; the low half of the second argument
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_FOREIGN = 0x40000000  # from here on x86's x32 table
_LOOP_IOCTLS, _MASK = 0x4C00, 0xFFFFFF00  # linux/loop.h: 'L' and a number


@dataclass(frozen=True)
class _Machine:
    """What linux/audit.h calls an architecture, and its number of ioctl. All are little endian."""

    audit: int
    ioctl: int


_MACHINES = {
    "x86_64": _Machine(0xC000003E, 16),
    "aarch64": _Machine(0xC00000B7, 29),
    "riscv64": _Machine(0xC00000F3, 29),
    "loongarch64": _Machine(0xC0000102, 29),
    "ppc64le": _Machine(0xC0000015, 54),
}


def without_loop_ioctls(machine: str) -> bytes:
    """The filter's program for a machine as os.uname() names it. Raises Unsupported for one that we do not know."""
    if (known := _MACHINES.get(machine)) is None:
        raise Unsupported(
            f"raw block volumes are not given to containers on {machine}: they could not be kept from each other"
        )
    foreign, denied = _ERRNO | errno.ENOSYS, _ERRNO | errno.EPERM
    steps = (
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, 7, known.audit),  # else: foreign
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 5, 0, _FOREIGN),  # then: foreign
        (_EQUAL, 0, 3, known.ioctl),  # else: allow
        (_LOAD, 0, 0, _SECOND),
        (_AND, 0, 0, _MASK),
        (_EQUAL, 2, 0, _LOOP_IOCTLS),  # then: denied
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, foreign),
        (_RETURN, 0, 0, denied),
    )
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
