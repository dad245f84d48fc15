"""What a container with a device may do to it."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tonnage.errors import Unsupported
from tonnage.host import loop
from tonnage.kubelet import seccomp

_TRIES = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
print(len(os.pread(fd, 4096, 0)))
for number in (0x4C01, 0x4C00, 0x4C05, 0x4C0A, 0x4C08, 0x1_0000_4C01):
    try:
        fcntl.ioctl(fd, number & 0xFFFFFFFF, bytearray(512))
        print("done")
    except OSError as failure:
        print(failure.errno)
"""


@pytest.mark.real
def test_a_container_cannot_detach_its_device(real_folder: Path, need_program: Callable[[str], None]) -> None:
    need_program("bwrap")
    image = real_folder / "image"
    image.write_bytes(bytes(1 << 20))
    with image.open("r+b") as file:
        device = loop.attach(file.fileno(), str(image))
    filter_fd = os.memfd_create("filter")
    try:
        os.write(filter_fd, seccomp.without_loop_ioctls(os.uname().machine))
        os.lseek(filter_fd, 0, os.SEEK_SET)
        ended = subprocess.run(
            ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--dev-bind", device.path, "/dev/volume",
             "--seccomp", str(filter_fd), "/usr/bin/python3", "-c", _TRIES, "/dev/volume"],
            pass_fds=(filter_fd,), capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert loop.backs(device.index, image)
    finally:
        os.close(filter_fd)
        device.close()
    assert ended.stdout.split() == ["4096", *["1"] * 6]  # reads, and EPERM each time


def test_the_program_is_whole_instructions_that_jump_forward_inside() -> None:
    program = seccomp.without_loop_ioctls("x86_64")
    steps = list(struct.iter_unpack("=HBBI", program))
    for at, (code, then, otherwise, _) in enumerate(steps):
        assert code in (0x20, 0x54, 0x15, 0x35, 0x06)
        assert at + 1 + max(then, otherwise) <= len(steps) - (code != 0x06)


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="raw block volumes are not given to containers on vax"):
        seccomp.without_loop_ioctls("vax")
