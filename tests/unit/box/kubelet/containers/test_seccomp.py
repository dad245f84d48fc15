"""What a container with a device may do to it."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.box.kubelet.containers import seccomp
from tonnage.errors import UnsupportedError
from tonnage.host import loop
from tonnage.pools.base.contract import PoolLimits, VolumeRequest
from tonnage.pools.base.reservation import Disks
from tonnage.pools.btrfs import backend as btrfs
from tonnage.pools.core.pool import Pool

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
def test_a_container_cannot_detach_its_device(real_folder: Path) -> None:
    need("bwrap")
    image = real_folder / "image"
    image.write_bytes(bytes(1 << 20))
    with image.open("r+b") as file:
        device = loop.attach(file.fileno(), str(image))
    try:
        said = _filtered(
            "--dev", "/dev", "--dev-bind", device.path, "/dev/volume", "/usr/bin/python3", "-c", _TRIES, "/dev/volume"
        )
        assert loop.backs(device.index, image)
    finally:
        device.close()
    assert said == ["4096", *["1"] * 6]  # reads, and EPERM each time


def _filtered(*arguments: str) -> list[str]:
    """What a command in bwrap under the filter says."""
    filter_fd = os.memfd_create("filter")
    try:
        os.write(filter_fd, seccomp.program(os.uname().machine))
        os.lseek(filter_fd, 0, os.SEEK_SET)
        command = ["bwrap", "--seccomp", str(filter_fd), "--ro-bind", "/", "/", *arguments]
        return subprocess.run(
            command, pass_fds=(filter_fd,), stdout=subprocess.PIPE, text=True, check=True
        ).stdout.split()
    finally:
        os.close(filter_fd)


_MAKES = """
import fcntl, os, struct, sys
at = os.open(sys.argv[1], os.O_RDONLY)
os.close(os.open(sys.argv[1] + "/file", os.O_CREAT))
for number in (0x5000940E, 0x50009418, 0x50009401, 0x50009417):
    try:
        fcntl.ioctl(at, number, bytearray(struct.pack("=q", at) + b"inner".ljust(4088, bytes(1))))
        print("made")
    except OSError as failure:
        print(failure.errno)
"""


@pytest.mark.real
async def test_a_container_cannot_escape_the_limit_of_a_subvolume(real_folder: Path) -> None:
    need("bwrap")
    need("mkfs.btrfs")
    pool = Pool(
        "p", btrfs.make_backend(real_folder / "pool", PoolLimits(256 << 20, float("inf"), sparse=True), disks=Disks())
    )
    await pool.open()
    staging = real_folder / "staging"
    await pool.create(VolumeRequest("v", 16 << 20))
    await pool.stage("v", staging)
    assert not seccomp.is_needed([str(real_folder), "/dev/null"])
    assert seccomp.is_needed([str(real_folder), str(staging)])
    try:
        said = await asyncio.to_thread(
            _filtered, "--bind", str(staging), str(staging), "/usr/bin/python3", "-c", _MAKES, str(staging)
        )
    finally:
        await pool.unstage("v", staging)
        await pool.delete("v")
        await pool.close()
    assert said == ["1"] * 4


def test_the_program_is_whole_instructions_that_jump_forward_inside() -> None:
    program = seccomp.program("x86_64")
    steps = list(struct.iter_unpack("=HBBI", program))
    assert len(steps) == 16
    for at, (code, then, otherwise, _) in enumerate(steps):
        assert code in (0x20, 0x54, 0x15, 0x35, 0x06)
        assert at + 1 + max(then, otherwise) <= len(steps) - (code != 0x06)


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="not supported on vax"):
        seccomp.program("vax")
