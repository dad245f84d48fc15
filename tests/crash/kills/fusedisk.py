"""A disk that remembers the order of all that is written to it: a file of a FUSE file system of our own, for a loop
device. So it can be had as it was at each moment, with or without what was written since the last flush.

The protocol is spoken over /dev/fuse as linux/fuse.h has it; the server is a process of its own, as the kernel waits
for it while we wait for the kernel. Needs root and fuse in the kernel, no program.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import stat
import struct
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tonnage.host import libc, mount

NAME = "disk"
BLOCK = 4096
_ROOT, _DISK = 1, 2
_IN, _OUT = struct.Struct("=IIQQIIII"), struct.Struct("=IiQ")
_ATTR = struct.Struct("=6Q10I")
_LOOKUP, _FORGET, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _STATFS = 1, 2, 3, 4, 14, 15, 16, 17
_RELEASE, _FSYNC, _FLUSH, _INIT, _ACCESS, _INTERRUPT, _DESTROY, _BATCH_FORGET, _FALLOCATE = (
    18,
    20,
    25,
    26,
    34,
    36,
    38,
    42,
    43,
)
_OPENDIR, _READDIR, _RELEASEDIR = 27, 28, 29
_DIRECT_IO, _PUNCH, _ZERO = 1, 2, 16
_MOST = 1024**2  # bytes of a write
_FOREVER = 2**31
_ENTRY = struct.Struct("=BQI")
_WRITTEN, _FLUSHED, _CLEARED = 0, 1, 2


@dataclass(frozen=True)
class Event:
    """Something the disk was told. at: bytes of the log before it. data: what was written at offset; None with a
    length: made zero; with neither: flushed."""

    at: int
    offset: int = 0
    length: int = 0
    data: bytes | None = None

    @property
    def content(self) -> bytes:
        """What is on the disk there now."""
        return self.data if self.data is not None else bytes(self.length)

    @property
    def is_flush(self) -> bool:
        """Whether all before it is on the disk for good."""
        return not self.length


class Disk:
    """A disk, mounted as the file `path`. log: a file that all it is told is appended to, None for none. known: seconds
    for which the kernel does not ask again what a file is."""

    def __init__(self, folder: Path, log: Path | None = None, *, known: int = _FOREVER) -> None:
        self.path = folder / NAME
        self._folder = folder
        self._log = log
        self._known = known
        self._server = 0

    def start(self, content: Path, changes: Sequence[Event] = ()) -> None:
        """Serve a disk that has at the beginning what is in a file, which stays as it is, and then some changes."""
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={fd},rootmode=40000,user_id=0,group_id=0"
        try:
            libc.mount(b"disk", os.fsencode(self._folder), b"fuse", 0, options.encode())  # it cannot be read before
            self._server = os.fork()
            if self._server == 0:
                try:
                    _die_with_parent()
                    _serve(fd, content, changes, self._log, self._known)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)
        finally:
            os.close(fd)

    @property
    def written(self) -> int:
        """Bytes of the log: this moment."""
        return os.stat(self._log).st_size if self._log is not None and self._log.exists() else 0

    def stop(self) -> None:
        """Serve it no more. It must not be in use. Ends also while another mount namespace has a copy of the mount.

        The connection ends with its server. Never by its number: that is given to the next disk, of another test, once
        this one is unmounted.
        """
        self.kill()
        mount.umount(self._folder, lazy=True)

    @contextmanager
    def hangs(self) -> Iterator[None]:
        """It answers nothing while the body runs."""
        os.kill(self._server, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._server, signal.SIGCONT)

    def kill(self) -> None:
        """End its server. All that has it mounted gets ENOTCONN from then on. Idempotent."""
        if self._server:
            os.kill(self._server, signal.SIGKILL)
            os.waitpid(self._server, 0)
        self._server = 0


def _serve(fd: int, content: Path, changes: Sequence[Event], log: Path | None, known: int) -> None:
    with open(content, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    for event in changes:
        memory[event.offset : event.offset + event.length] = event.content
    _Server(fd, memory, log, known).serve()


def _die_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def events(log: Path) -> Iterator[Event]:
    """All that a disk was told, in order."""
    with open(log, "rb") as file:
        while head := file.read(_ENTRY.size):
            kind, offset, length = _ENTRY.unpack(head)
            at = file.tell() - _ENTRY.size
            yield Event(at, offset, length, file.read(length) if kind == _WRITTEN else None)


class _Server:
    def __init__(self, fd: int, memory: mmap.mmap, log: Path | None, known: int) -> None:
        self._fd = fd
        self._known = known
        self._memory = memory
        self._log = -1 if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def serve(self) -> None:
        """Until it is unmounted."""
        while True:
            try:
                request = os.read(self._fd, _MOST + 65536)
            except OSError as failure:
                if failure.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                return  # ENODEV: unmounted
            _, code, unique, node, *_ = _IN.unpack_from(request)
            if code in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                continue
            try:
                answer, number = self._answer(code, node, memoryview(request)[_IN.size :]), 0
            except OSError as failure:
                answer, number = b"", failure.errno or errno.EIO
            try:
                os.write(self._fd, _OUT.pack(_OUT.size + len(answer), -number, unique) + answer)
            except FileNotFoundError:
                continue  # interrupted meanwhile
            if code == _DESTROY:
                return

    def _answer(self, code: int, node: int, body: memoryview) -> bytes:
        if code == _INIT:
            flags = 1 << 5 | 1 << 22  # big writes, as many pages as max_pages says
            return struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, flags, 12, 9, _MOST, 1, _MOST // BLOCK, 0, 0)
        if code == _LOOKUP:
            if bytes(body).rstrip(b"\0") != NAME.encode():
                raise OSError(errno.ENOENT, "")
            return struct.pack("=QQQQII", _DISK, 0, self._known, self._known, 0, 0) + self._attributes(_DISK)
        if code in (_GETATTR, _SETATTR):
            return struct.pack("=QII", self._known, 0, 0) + self._attributes(node)
        if code == _OPEN:
            return struct.pack("=QII", 0, _DIRECT_IO, 0)
        if code == _STATFS:
            blocks = len(self._memory) // BLOCK
            return struct.pack("=5Q4I24x", blocks, blocks, blocks, 0, 0, BLOCK, 255, BLOCK, 0)
        if code == _OPENDIR:
            return struct.pack("=QII", 0, 0, 0)
        if code in (_RELEASE, _FLUSH, _ACCESS, _DESTROY, _READDIR, _RELEASEDIR):  # a folder shows no name
            return b""
        return self._data(code, body)

    def _data(self, code: int, body: memoryview) -> bytes:
        if code == _READ:
            _, offset, size = struct.unpack_from("=QQI", body)
            return self._memory[offset : offset + size]
        if code == _WRITE:
            _, offset, size = struct.unpack_from("=QQI", body)
            data = body[40 : 40 + size]
            self._memory[offset : offset + size] = data
            self._tell(_WRITTEN, offset, size, data)
            return struct.pack("=II", size, 0)
        if code == _FSYNC:
            self._tell(_FLUSHED, 0, 0)
            return b""
        if code == _FALLOCATE:
            return self._clear(*struct.unpack_from("=QQQI", body)[1:])
        raise OSError(errno.ENOSYS, "")

    def _clear(self, offset: int, length: int, mode: int) -> bytes:
        if not mode & (_PUNCH | _ZERO):
            raise OSError(errno.EOPNOTSUPP, "")
        for start in range(offset, offset + length, _MOST):
            count = min(_MOST, offset + length - start)
            self._memory[start : start + count] = bytes(count)
            self._tell(_CLEARED, start, count)
        return b""

    def _tell(self, kind: int, offset: int, length: int, data: memoryview | bytes = b"") -> None:
        if self._log >= 0:
            os.writev(self._log, [_ENTRY.pack(kind, offset, length), data])

    def _attributes(self, node: int) -> bytes:
        size = len(self._memory) if node == _DISK else 0
        mode = stat.S_IFREG | 0o600 if node == _DISK else stat.S_IFDIR | 0o700
        return _ATTR.pack(node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, BLOCK, 0)
