"""Seccomp filter of containers: denies calls that would change the devices below their volumes.

A raw block volume is a loop device, and a process that has one open may detach it from its file without any capability.
The kernel then gives the same number to the next volume of the machine, perhaps another pod's, and the container still
has the node open. So ioctls of the loop driver fail (EPERM).

A volume of a btrfs pool is a subvolume with a limit, and a process that may write in it may create nested subvolumes,
which have no limit. So creating subvolumes and snapshots fails (EPERM).

System calls of another architecture's table, which would need a filter of their own, fail as well (ENOSYS).
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from tonnage.errors import UnsupportedError
from tonnage.host import btrfs
from tonnage.host.descriptor import opened

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06  # linux/bpf_common.h
_NUMBER, _ARCHITECTURE, _SECOND = 0, 4, 24  # offsets in struct seccomp_data; the low half of the second argument
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_FOREIGN = 0x40000000  # from here on x86's x32 table
_KIND_AND_NUMBER, _KIND = 0xFFFF, 0xFF00  # the upper half of an ioctl is the size of its argument and its direction
_LOOP = 0x4C00  # linux/loop.h
_SUBVOLUMES = (0x9401, 0x940E, 0x9417, 0x9418)  # linux/btrfs.h: SNAP_CREATE, SUBVOL_CREATE, and their V2
_TOP = 5  # BTRFS_FS_TREE_OBJECTID: a btrfs of the volume's own


@dataclass(frozen=True)
class _Machine:
    """An architecture as in linux/audit.h, and its number of ioctl. All are little endian."""

    audit: int
    ioctl: int


_MACHINES = {
    "x86_64": _Machine(0xC000003E, 16),
    "aarch64": _Machine(0xC00000B7, 29),
    "riscv64": _Machine(0xC00000F3, 29),
    "loongarch64": _Machine(0xC0000102, 29),
    "ppc64le": _Machine(0xC0000015, 54),
}


def program(machine: str) -> bytes:
    """The filter's program for a machine as os.uname() names it.

    Raises UnsupportedError for one that we do not know.
    """
    if (known := _MACHINES.get(machine)) is None:
        raise UnsupportedError(
            f"raw block volumes and btrfs subvolumes: not supported on {machine}: it has no system call filter; "
            "use volumes of another kind"
        )
    numbers = len(_SUBVOLUMES)
    allow = 9 + numbers
    foreign, denied = allow + 1, allow + 2
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, foreign - 2, known.audit),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, foreign - 4, 0, _FOREIGN),
        (_EQUAL, 0, allow - 5, known.ioctl),
        (_LOAD, 0, 0, _SECOND),
        (_AND, 0, 0, _KIND_AND_NUMBER),
        *((_EQUAL, denied - 8 - index, 0, number) for index, number in enumerate(_SUBVOLUMES)),
        (_AND, 0, 0, _KIND),
        (_EQUAL, denied - allow, 0, _LOOP),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def is_needed(sources: Iterable[str]) -> bool:
    """Whether one of these folders is in a subvolume that others share a btrfs with. Raises OSError."""
    return any(map(_is_subvolume, sources))


def _is_subvolume(source: str) -> bool:
    with suppress(NotADirectoryError), opened(source, os.O_DIRECTORY) as at:
        return btrfs.fsid(at) is not None and btrfs.subvolume_id(at) != _TOP
    return False
