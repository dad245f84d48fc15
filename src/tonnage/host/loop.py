"""Loop devices by ioctl (linux/loop.h): a file as a block device. Blocking.

Loop devices are global, not per namespace. One attached with `autoclear` detaches itself when its last user closes it.
So the kernel frees what a killed process leaves, and umount frees the device.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import struct
import threading
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache

from tonnage.base.errors import HostError, host_errors, ignore_errno
from tonnage.host.descriptor import opened
from tonnage.host.device import find

log = logging.getLogger(__name__)

CONTROL = "/dev/loop-control"
BLOCK_SIZE = 4096
"""Logical block size of all our devices: the one that works on every pool's file system, reflinked XFS included."""
MAJOR = 7

_CTL_GET_FREE = 0x4C82
_CONFIGURE, _CLEAR, _GET_STATUS, _SET_CAPACITY = 0x4C0A, 0x4C01, 0x4C05, 0x4C07
_READ_ONLY, _AUTOCLEAR, _DIRECT_IO = 1, 4, 16
_INFO = struct.Struct("=QQQQQIIII64s64s32s2Q")  # struct loop_info64
_CONFIG = struct.Struct(f"=II{_INFO.size}s64x")  # struct loop_config
_TRIES = 128
_FREE = (errno.ENXIO, errno.ENOENT, errno.ENODEV, errno.EACCES, errno.EPERM)  # or not for us to see
_DELETED = " (deleted)"
_attaching = threading.Lock()  # or all threads would get the same free device


@dataclass(frozen=True)
class LoopDevice:
    """An attached device. `fd` holds it open; close it when a mount holds it, or it is not needed."""

    index: int
    fd: int

    @property
    def path(self) -> str:
        """Its device node."""
        return device(self.index)

    def close(self) -> None:
        """Close the device; an unused autoclear device is freed."""
        os.close(self.fd)


def device(index: int) -> str:
    """The device node of loop device number index."""
    return f"/dev/loop{index}"


def attach(fd: int, name: str, *, readonly: bool = False, autoclear: bool = True) -> LoopDevice:
    """Attach the open file fd, with direct I/O where its file system supports it. name: for people.

    Raises: HostError.
    """
    flags = (_READ_ONLY if readonly else 0) | (_AUTOCLEAR if autoclear else 0)
    with host_errors(f"cannot attach {name} to a loop device"):
        try:
            return _attach(fd, name, flags | _DIRECT_IO)
        except OSError as failure:
            if failure.errno != errno.EINVAL:
                raise
            return _attach(fd, name, flags)  # a file system without direct I/O, as tmpfs


def _attach(fd: int, name: str, flags: int) -> LoopDevice:
    info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, flags, os.fsencode(name)[-63:], b"", b"", 0, 0)
    config = _CONFIG.pack(fd, BLOCK_SIZE, info)
    with opened(CONTROL, os.O_RDWR) as control:
        for _ in range(_TRIES):
            with _attaching:
                index = fcntl.ioctl(control, _CTL_GET_FREE)
                loop = LoopDevice(index, _open(index))
                try:
                    fcntl.ioctl(loop.fd, _CONFIGURE, config)
                except OSError as failure:
                    loop.close()
                    if failure.errno != errno.EBUSY:  # busy: another process took it, ask for the next
                        raise
                else:
                    return loop
        raise OSError(errno.EBUSY, f"every free device was taken by others, {_TRIES} times")


def _open(index: int) -> int:
    """Open a device node; it is made where /dev is a container's own, without new devices."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(device(index), flags)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mknod(device(index), stat.S_IFBLK | 0o600, os.makedev(MAJOR, index << _part_shift()))
        return os.open(device(index), flags)


def detach(index: int) -> None:
    """Detach a device; one in use is freed when its last user closes it. Success when it is free.

    Raises: HostError.
    """
    with (
        host_errors(f"cannot free {device(index)}"),
        ignore_errno(errno.ENOENT, errno.ENXIO),
        opened(device(index)) as fd,
    ):
        fcntl.ioctl(fd, _CLEAR, 0)


def set_capacity(index: int) -> None:
    """Update the device to the new size of its file. Success when it is free, as after the last umount.

    Raises: HostError.
    """
    with (
        host_errors(f"cannot set the capacity of {device(index)}"),
        ignore_errno(errno.ENOENT, errno.ENXIO),
        opened(device(index)) as fd,
    ):
        fcntl.ioctl(fd, _SET_CAPACITY, 0)


def backing(index: int) -> str | None:
    """The path of the file behind a device, None when it is free. A deleted file has its former path.

    Raises: HostError when that cannot be read.
    """
    return _backing(index).removesuffix(_DELETED) or None


def _identifying(index: int) -> AbstractContextManager[None]:
    return host_errors(f"cannot see what is behind {device(index)}")


def _backing(index: int) -> str:
    path = f"/sys/block/loop{index}/loop/backing_file"
    with _identifying(index), ignore_errno(*_FREE), open(path, "rb") as file:
        return os.fsdecode(file.read().removesuffix(b"\n"))
    return ""


def lies_in(index: int, folder: str | os.PathLike[str]) -> bool:
    """Whether the file behind a device is in that directory, or was until it was removed.

    The path alone does not prove it: another mount namespace (a container) may have a directory of the same path.
    Raises: HostError when that cannot be read.
    """
    path = _backing(index)
    is_deleted = path.endswith(_DELETED)
    path = path.removesuffix(_DELETED)
    if os.path.dirname(path) != os.fspath(folder):
        return False
    if not is_deleted:
        return backs(index, path)
    if (found := find(folder)) is None:
        return False
    file = identity(index)
    return file is not None and file[0] == found.st_dev


def identity(index: int) -> tuple[int, int] | None:
    """Device and inode number of the file behind a device, as in os.stat(); None when it is free.

    Unlike its path they have the same meaning in every mount namespace, also after that of the attaching process is
    gone. Raises: HostError when that cannot be read.
    """
    if (info := _status(index)) is None:
        return None
    number = info[0]  # new_encode_dev of the kernel
    return os.makedev((number >> 8) & 0xFFF, (number & 0xFF) | (number >> 12) & 0xFFF00), info[1]


def _status(index: int) -> tuple[int, ...] | None:
    """struct loop_info64 of a device, None when it is free. Raises: HostError."""
    with _identifying(index), ignore_errno(*_FREE), opened(device(index)) as fd:
        return _INFO.unpack(fcntl.ioctl(fd, _GET_STATUS, bytes(_INFO.size)))
    return None


def _has(index: int, flag: int) -> bool:
    info = _status(index)
    return info is not None and bool(info[8] & flag)


def of_file(path: str | os.PathLike[str]) -> list[int]:
    """The devices with the file at path behind them. Raises: HostError when that cannot be read."""
    if (found := find(path, follow=False)) is None:
        return []
    return list(of_files({(found.st_dev, found.st_ino)}, os.path.dirname(path)))


def of_files(files: Collection[tuple[int, int]], folder: str | os.PathLike[str]) -> Iterator[int]:
    """The devices with one of these files (device and inode numbers) of a directory behind them.

    Raises: HostError when a device that names a file of that directory cannot be read. Failures of other devices are
    ignored: a foreign file system whose disk is gone must not stop us.
    """
    for index, name in attached():
        try:
            if identity(index) in files:
                yield index
        except HostError as failure:
            if os.path.dirname(name) == os.fspath(folder):
                raise
            log.warning("loop device is out of order, and not ours device=%s error=%s", device(index), failure)


def backs(index: int, path: str | os.PathLike[str]) -> bool:
    """Whether the file at path is behind a device. Raises: HostError when that cannot be read."""
    found = find(path, follow=False)
    return found is not None and identity(index) == (found.st_dev, found.st_ino)


def is_autoclear(index: int) -> bool:
    """Whether a device frees itself when its last user closes it. Raises: HostError."""
    return _has(index, _AUTOCLEAR)


def is_readonly(index: int) -> bool:
    """Whether a device rejects writes; a free one does not. Raises: HostError."""
    return _has(index, _READ_ONLY)


@cache
def _part_shift() -> int:
    """Bits of a minor number for partitions (the module's max_part), the distance of devices."""
    with suppress(OSError, ValueError), open("/sys/module/loop/parameters/max_part") as file:
        return int(file.read()).bit_length()
    return 0


def index_of(number: int) -> int | None:
    """The index of the loop device with that device number, None for another device."""
    return os.minor(number) >> _part_shift() if os.major(number) == MAJOR else None


def most() -> int:
    """Maximum number of loop devices, 0 for as many as minor numbers.

    `max_loop` does not limit devices from loop-control, only those that are made when their node is opened.
    """
    return 1 << (20 - _part_shift()) if _part_shift() else 0


def attached() -> Iterator[tuple[int, str]]:
    """All devices in use on this machine with the paths of their files."""
    for entry in os.scandir("/sys/block"):
        if entry.name.startswith("loop") and entry.name[4:].isdigit() and (path := backing(int(entry.name[4:]))):
            yield int(entry.name[4:]), path
