"""Start of bwrap in the pod's cgroup."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE, fcntl

from tonnage.host.encoding import encode
from tonnage_box.kubelet import signals
from tonnage_box.kubelet.pod_cgroups import PodCgroup

_MFD_EXEC = 0x0010  # linux/memfd.h


@dataclass(frozen=True)
class ContainerPrograms:
    """What runs before the command, which the container has as descriptors only.

    starter: becomes the user, then the command. filter: of system calls, b"" for none.
    """

    starter: bytes
    filter: bytes = b""


def spawn(
    command: Sequence[str],
    options: Sequence[str],
    argv: Sequence[str],
    *,
    streams: tuple[int, int, int],
    keep: Sequence[int],
    programs: ContainerPrograms,
    group: PodCgroup | None,
) -> subprocess.Popen[bytes]:
    """Start `command` (bwrap and its first options) with more options, to run argv. Blocking.

    streams: its standard input, output and error. keep: descriptors that it inherits. group: the cgroup it shall be
    in. Raises: OSError, InvalidError (an option or argument cannot be encoded); then nothing runs. Signals are at their
    defaults, and none is blocked.

    bwrap reads its options before it makes any process, the last of them from a pipe in which there are none: it waits
    for the pipe's end, which comes when bwrap is in its cgroup. So nothing of the container has ever been outside. A
    kubelet that is killed meanwhile lets it start, whole, and kills it after its restart.
    """
    if shutil.which(command[0]) is None:  # what resets signals would start, and fail where nobody sees why
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    arguments = [encode(argument, "an argument of the command") for argument in argv]
    files = [in_memory(join(options)), in_memory(programs.starter, executable=True)]
    gate, writer = os.pipe2(os.O_CLOEXEC)
    if programs.filter:
        files.append(in_memory(programs.filter))
    try:
        with signals.none_blocked():
            child = subprocess.Popen(
                [
                    *signals.reset_by(),
                    *command,
                    *("--args", str(files[0])),
                    *("--args", str(gate)),
                    *(text for fd in files[2:] for text in ("--seccomp", str(fd))),
                    "--",
                    f"/proc/self/fd/{files[1]}",
                    *arguments,
                ],
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                env={},
                cwd="/",
                pass_fds=(*keep, gate, *files),
                start_new_session=True,  # Ctrl-C at the terminal is for the kubelet, which then ends its containers
            )
        if group is not None:
            _put(child, group)
    finally:
        for fd in (gate, writer, *files):
            os.close(fd)
    return child


def join(options: Sequence[str]) -> bytes:
    """Options as bwrap's --args takes them: each ended by NUL. Raises: InvalidError."""
    return b"".join(encode(option, "an option of bwrap") + b"\0" for option in options)


def _put(child: subprocess.Popen[bytes], group: PodCgroup) -> None:
    try:
        group.add(child.pid)
    except OSError:
        child.kill()
        child.wait()
        raise


def in_memory(data: bytes, *, executable: bool = False) -> int:
    """A descriptor of options, a filter or a program, which cannot be changed any more."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        fd = os.memfd_create("options", flags | (_MFD_EXEC if executable else 0))
    except OSError as failure:
        if failure.errno != errno.EINVAL:
            raise
        fd = os.memfd_create("options", flags)  # before Linux 6.3 all are executable
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)
    return fd
