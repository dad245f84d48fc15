"""inotify(7) for asyncio: the kernel reports changes in directories, without polling."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import struct
from types import TracebackType

_libc = ctypes.CDLL(None, use_errno=True)
_HEAD = struct.Struct("iIII")
MODIFY = 0x2
CLOSE_WRITE = 0x8
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
ONLYDIR = 0x01000000
DONT_FOLLOW = 0x02000000


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class Inotify:
    """Watches of files and directories behind one descriptor. Use it as a context manager."""

    def __init__(self) -> None:
        fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            number = ctypes.get_errno()
            hint = ": raise fs.inotify.max_user_instances" if number == errno.EMFILE else ""
            raise OSError(number, f"inotify: {os.strerror(number)}{hint}")
        self._fd = fd

    def add(self, path: str, mask: int) -> int:
        """Watch path; watching it again changes the mask. Returns the watch's number. Raises: OSError."""
        watch = int(_libc.inotify_add_watch(self._fd, os.fsencode(path), mask))
        if watch < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        return watch

    async def wait(self) -> set[str]:
        """Wait until something changes; return the names concerned ("" for a watched file itself).

        Names are only hints: after an overflow some are missing, so read the directory.
        """
        loop = asyncio.get_running_loop()
        while not (names := self._read()):
            ready: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._fd, _wake, ready)
            try:
                await ready
            finally:
                loop.remove_reader(self._fd)
        return names

    def _read(self) -> set[str]:
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return set()
        names, at = set(), 0
        while at < len(data):
            _, _, _, size = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            names.add(os.fsdecode(data[at : at + size].rstrip(b"\0")))
            at += size
        return names

    def close(self) -> None:
        """End all watches. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Inotify:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
