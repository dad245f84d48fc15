"""Processes that are stopped before each system call that changes something, so that they can be killed just there.

A seccomp filter picks the calls (those that only read, wait or talk cost nothing), ptrace(2) stops the process before
them; the filter and the tracing are handed down to threads and to programs that it starts. What happens between two
of these calls leaves no trace on the machine, so killing before each of them is killing at every moment.
Linux on x86_64; one tracer in a process without other children.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

_SEIZE, _CONT, _LISTEN, _GETREGS = 0x4206, 7, 0x4208, 12
_OPTIONS = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 7 | 1 << 20  # fork, vfork, clone, exec, seccomp, exitkill
_EVENT_SECCOMP, _EVENT_STOP = 7, 128
_WALL = 0x40000000
_SET_SECCOMP, _FILTER_MODE, _NO_NEW_PRIVS, _SUBREAPER = 22, 2, 38, 36
_ALLOW, _TRACE = 0x7FFF0000, 0x7FF00000
_LOAD, _EQUAL, _AND, _RETURN = 0x20, 0x15, 0x45, 0x06  # classic BPF: ld abs, jeq, jset, ret
_NUMBER, _SECOND, _THIRD = 0, 24, 32  # where struct seccomp_data has the call's number and arguments

CALLS = {
    "write": 1, "pwrite64": 18, "writev": 20, "sendfile": 40, "bind": 49, "execve": 59, "truncate": 76,
    "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87, "symlink": 88,
    "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "mknod": 133, "sync": 162, "mount": 165,
    "umount2": 166, "quotactl": 179, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197,
    "lremovexattr": 198, "fremovexattr": 199, "io_submit": 209, "fsync": 74, "fdatasync": 75, "mkdirat": 258,
    "mknodat": 259, "fchownat": 260, "unlinkat": 263, "renameat": 264, "linkat": 265, "symlinkat": 266,
    "fchmodat": 268, "splice": 275, "sync_file_range": 277, "utimensat": 280, "fallocate": 285, "pwritev": 296,
    "syncfs": 306, "renameat2": 316, "copy_file_range": 326, "pwritev2": 328, "io_uring_enter": 426,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "mount_setattr": 442,
    "quotactl_fd": 443,
}  # fmt: skip
_NAMES = {number: name for name, number in CALLS.items()}
_OPEN, _OPENAT, _IOCTL = 2, 257, 16
_NAMES |= {_OPEN: "open", _OPENAT: "openat", _IOCTL: "ioctl"}
_MAKES = os.O_CREAT | os.O_TRUNC
_HARMLESS = (
    0x5401, 0x5413, 0x541B, 0x5421, 0x5451, 0x5450,  # terminals, descriptors
    0x4C05, 0x4C82, 0x80081272, 0x1268, 0x127B, 0x1260,  # status of loop and block devices
    0x8400941F, 0xD0009412, 0x801C581F,  # of btrfs, of projects
    0xC138FD00, 0xC138FD02, 0xC138FD07, 0xC138FD0B, 0xC138FD0C, 0xC138FD0D,  # of mapper devices
)  # fmt: skip
_STREAMS = frozenset({"write", "writev", "sendfile", "splice"})
"""Calls that may also be for pipes and sockets, which changes nothing."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def missing() -> str:
    """Why nothing can be traced here, "" when it can."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return "needs Linux on x86_64: the table of system calls is of that machine"
    try:
        ended = Tracer().run(lambda: os._exit(7), traced=True)
    except OSError as failure:
        return f"needs ptrace(2): {failure.strerror}"
    return "" if os.waitstatus_to_exitcode(ended.status) == 7 else "needs seccomp filters"


def _filter() -> bytes:
    """The program for the kernel; the call's number is handed to us with the event."""
    code = [(_LOAD, 0, 0, _NUMBER)]
    for number in CALLS.values():
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _TRACE | number)]
    for number, at in (_OPEN, _SECOND), (_OPENAT, _THIRD):
        code += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, at), (_AND, 0, 1, _MAKES)]
        code += [(_RETURN, 0, 0, _TRACE | number), (_RETURN, 0, 0, _ALLOW)]
    code += [(_EQUAL, 0, 2 + 2 * len(_HARMLESS), _IOCTL), (_LOAD, 0, 0, _SECOND)]
    for request in _HARMLESS:
        code += [(_EQUAL, 0, 1, request), (_RETURN, 0, 0, _ALLOW)]
    code += [(_RETURN, 0, 0, _TRACE | _IOCTL), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in code)


def _install() -> None:
    """From here on this process, its threads and programs stop; without a tracer these calls would fail."""
    program = _filter()
    memory = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(memory))
    if _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 or _libc.prctl(_SET_SECCOMP, _FILTER_MODE, head, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "seccomp filters are not to be had")


def _ptrace(request: int, pid: int, data: int = 0) -> None:
    if _libc.ptrace(request, pid, None, data) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def in_fork(test: Callable[[], None], seconds: int = 60) -> None:
    """Run it in a process without threads and other children; what it raises fails the test."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(seconds)
            test()
            code = 0
        except BaseException as failure:
            sys.stderr.write(f"{type(failure).__name__}: {failure}\n")
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@dataclass(frozen=True)
class Step:
    """A call that a process is about to make. number: from 1, of one run. tool: whether it is a program that the
    traced process has started. what: the call and what it is about, for people."""

    number: int
    pid: int
    tool: bool
    what: str


@dataclass
class Ended:
    """How a run ended. steps: how many there were."""

    status: int = 0
    steps: int = 0


@dataclass
class Tracer:
    """Runs processes, and keeps those that outlive their starters. held: they do not go on until they are let go.
    driver: the process that runs."""

    held: bool = False
    driver: int = 0
    _tools: dict[int, int] = field(default_factory=dict)
    """Tasks that are of no run any more -> the stop that they are held at, 0 when they run."""
    _stopped: dict[int, int] = field(default_factory=dict)
    _group: dict[int, int] = field(default_factory=dict)

    def run(
        self, body: Callable[[], object], *, traced: bool, at_step: Callable[[Step], bool] = lambda _step: False
    ) -> Ended:
        """Fork, run body there (which must not return but by os._exit), wait for its end.

        at_step: called before each step with all the time in the world; True when it has killed something.
        """
        _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(writing)
                os.read(reading, 1)
                os.close(reading)
                if traced:
                    _install()
                body()
            finally:
                os._exit(120)
        os.close(reading)
        try:
            if traced:
                _ptrace(_SEIZE, pid, _OPTIONS)
        finally:
            os.close(writing)  # it may begin, or end should we fail
        return self._watch(pid, at_step)

    def _watch(self, driver: int, at_step: Callable[[Step], bool]) -> Ended:
        ended = Ended()
        self._group[driver] = self.driver = driver
        while True:
            pid, status = os.waitpid(-1, _WALL)
            if not os.WIFSTOPPED(status):
                self._tools.pop(pid, None)
                self._group.pop(pid, None)
                if pid == driver:
                    ended.status = status
                    self._adopt()
                    return ended
                continue
            self._stop(pid, status, driver, at_step, ended)

    def _stop(self, pid: int, status: int, driver: int, at_step: Callable[[Step], bool], ended: Ended) -> None:
        event = status >> 16
        if event != _EVENT_SECCOMP:
            self._go(pid, event, os.WSTOPSIG(status))
            return
        if pid in self._tools:  # of an earlier run
            if self.held:
                self._tools[pid] = 1
            else:
                self._go(pid, event, 0)
            return
        if (what := _describe(pid)) is not None:
            ended.steps += 1
            group = self._group_of(pid)
            if at_step(Step(ended.steps, group, group != driver, what)):
                self._stopped[pid] = 1
                return
        self._go(pid, event, 0)

    def _group_of(self, pid: int) -> int:
        """The process of a thread."""
        if pid not in self._group:
            with suppress(OSError), open(f"/proc/{pid}/status") as file:
                self._group[pid] = next(int(line.split()[1]) for line in file if line.startswith("Tgid:"))
        return self._group.get(pid, pid)

    def _go(self, pid: int, event: int, number: int) -> None:
        with suppress(ProcessLookupError):  # killed meanwhile
            if event == _EVENT_STOP:
                _ptrace(_CONT if number == signal.SIGTRAP else _LISTEN, pid)
            else:
                _ptrace(_CONT, pid, 0 if event else number)

    def _adopt(self) -> None:
        """What is left when the traced process has ended goes on, or is held where it stopped."""
        for child in _descendants(os.getpid()):
            self._tools.setdefault(child, 0)
        for pid in self._stopped:
            if pid in self._tools:
                self._tools[pid] = 1
        self._stopped.clear()
        if not self.held:
            self.let_go()

    @property
    def left(self) -> bool:
        """Whether programs of earlier runs are still there."""
        return bool(self._tools)

    def let_go(self) -> None:
        """What is held goes on."""
        self.held = False
        for pid, stopped in list(self._tools.items()):
            if stopped:
                self._tools[pid] = 0
                self._go(pid, _EVENT_SECCOMP, 0)

    def outlast(self) -> None:
        """Wait until no program of an earlier run is left."""
        self.let_go()
        while self._tools:
            try:
                pid, status = os.waitpid(-1, _WALL)
            except ChildProcessError:  # one that we have waited for was listed until its own parent reaped it
                self._tools.clear()
                return
            if os.WIFSTOPPED(status):
                self._tools.setdefault(pid, 0)
                self._go(pid, status >> 16, os.WSTOPSIG(status))
            else:
                self._tools.pop(pid, None)

    def kill_all(self) -> None:
        """Kill the traced process and all that it has started, at one moment as far as they can tell."""
        for child in _descendants(os.getpid()):
            if child not in self._tools:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """All processes below one."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(word) for word in file.read().split()]
    return found + [below for child in found for below in _descendants(child)]


def _describe(pid: int) -> str | None:
    """The call that a stopped task is about to make; None when it does not change anything after all."""
    registers = (ctypes.c_ulong * 27)()
    try:
        _ptrace(_GETREGS, pid, ctypes.addressof(registers))
    except ProcessLookupError:
        return "killed meanwhile"
    name = _NAMES.get(registers[15], str(registers[15]))
    about = _about(pid, name, [registers[14], registers[13], registers[12]])  # rdi, rsi, rdx
    if name in _STREAMS and not about.startswith("/"):
        return None
    with suppress(OSError), open(f"/proc/{pid}/comm") as file:
        return f"{file.read().strip()}: {name} {about}"
    return "killed meanwhile"


def _about(pid: int, name: str, arguments: list[int]) -> str:
    if name in ("write", "pwrite64", "writev", "pwritev", "ftruncate", "fsync", "fdatasync", "fallocate", "ioctl"):
        more = f" {arguments[1]:#x}" if name == "ioctl" else ""
        return _file(pid, arguments[0]) + more
    if name in ("sendfile", "copy_file_range", "splice"):
        return _file(pid, arguments[2 if name != "sendfile" else 0])
    if name in ("openat", "mkdirat", "unlinkat", "renameat", "renameat2", "execveat", "fchmodat", "mknodat"):
        return _text(pid, arguments[1])
    if name in ("io_submit", "sync", "io_uring_enter", "fsmount", "fsconfig", "move_mount", "bind"):
        return ""
    return _text(pid, arguments[0])


def _file(pid: int, fd: int) -> str:
    with suppress(OSError):
        where = os.readlink(f"/proc/{pid}/fd/{fd}")
        return where if where != "/dev/null" else ""
    return ""


def _text(pid: int, address: int) -> str:
    with suppress(OSError, ValueError, OverflowError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(256).split(b"\0")[0].decode(errors="replace")
    return ""


if __name__ == "__main__":
    print(missing())
