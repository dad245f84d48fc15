"""The C library by ctypes: system calls that Python does not offer. Calls release the GIL."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc.statx.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p]
_libc.fallocate64.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_libc.fstatfs.argtypes = [ctypes.c_int, ctypes.c_char_p]
PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """A system call by its number. Raises: OSError."""
    words: list[Any] = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *words))


def mount(source: bytes | None, target: bytes, fstype: bytes | None, flags: int, data: bytes | None) -> None:
    """Mount a file system. Raises: OSError."""
    _checked(_libc.mount(source, target, fstype, flags, data))


def umount2(target: bytes, flags: int) -> None:
    """Unmount with flags. Raises: OSError."""
    _checked(_libc.umount2(target, flags))


def unshare(flags: int) -> None:
    """Leave what this thread shares with others, by flags as CLONE_FS (unshare(2)). Raises: OSError."""
    _checked(_libc.unshare(flags))


def setns(fd: int, flags: int) -> None:
    """Join namespaces of a pidfd's process, by flags as CLONE_NEWNS (setns(2)); needs Linux 5.8. Raises: OSError."""
    _checked(_libc.setns(fd, flags))


def statx(directory: int, path: bytes, flags: int, mask: int) -> bytes:
    """Read the 256 bytes of struct statx. Raises: OSError."""
    buffer = ctypes.create_string_buffer(256)
    _checked(_libc.statx(directory, path, flags, mask, buffer))
    return buffer.raw


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """Allocate, with modes that posix_fallocate lacks, as PUNCH_HOLE. Raises: OSError."""
    _checked(_libc.fallocate64(fd, mode, offset, length))


def fstatfs_type(fd: int) -> int:
    """The f_type of fstatfs(2): the file system of an open file, as in linux/magic.h. Raises: OSError."""
    buffer = ctypes.create_string_buffer(256)
    _checked(_libc.fstatfs(fd, buffer))
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF


def syncfs(fd: int) -> None:
    """Sync the file system of an open file. Raises: OSError."""
    _checked(_libc.syncfs(fd))


def ioctl(fd: int, request: int, buffer: bytearray) -> None:
    """An ioctl with a buffer of any length: Python's own holds the GIL for more than 1024 bytes. Raises: OSError."""
    arguments = (ctypes.c_char * len(buffer)).from_buffer(buffer)
    _checked(_libc.ioctl(fd, ctypes.c_ulong(request), arguments))
