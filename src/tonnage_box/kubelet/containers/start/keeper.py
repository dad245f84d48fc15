"""Keeper of a container's output: a process that has its pipes open until a kubelet has read them.

What is in a pipe is lost when the last process closes it, and a container may end while no kubelet runs. The keeper has
then what it wrote last, 64 KiB of each stream at most. It is a static program that sleeps: some pages of memory. It
ends by a byte in a pipe of its own, which a later kubelet finds by its name as well. Blocking.
"""

from __future__ import annotations

import errno
import functools
import os
import time

from tonnage.base.errors import HostError, ignore_errno
from tonnage.host.descriptor import closing
from tonnage_box.kubelet.containers.spawn import in_memory
from tonnage_box.kubelet.containers.start.machine_code import OnStack, assembler

PIPE = "keeper"
"""Its pipe, in the folder of the attempt."""
NAME = "tonnage-output"
"""As processes are listed, with the folder of the attempt. It is in no pod's cgroup, and counts for no limit."""
_BUFFER = OnStack(-256)
_PAUSE, _PATIENCE = 0.001, 5.0  # seconds


@functools.cache
def program(machine: str) -> bytes:
    """The keeper's program, for a machine as os.uname() names it. Raises: UnsupportedError."""
    code = assembler(machine)
    wait = code.label()
    code.call("chdir", code.data(b"/\0"))  # else it would keep the disk busy from which the kubelet was started
    code.call("close_range", 3, 0xFFFFFFFF, 0)
    code.place(wait)
    code.call("read", 0, _BUFFER, 1)
    code.jump_if(errno.EINTR, wait)
    code.call("exit_group", 0)
    return code.program()


def start(folder: str, out: int, error: int) -> int:
    """Start the keeper of a container's pipes; its pid. Raises: OSError, UnsupportedError."""
    os.mkfifo(f"{folder}/{PIPE}", 0o600)
    own = os.open(f"{folder}/{PIPE}", os.O_RDWR | os.O_CLOEXEC)  # for writing too: it never comes to its end
    with closing(own), closing(in_memory(program(os.uname().machine), executable=True)) as code:
        return os.posix_spawn(
            f"/proc/self/fd/{code}",
            [NAME, folder],
            {},
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, stream) for stream, fd in enumerate((own, out, error))],
            setsid=True,  # as of the container: Ctrl-C at the terminal is for the kubelet
        )


def end(folder: str) -> bool:
    """Ask the keeper of an attempt's folder to end; whether there was one. Idempotent."""
    with ignore_errno(errno.ENOENT, errno.ENXIO, errno.EPIPE, errno.EAGAIN):
        fd = os.open(f"{folder}/{PIPE}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with closing(fd):
            os.write(fd, b"\n")
            return True
    return False


def await_end(folder: str) -> None:
    """End the keeper and wait until it has none of the pipes any more. Raises: HostError."""
    late = time.monotonic() + _PATIENCE
    while end(folder):
        if time.monotonic() > late:
            raise HostError(f"the keeper of a container's output does not end: {folder}; kill {NAME} {folder}")
        time.sleep(_PAUSE)
