#!/usr/bin/env python3
"""Run a command in QEMU on a Debian kernel: a machine with persistent memory, which the own one does not have.

    tests/vm/qemu.py [--nvdimm SIZE]... [--forward ADDRESS:PORT]... [--boot WORD]... [--memory SIZE] [--timeout SECONDS]
                     [--verbose] -- COMMAND [ARGUMENT]...

The guest's root is the machine's own file system (virtiofs), so the same Python, packages and working tree are there
and what is written is written for real; /dev, /proc, /run, /sys and /etc/lvm are the guest's own. Each NVDIMM is a
region of its own with a label area. With --forward it has a network: the machine's loopback is 10.0.2.2 for it, and
connections to that address of the machine come to the same port of 10.0.2.15, which is the guest's. Output, exit code,
time limit and --check are those of uml.py. Emulated in full (TCG): no /dev/kvm is needed, and it is some ten times
slower than the machine. It has one processor: two wait for each other's thread at each change of the page tables.
Needs the Debian package qemu-system-x86, apt-get for the kernel (debian_kernel.py), and root, as virtiofsd shares the
whole file system. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.vm import debian_kernel, rig
else:
    import debian_kernel  # beside this file, which is run as a program
    import rig

QEMU = "qemu-system-x86_64"
WANTED = (
    "nfit",
    "nd_pmem",
    "nd_btt",
    "dax_pmem",
    "device_dax",
    "xfs",
    "btrfs",
    "loop",
    "dm-mod",
    "dm-mirror",
    "dm-raid",
    "raid1",
)
NETWORK = ("virtio_net", "bridge", "veth", "overlay")
"""Loaded where the guest has a network, for containers."""
_MODULES = (*WANTED, *NETWORK)
_VIRTIOFSD = ("/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd")
_LABELS = 128 * 1024
_REGION = 16 * 1024**2  # a region's size is a multiple of it, or the next one is misaligned
_SPARE = 1 << 30  # of addresses, for what aligning takes
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_BOOT = (
    "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=unstable no_timer_check raid=noautodetect"
    " random.trust_cpu=on"
)
_OPTIONS = {
    "forward": "ADDRESS:PORT of the machine whose connections come to that port of the guest",
    "boot": "a word more of the kernel's command line, as security=selinux",
}


def missing() -> str:
    """Why no guest can be had here, "" when it can."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return "needs Linux on x86_64"
    if os.geteuid() != 0:
        return "needs root: QEMU's guest shares the whole file system"
    if shutil.which(QEMU) is None:
        return "needs QEMU (Debian: apt-get install qemu-system-x86)"
    if not _virtiofsd():
        return "needs virtiofsd (Debian: apt-get install qemu-system-common or virtiofsd)"
    try:
        debian_kernel.obtain(_MODULES)
    except debian_kernel.Unobtainable as reason:
        return f"needs a Debian kernel for QEMU: {reason}"
    return ""


def _virtiofsd() -> str:
    return next((path for path in _VIRTIOFSD if os.access(path, os.X_OK)), "")


@contextmanager
def _root_shared(folder: Path) -> Iterator[Path]:
    """virtiofsd over the machine's file system; its socket."""
    socket = folder / "virtiofs"
    command = [_virtiofsd(), f"--socket-path={socket}", "-o", "source=/", "-o", "cache=always", "-o", "sandbox=chroot"]
    command += ["-o", "announce_submounts", "--rlimit-nofile=0"]
    with (folder / "virtiofsd.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"qemu: virtiofsd does not start: {(folder / 'virtiofsd.log').read_text()[-500:]}")
            time.sleep(0.01)
        yield socket
    finally:
        process.kill()
        process.wait()


def _bytes(size: str) -> int:
    return int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)


def _nvdimms(folder: Path, sizes: Sequence[str]) -> Iterator[str]:
    """A sparse file each: memory first, then the labels."""
    for index, size in enumerate(sizes):
        if _bytes(size) % _REGION:
            raise SystemExit(f"qemu: an NVDIMM of {size}: want a multiple of 16M")
        path, length = folder / f"nvdimm{index}", _bytes(size) + _LABELS
        with path.open("wb") as file:
            file.truncate(length)
        yield from ("-object", f"memory-backend-file,id=nvmem{index},share=on,mem-path={path},size={length}")
        yield from ("-device", f"nvdimm,id=nvdimm{index},memdev=nvmem{index},label-size={_LABELS}")


def _network(forwards: Sequence[str]) -> list[str]:
    """A network card whose other end is QEMU itself: it opens the guest's connections as its own."""
    passed = "".join(f",hostfwd=tcp:{each}-:{each.rpartition(':')[2]}" for each in forwards)
    return ["-netdev", f"user,id=net{passed}", "-device", "virtio-net-pci,netdev=net,romfile="] if forwards else []


def _machine(
    folder: Path, socket: Path, nvdimms: Sequence[str], memory: str, forwards: Sequence[str], boot: Sequence[str]
) -> list[str]:
    kernel = debian_kernel.obtain(_MODULES)
    size = _bytes(memory)
    most = size + sum(_bytes(each) + _SPARE for each in [*nvdimms, "0"])
    words = [QEMU, "-M", "q35,nvdimm=on,memory-backend=ram", "-accel", "tcg,thread=multi,tb-size=512"]
    words += ["-cpu", "max,la57=off", "-smp", "1", "-m", f"size={size}B,slots={len(nvdimms) + 1},maxmem={most}B"]
    words += ["-object", f"memory-backend-memfd,id=ram,size={size},share=on"]
    words += ["-chardev", f"socket,id=root,path={socket}"]
    words += ["-device", "vhost-user-fs-pci,chardev=root,tag=root,queue-size=1024"]
    words += [*_nvdimms(folder, nvdimms), *_network(forwards)]
    words += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", f"file:{folder}/console"]
    line = " ".join([_BOOT, *boot, f"folder={folder}"])
    words += ["-kernel", str(kernel.image), "-initrd", str(kernel.initrd), "-append", line]
    return words


def boot(
    command: Sequence[str],
    *,
    disks: Sequence[str],
    memory: str,
    timeout: float,
    verbose: bool,
    forward: Sequence[str] = (),
    boot: Sequence[str] = (),
) -> int:
    """Run command in a guest and return its exit code, HUNG, TIMED_OUT or DIED. timeout: seconds."""
    with rig.folder("qemu") as folder, _root_shared(folder) as socket:
        modules = debian_kernel.obtain(_MODULES).modules
        streams = {"out": folder / "out", "err": folder / "err"}
        named = {name: str(path) for name, path in streams.items()}
        wanted = _MODULES if forward else WANTED
        rig.order(folder, command, modules=str(modules), wanted=wanted, **named)
        (folder / "console").touch()
        code = rig.run(_machine(folder, socket, disks, memory, forward, boot), folder, name="qemu", timeout=timeout)
        for stream, path in ((sys.stdout, streams["out"]), (sys.stderr, streams["err"])):
            if path.exists():
                stream.buffer.write(path.read_bytes())
                stream.flush()
        if verbose:
            sys.stderr.buffer.write((folder / "console").read_bytes())
        return code


if __name__ == "__main__":
    sys.exit(rig.main(sys.argv[1:], boot, missing, name="qemu", disk="--nvdimm", memory="1G", more=_OPTIONS))
