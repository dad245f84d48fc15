"""System calls that Python lacks."""

from __future__ import annotations

import errno
import os
import struct
import termios
from pathlib import Path

import pytest

from tonnage.host import libc

AT_FDCWD = -100


def test_statx_is_what_stat_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1234)
    answer = libc.statx(AT_FDCWD, os.fsencode(tmp_path / "file"), 0, 0x7FF)
    assert int.from_bytes(answer[40:48], "little") == 1234


def test_a_hole_is_punched_and_the_length_stays(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"x" * (1 << 20))
        file.flush()
        libc.fallocate(file.fileno(), libc.PUNCH_HOLE, 0, 1 << 19)
        libc.syncfs(file.fileno())
        assert os.pread(file.fileno(), 4, 0) == b"\0" * 4
        assert os.fstat(file.fileno()).st_size == 1 << 20


def test_the_type_of_a_file_system() -> None:
    fd = os.open("/proc", os.O_RDONLY)
    try:
        assert libc.fstatfs_type(fd) == 0x9FA0
    finally:
        os.close(fd)


def test_failures_are_the_kernels() -> None:
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        libc.syncfs(-1)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(OSError, match=r"Invalid argument|not permitted|No such"):
        libc.mount(None, b"/missing", None, 0, None)
    with pytest.raises(OSError, match=r"Invalid argument|not permitted|No such"):
        libc.umount2(b"/missing", 0)


def test_an_ioctl_of_any_length_changes_its_buffer() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"abc")
        buffer = bytearray(4096)
        libc.ioctl(reader, termios.FIONREAD, buffer)
        assert struct.unpack_from("=i", buffer) == (3,)
        with pytest.raises(OSError, match="ioctl"):
            libc.ioctl(reader, termios.TIOCGWINSZ, buffer)
    finally:
        os.close(reader)
        os.close(writer)
