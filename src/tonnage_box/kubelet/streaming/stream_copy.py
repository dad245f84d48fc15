"""Copies between a process's descriptors and a client's streams."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import termios
from collections.abc import Callable

from tonnage_box.api.remote_command import Streams

CHUNK = 32 << 10
_MAX_SIZE = 0xFFFF


def read_part(fd: int) -> bytes | None:
    """What is there, b"" at the end (a terminal's is EIO), None if nothing is there yet. fd does not block."""
    try:
        return os.read(fd, CHUNK)
    except BlockingIOError:
        return None
    except OSError as failure:
        if failure.errno == errno.EIO:
            return b""
        raise


async def copy_output(fd: int, channel: int, streams: Streams, ended: asyncio.Event) -> None:
    """Send output until its end, or, once `ended` is set, what was written before. Raises: ConnectionError.

    A process that the command has left in the background may hold the descriptor for ever.
    """
    while True:
        is_last = ended.is_set()
        data = read_part(fd)
        if data:
            await streams.send(channel, data)
        elif data is not None or is_last:
            return
        else:
            await _wait(fd, ended)


async def _wait(fd: int, ended: asyncio.Event) -> None:
    """Wait until fd can be read or `ended` is set."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(fd, _resolve, ready)
    ending = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait({ready, ending}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(fd)
        ending.cancel()
        ready.cancel()


async def write_all(fd: int, data: bytes) -> None:
    """Write everything to a descriptor that does not block. Raises: OSError (the reader is gone)."""
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            ready = loop.create_future()
            loop.add_writer(fd, _resolve, ready)
            try:
                await ready
            finally:
                loop.remove_writer(fd)


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def copy_input(streams: Streams, stdin: Callable[[], int], end: Callable[[], None], terminal: int) -> None:
    """Write a client's input until it is gone. stdin(): its descriptor, -1: closed; end(): closes it."""
    while (message := await streams.receive()) is not None:
        if message.size is not None and terminal >= 0:
            resize(terminal, message.size)
        if message.data and (fd := stdin()) >= 0:
            try:
                await write_all(fd, message.data)
            except OSError:  # the command does not read any more; its output goes on
                end()
        if message.is_end:
            end()


def resize(terminal: int, size: tuple[int, int]) -> None:
    """Set the size (columns, rows) of a terminal."""
    columns, rows = (min(max(number, 0), _MAX_SIZE) for number in size)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
