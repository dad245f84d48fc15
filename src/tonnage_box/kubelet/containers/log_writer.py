"""Log writer: a container's stdout and stderr in a rotated log file in CRI format.

    2026-01-02T03:04:05.678901234Z stdout F a whole line
    2026-01-02T03:04:05.678901234Z stderr P the first part of a longer one

The container has each pipe open for reading too, so nothing breaks while no kubelet reads: it runs on
until the pipe is full, and waits for the next kubelet then. What was read of a line that has no end yet is in a file
next to the pipe: the kubelet may be killed before the end comes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

log = logging.getLogger(__name__)
ROTATE = 10 << 20
"""Bytes of a log file after which it becomes `<file>.1` in place of the last one."""
LONGEST = 16 << 10
"""Maximum bytes of a line in one entry."""
_CHUNK = 64 << 10
_ENTRY = ("time", "stream", "tag", "line")
_TAIL, _TAIL_LINES, _TAIL_READ = 2048, 80, 128 << 10


def stamp(nanos: int) -> bytes:
    """Nanoseconds since the epoch as RFC 3339 with nine digits."""
    seconds, rest = divmod(nanos, 10**9)
    return time.strftime(f"%Y-%m-%dT%H:%M:%S.{rest:09d}Z", time.gmtime(seconds)).encode()


def tail(path: str) -> str:
    """What a container wrote last: 80 lines and 2048 bytes at most (readLastStringFromContainerLogs). Blocking."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_READ))
            entries = file.read().split(b"\n")[-_TAIL_LINES - 1 : -1]
    except OSError:
        return ""
    parts = [entry.split(b" ", 3) for entry in entries]
    text = b"".join(part[3] + b"\n" * (part[2] == b"F") for part in parts if len(part) == len(_ENTRY))
    return text[-_TAIL:].decode(errors="replace")


class LogLines:
    """Cuts a stream into CRI lines. Sans-I/O."""

    def __init__(self, stream: bytes, rest: bytes = b"") -> None:
        """rest: what an earlier process has read of a line."""
        self._stream = stream
        self.stream = stream.decode()
        self.rest = rest
        """What has come of a line so far."""

    def feed(self, data: bytes, now: bytes) -> bytes:
        """Whole lines of what has come so far, formatted; parts of very long ones too."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        out = []
        for line in lines:
            while len(line) > LONGEST:
                out.append(self._format(line[:LONGEST], now, b"P"))
                line = line[LONGEST:]
            out.append(self._format(line, now, b"F"))
        while len(self.rest) > LONGEST:
            out.append(self._format(self.rest[:LONGEST], now, b"P"))
            self.rest = self.rest[LONGEST:]
        return b"".join(out)

    def end(self, now: bytes) -> bytes:
        """What is left without an end of line."""
        rest, self.rest = self.rest, b""
        return self._format(rest, now, b"P") if rest else b""

    def _format(self, line: bytes, now: bytes, tag: bytes) -> bytes:
        return b"%s %s %s %s\n" % (now, self._stream, tag, line)


class LogFile:
    """Appends to a file and rotates it. A full disk loses lines, never the container."""

    def __init__(self, path: str, *, rotate: int = ROTATE) -> None:
        self._path = path
        self._rotate = rotate
        self._failed = False
        os.makedirs(os.path.dirname(path), mode=0o750, exist_ok=True)
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)

    def write(self, data: bytes) -> None:
        """Append whole lines."""
        try:
            if self._size > self._rotate:
                os.rename(self._path, f"{self._path}.1")
                os.close(self._fd)
                self._fd = self._open()
                self._size = 0
            self._size += os.write(self._fd, data)
            self._failed = False
        except OSError as failure:
            if not self._failed:
                log.warning("log lines lost file=%s error=%s", self._path, failure.strerror)
            self._failed = True

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class UnfinishedLine:
    """The file that has what was read of a line. It is not touched while lines come whole."""

    def __init__(self, path: str) -> None:
        self._path, self._fd, self._length = path, -1, 0

    def load(self) -> bytes:
        """What an earlier process has saved."""
        with suppress(OSError), open(self._path, "rb") as file:
            found = file.read(LONGEST)
            self._length = len(found)
            return found
        return b""

    def save(self, rest: bytes) -> None:
        """Replace it. A full disk loses it, never the container."""
        if not rest and not self._length:
            return
        with suppress(OSError):
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            if len(rest) < self._length:
                os.ftruncate(self._fd, len(rest))
            self._length = os.pwrite(self._fd, rest, 0)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OutputTap(Protocol):
    """A client that is attached to a container's output."""

    def feed(self, stream: str, data: bytes) -> None:
        """Take output. It may call LogPump.pause()."""

    def end(self) -> None:
        """There is no more."""


class LogPump:
    """Copies the output of one container while the loop runs. pipes: stream name -> path of its FIFO.

    terminal: the kubelet's side of the container's terminal, in place of pipes. It is duplicated.
    """

    def __init__(
        self, pipes: dict[str, str], file: LogFile, *, now: Callable[[], int] = time.time_ns, terminal: int = -1
    ) -> None:
        self._file = file
        self._now = now
        self._streams: dict[int, LogLines] = {}
        self._unfinished: dict[int, UnfinishedLine] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        for name, path in pipes.items():
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            self._unfinished[fd] = UnfinishedLine(f"{path}.line")
            self._streams[fd] = LogLines(name.encode(), self._unfinished[fd].load())
        if terminal >= 0:
            self._streams[os.dup(terminal)] = LogLines(b"stdout")
        self.taps: set[OutputTap] = set()
        self._paused: set[OutputTap] = set()

    def start(self) -> None:
        """Begin to read; call it in the loop's thread."""
        self._loop = asyncio.get_running_loop()
        for fd in self._streams:
            self._loop.add_reader(fd, self._read, fd)

    def pause(self, tap: OutputTap) -> None:
        """Read no more until resume(): the container waits for a slow client. Idempotent."""
        if not self._paused:
            for fd in self._streams:
                self._unwatch(fd)
        self._paused.add(tap)

    def resume(self, tap: OutputTap) -> None:
        """Undo pause(). Idempotent."""
        if tap in self._paused:
            self._paused.discard(tap)
            if not self._paused:
                self.start()

    def _read(self, fd: int) -> bool:
        """Move one chunk; whether there was one."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # a terminal without a process
            data = b""
        if not data:  # all writing ends are closed
            self._unwatch(fd)
            return False
        for tap in tuple(self.taps):
            tap.feed(self._streams[fd].stream, data)
        if lines := self._streams[fd].feed(data, stamp(self._now())):
            self._file.write(lines)
        self._save(fd)
        return True

    def _save(self, fd: int) -> None:
        if (file := self._unfinished.get(fd)) is not None:
            file.save(self._streams[fd].rest)

    def finish(self) -> None:
        """The container has ended: move the rest and close. Idempotent."""
        for fd, lines in self._streams.items():
            while self._read(fd):
                continue
            if rest := lines.end(stamp(self._now())):
                self._file.write(rest)
            self._save(fd)
        self.close()

    def close(self) -> None:
        """Stop reading; what is in the pipes stays there. Idempotent."""
        if not self._streams:
            return
        for fd in self._streams:
            self._unwatch(fd)
            os.close(fd)
        self._streams.clear()
        for file in self._unfinished.values():
            file.close()
        for tap in tuple(self.taps):
            tap.end()
        self._file.close()

    def _unwatch(self, fd: int) -> None:
        if self._loop is not None:
            self._loop.remove_reader(fd)
