"""The program that starts a container's command: it becomes the container's user, then the command.

bwrap runs it as root in the finished root. Nothing of the container may run before the user is dropped, and a volume or
an image may have any file anywhere: setpriv, a library, the linker, /etc/ld.so.preload. So it is a static program of
system calls alone, made here for each start, and run from a descriptor.
"""

from __future__ import annotations

import errno
import os
import struct
import termios
from collections.abc import Sequence
from dataclasses import dataclass

from tonnage.host.encoding import encode
from tonnage_box.kubelet.containers.start.machine_code import Assembler, OnStack, assembler

_CAPABILITY_VERSION = 0x20080522
_LAST_CAPABILITY = 63  # of the two words that capset(2) takes
_JOIN_SESSION_KEYRING = 1  # linux/keyctl.h
_BOUNDING_DROP = 24  # linux/prctl.h
_BUFFER = OnStack(-256)
_ERRORS = ("ENOENT", "EACCES", "EPERM", "ENOTDIR", "EISDIR", "ELOOP", "ENAMETOOLONG", "ENOEXEC", "E2BIG", "EIO",
           "EINVAL", "ENOMEM", "ETXTBSY", "EMFILE", "ENFILE", "ESTALE", "ENODEV", "ENXIO", "EAGAIN")  # fmt: skip
_NOT_FOUND, _NOT_RUN, _NOT_STARTED = 127, 126, 125
_ALL = 0xFFFFFFFF


@dataclass(frozen=True)
class StartPlan:
    """Whom to become, and where. path: PATH of the container. folder: the working directory, "" for the root.

    capabilities: a mask of those that its processes may have, among those of all containers. terminal: standard input
    is one, which becomes the controlling terminal. gate: a socket to the kubelet, at which it waits until the root is
    complete; -1 for none.
    """

    uid: int
    gid: int
    groups: Sequence[int]
    argv: Sequence[str]
    path: str
    capabilities: int
    folder: str = ""
    terminal: bool = False
    gate: int = -1


def build(plan: StartPlan, machine: str = "") -> bytes:
    """The program, for this machine or one as os.uname() names it. It takes the command's arguments behind its own.

    Raises: UnsupportedError (another machine), InvalidError (text that cannot be encoded).
    """
    code = assembler(machine or os.uname().machine)
    if plan.gate >= 0:
        _wait_at(code, plan.gate)
    code.call("close_range", 3, _ALL, 0)  # its own descriptor; before Linux 5.9 that stays open
    if plan.terminal:
        code.call("setsid")
        code.call("ioctl", 0, termios.TIOCSCTTY, 0)
    if plan.folder:  # not by bwrap, which still holds the machine's /proc: /proc/self/fd/N would lead there
        folder = encode(plan.folder, "workingDir")
        code.call("chdir", code.data(folder + b"\0"))
        _check(code, b"cannot change directory to '%s'" % folder)
    _leave_keyring(code)
    _become(code, plan)
    _execute(code, plan)
    return code.program()


def _wait_at(code: Assembler, gate: int) -> None:
    """Say that bwrap is done, and go on when a byte comes: the root is complete. Without one it ends."""
    complete = code.label()
    code.call("write", gate, code.data(b"\n"), 1)
    code.call("read", gate, _BUFFER, 1)
    code.jump_if_positive(complete)
    code.call("exit_group", _NOT_STARTED)
    code.place(complete)


def _leave_keyring(code: Assembler) -> None:
    """Have a session keyring of its own, not the kubelet's; as root, whose quota of keys is large."""
    done = code.label()
    code.call("keyctl", _JOIN_SESSION_KEYRING, 0)
    code.jump_if(errno.ENOSYS, done)  # the kernel has no keys
    _check(code, b"keyctl")
    code.place(done)


def _become(code: Assembler, plan: StartPlan) -> None:
    _bound(code, plan.capabilities)  # first: a process that is not root any more may not
    groups = code.data(struct.pack(f"<{len(plan.groups)}I", *plan.groups))
    code.call("setgroups", len(plan.groups), groups)
    _check(code, b"setgroups")
    code.call("setresgid", plan.gid, plan.gid, plan.gid)
    _check(code, b"setresgid")
    code.call("setresuid", plan.uid, plan.uid, plan.uid)
    _check(code, b"setresuid")
    # bwrap makes what it leaves inheritable and ambient, so that programs of any user would have it.
    held = plan.capabilities if plan.uid == 0 else 0
    low, high = held & _ALL, held >> 32
    header = code.data(struct.pack("<Ii", _CAPABILITY_VERSION, 0))
    code.call("capset", header, code.data(struct.pack("<6I", low, low, 0, high, high, 0)))
    _check(code, b"capset")


def _bound(code: Assembler, capabilities: int) -> None:
    """Drop all other capabilities from the bounding set, which bwrap leaves whole."""
    failed, done = code.label(), code.label()
    for number in (n for n in range(_LAST_CAPABILITY + 1) if not capabilities >> n & 1):
        following = code.label()
        code.call("prctl", _BOUNDING_DROP, number, 0)
        code.jump_if(errno.EINVAL, done)  # the kernel knows no more
        code.jump_if_done(following)
        code.jump(failed)
        code.place(following)
    code.jump(done)
    code.place(failed)
    _fail(code, b"prctl", _NOT_STARTED)
    code.place(done)


def _execute(code: Assembler, plan: StartPlan) -> None:
    """Become the command, found as Go's exec.LookPath does, as for further commands in the container."""
    name = encode(plan.argv[0], "command")
    folders = [folder for folder in plan.path.split(":") if folder.startswith("/")]
    where = [name] if b"/" in name else [encode(folder, "PATH") + b"/" + name for folder in folders]
    argv, environment = OnStack(16), OnStack(8 * (len(plan.argv) + 3))
    failed = code.label()
    code.keep_error(errno.ENOENT)
    for candidate in where:
        following, denied = code.label(), code.label()
        code.call("execve", code.data(candidate + b"\0"), argv, environment)
        code.jump_if(errno.ENOENT, following)
        code.jump_if(errno.ENOTDIR, following)
        code.jump_if(errno.EACCES, denied)
        code.jump(failed)
        code.place(denied)
        code.keep_error(errno.EACCES)
        code.place(following)
    code.recall_error()
    code.place(failed)
    absent = b"no such file or directory" if b"/" in name else b"executable file not found in $PATH"
    _fail(code, b'exec: "%s"' % name, _NOT_RUN, absent=absent)


def _check(code: Assembler, what: bytes) -> None:
    """End with a message if the last call has failed."""
    done = code.label()
    code.jump_if_done(done)
    _fail(code, what, _NOT_STARTED)
    code.place(done)


def _fail(code: Assembler, what: bytes, status: int, *, absent: bytes = b"") -> None:
    """Print what has failed with the last call's error, and exit. absent: the words for ENOENT, whose status is 127."""
    for name in _ERRORS:
        number = getattr(errno, name)
        other, this = code.label(), code.label()
        code.jump_if(number, this)
        code.jump(other)
        code.place(this)
        words = absent if absent and number == errno.ENOENT else os.strerror(number).lower().encode()
        _end(code, what + b": " + words + b"\n", _NOT_FOUND if words == absent else status)
        code.place(other)
    _end(code, what + b": it failed\n", status)


def _end(code: Assembler, message: bytes, status: int) -> None:
    code.call("write", 2, code.data(message), len(message))
    code.call("exit_group", status)
