"""What a container with a device may do to it."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.base.errors import UnsupportedError
from tonnage.host import loop
from tonnage.storage.pools.base.contract import PoolLimits, VolumeRequest
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.btrfs import backend as btrfs
from tonnage.storage.pools.core.pool import Pool
from tonnage_box.kubelet.containers import seccomp
from tonnage_box.kubelet.containers.start.machine_code import MACHINES

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
    try:
        said = await asyncio.to_thread(
            _filtered, "--bind", str(staging), str(staging), "/usr/bin/python3", "-c", _MAKES, str(staging)
        )
    finally:
        await pool.unstage("v", staging)
        await pool.delete("v")
        await pool.close()
    assert said == ["1"] * 4


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("unconfined", [False, True])
def test_the_program_is_whole_instructions_that_jump_forward_inside(machine: str, *, unconfined: bool) -> None:
    steps = list(struct.iter_unpack("=HBBI", seccomp.program(machine, unconfined=unconfined)))
    for at, (code, then, otherwise, _) in enumerate(steps):
        assert code in (0x20, 0x54, 0x15, 0x35, 0x45, 0x06)
        assert at + 1 + max(then, otherwise) <= len(steps) - (code != 0x06)


def _answer(program: bytes, number: int, *arguments: int, audit: int) -> int:
    """What the filter answers to a call: 0, or the error."""
    data = struct.pack("<IIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    steps, at, loaded = list(struct.iter_unpack("=HBBI", program)), 0, 0
    while True:
        code, then, otherwise, value = steps[at]
        at += 1
        match code:
            case 0x20:
                (loaded,) = struct.unpack_from("<I", data, value)
            case 0x54:
                loaded &= value
            case 0x06:
                return 0 if value == 0x7FFF0000 else value & 0xFFFF
            case _:
                holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
                at += then if holds else otherwise


_X86, _ARM = ("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)


@pytest.mark.parametrize(
    ("machine", "call", "confined", "unconfined"),
    [
        (_X86, (0,), 0, 0),  # read
        (_X86, (165,), errno.EPERM, 0),  # mount
        (_ARM, (40,), errno.EPERM, 0),
        (_ARM, (165,), 0, 0),  # getrusage there
        (_X86, (272, 0x10000000), errno.EPERM, 0),  # unshare
        (_X86, (56, 0x11), 0, 0),  # clone, as fork
        (_X86, (56, 0x3D0F00), 0, 0),  # clone, of a thread
        (_X86, (56, 0x10000011), errno.EPERM, 0),  # clone, with a user namespace
        (_ARM, (220, 0x00020011), errno.EPERM, 0),  # clone, with a mount namespace
        (_X86, (435,), errno.ENOSYS, 0),  # clone3
        (_X86, (470,), errno.ENOSYS, 0),  # not known yet
        (_X86, (0x40000000,), errno.ENOSYS, errno.ENOSYS),  # x32
        (("x86_64", 0x40000003), (20,), errno.ENOSYS, errno.ENOSYS),  # i386
        (_X86, (135, 0xFFFFFFFF), 0, 0),  # personality
        (_X86, (135, 0x0040000), errno.EPERM, 0),
        (_X86, (41, 2), 0, 0),  # socket
        (_X86, (41, 38), errno.EPERM, 0),
        (_ARM, (198, 40), errno.EPERM, 0),
        (_X86, (248,), errno.EPERM, errno.EPERM),  # add_key
        (_X86, (249,), errno.EPERM, errno.EPERM),  # request_key
        (_X86, (250, 1, 0), 0, 0),  # keyctl: a new session keyring
        (_X86, (250, 1, 1), errno.EPERM, errno.EPERM),  # a named one
        (_X86, (250, 1, 1 << 32), errno.EPERM, errno.EPERM),
        (_X86, (250, 11, 0), errno.EPERM, errno.EPERM),  # read
        (_ARM, (219, 11, 0), errno.EPERM, errno.EPERM),
        (_X86, (16, 3, 0x4C01), errno.EPERM, errno.EPERM),  # ioctl
        (_ARM, (29, 3, 0x5000940E), errno.EPERM, errno.EPERM),
        (_X86, (16, 3, 0x5401), 0, 0),
    ],
)
def test_what_the_filter_answers(
    machine: tuple[str, int], call: tuple[int, ...], confined: int, unconfined: int
) -> None:
    name, audit = machine
    assert _answer(seccomp.program(name), *call, audit=audit) == confined
    assert _answer(seccomp.program(name, unconfined=True), *call, audit=audit) == unconfined


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_the_numbers_are_the_kernels(machine: str, header: str) -> None:
    if not Path(header).exists():
        pytest.skip(f"{header} is not there: package linux-libc-dev")
    defined = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", Path(header).read_text(), re.MULTILINE)
    numbers, known = {name: int(number) for name, number in defined}, seccomp._MACHINES[machine]
    mine = known.denied | {word: getattr(known, word) for word in ("ioctl", "clone", "keyctl", "personality", "socket")}
    newer = {"open_tree_attr"} - numbers.keys()
    assert {name: number for name, number in mine.items() if name not in newer} == {
        name: numbers.get(name, -1) for name in mine if name not in newer
    }
    calls = MACHINES[machine].calls
    assert calls == {name: numbers[name] for name in calls}


def test_an_unknown_machine_is_rejected_by_name() -> None:
    with pytest.raises(UnsupportedError, match="this machine is vax"):
        seccomp.program("vax")
