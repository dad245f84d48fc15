"""Helper process: starts one more process in a running container. Runs alone, with the standard library's core only.

Its child enters the container's namespaces and becomes a child of the kubelet; the helper ends at once and never is in
the container itself. Order matters: all imports come first, as a module imported later would be the container's file.
What the container's processes could do to the child before it runs the command: signal it. They cannot trace it or
open its files in /proc: it is not dumpable.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import array
import ctypes
import errno
import marshal
import os
import stat
import sys
import termios
from fcntl import ioctl
from typing import Any, NoReturn

_CLONE3 = 435  # the same number on all architectures
_CLONE_PARENT = 0x00008000
_NEW_MOUNT, _NEW_CGROUP, _NEW_UTS = 0x00020000, 0x02000000, 0x04000000
_NEW_IPC, _NEW_PID = 0x08000000, 0x20000000
_PDEATHSIG, _DUMPABLE, _SECCOMP, _BOUNDING_DROP, _NO_NEW_PRIVS = 1, 4, 22, 24, 38  # linux/prctl.h
_FILTER = 2  # SECCOMP_MODE_FILTER
_JOIN_SESSION_KEYRING = 1  # linux/keyctl.h
_CAPABILITY_VERSION = 0x20080522
_LAST_CAPABILITY = 63
_PTMX = os.makedev(5, 2)
_NAME_BYTES = 64

_libc = ctypes.PyDLL(None, use_errno=True)  # holds the interpreter's lock: a child may begin inside of a call


class JoinError(Exception):
    """Why the process was not started, in words for the client."""


class _CloneArguments(ctypes.Structure):
    """struct clone_args of clone3(2)."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls")
    ]


class _Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise JoinError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _cause(failure: Exception) -> str:
    """As Go prints it."""
    return os.strerror(failure.errno or 0).lower() if isinstance(failure, OSError) else str(failure)


def _prctl(option: int, value: int, more: Any = 0) -> None:
    arguments = [ctypes.c_ulong(value), more, ctypes.c_ulong(0), ctypes.c_ulong(0)]
    _checked(_libc.prctl(option, *arguments), f"prctl {option}")


def _clone() -> int:
    """As fork(2), but the child is our parent's. It inherits our exit signal, SIGCHLD."""
    arguments = _CloneArguments(flags=_CLONE_PARENT)
    size = ctypes.sizeof(arguments)
    return _checked(_libc.syscall(_CLONE3, ctypes.byref(arguments), ctypes.c_size_t(size)), "clone3")


def _enter(anchor: int, root: tuple[int, int]) -> None:
    """Join the namespaces but the process's, which the clone has joined; root: st_dev and st_ino of the container's."""
    _checked(_libc.setns(anchor, _NEW_MOUNT | _NEW_CGROUP | _NEW_UTS | _NEW_IPC), "setns")
    found = os.stat("/")
    if (found.st_dev, found.st_ino) != root:
        raise JoinError("the root found is not the container's")


def _open_terminal(control: _socket.socket, uid: int) -> int:
    """A terminal of the container's devpts; its other side goes to the kubelet."""
    # The container may replace /dev/ptmx, but nothing below /dev/pts, which is a mount.
    master = os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(master)
    if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _PTMX:
        raise JoinError("/dev/pts/ptmx is not a terminal multiplexer")
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _checked(_libc.unlockpt(master), "unlockpt")
    if _libc.ptsname_r(master, name, _NAME_BYTES):
        raise JoinError("ptsname: no name")
    terminal = os.open(name.value, os.O_RDWR | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC)
    os.fchown(terminal, uid, -1)
    control.sendmsg([b"terminal"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [master]))])
    os.close(master)
    return terminal


def _use_terminal(terminal: int) -> None:
    """Make it the controlling terminal and the standard streams."""
    ioctl(terminal, termios.TIOCSCTTY, 0)
    for fd in (0, 1, 2):
        os.dup2(terminal, fd, inheritable=True)


def _leave_keyring(keyctl: int) -> None:
    """Have a session keyring of its own, not the kubelet's. keyctl: the number of the call."""
    if _libc.syscall(keyctl, _JOIN_SESSION_KEYRING, None) < 0 and ctypes.get_errno() != errno.ENOSYS:
        raise JoinError(f"keyctl: {os.strerror(ctypes.get_errno())}")


def _become(uid: int, gid: int, groups: list[int], capabilities: int) -> None:
    """Drop to the user and to the capabilities of the container's own processes."""
    _prctl(_NO_NEW_PRIVS, 1)
    for number in range(_LAST_CAPABILITY + 1):
        if capabilities >> number & 1:
            continue
        try:
            _prctl(_BOUNDING_DROP, number)
        except JoinError:
            if ctypes.get_errno() != errno.EINVAL:
                raise
            break  # the kernel knows no more
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    held = capabilities if uid == 0 else 0
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    low, high = held & 0xFFFFFFFF, held >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    _checked(_libc.capset(header, data), "capset")
    _prctl(_DUMPABLE, 0)  # a change of the user sets it to what fs.suid_dumpable says
    _prctl(_PDEATHSIG, _signal.SIGKILL)


def _reset_signals() -> None:
    """The interpreter ignores some signals, as do nohup and a script's `&`: the command would inherit that."""
    for number in range(1, _signal.NSIG):
        try:
            _signal.signal(number, _signal.SIG_DFL)
        except OSError:  # it cannot be changed
            continue
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def _filter_calls(program: bytes) -> None:
    _prctl(_SECCOMP, _FILTER, ctypes.byref(_Filter(len(program) // 8, program)))


def _execute(argv: list[bytes], environment: dict[bytes, bytes]) -> NoReturn:
    """Run the command, found as Go's exec.LookPath does. Raises: JoinError in its words."""
    name = argv[0]
    shown = name.decode(errors="replace")
    candidates = [name]
    if b"/" not in name:
        folders = environment.get(b"PATH", b"").split(b":")
        candidates = [folder + b"/" + name for folder in folders if folder.startswith(b"/")]
    why = f'exec: "{shown}": executable file not found in $PATH'
    for path in candidates:
        try:
            os.execve(path, argv, environment)
        except (FileNotFoundError, NotADirectoryError) as failure:
            if b"/" in name:
                why = f'exec: "{shown}": stat {shown}: {_cause(failure)}'
        except (OSError, ValueError) as failure:
            why = f'exec: "{shown}": {_cause(failure)}'
    raise JoinError(why)


def _run(plan: dict[str, Any], control: _socket.socket, anchor: int) -> NoReturn:
    """The child: enter the container and become the command."""
    _enter(anchor, plan["root"])
    os.setsid()
    if plan["tty"]:
        _use_terminal(_open_terminal(control, plan["uid"]))
    _leave_keyring(plan["keyctl"])
    _become(plan["uid"], plan["gid"], plan["groups"], plan["capabilities"])
    if plan["folder"]:
        try:
            os.chdir(plan["folder"])
        except OSError as failure:
            shown = plan["folder"].decode(errors="replace")
            raise JoinError(f'chdir to cwd ("{shown}") set in config.json failed: {_cause(failure)}') from None
    _reset_signals()
    _filter_calls(plan["filter"])
    _execute(plan["argv"], plan["environment"])


def _read(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 1 << 16):
        parts.append(part)
    os.close(fd)
    return b"".join(parts)


def main(control_fd: int, gate: int, anchor: int) -> NoReturn:
    """Start the process of the plan that comes through gate. Reports to control: its pid, a terminal, an error.

    The plan comes when the helper is in the container's cgroup. control is closed when the command runs.
    """
    for fd in (control_fd, gate, anchor):
        os.set_inheritable(fd, False)
    control = _socket.socket(fileno=control_fd)
    try:
        # The child inherits it: there is no moment in which it has few capabilities and is dumpable.
        _prctl(_DUMPABLE, 0)
        if not (text := _read(gate)):
            os._exit(1)  # the kubelet has ended
        plan = marshal.loads(text)
        sys.path.clear()
        sys.meta_path.clear()
        sys.path_hooks.clear()
        _checked(_libc.setns(anchor, _NEW_PID), "setns")
        pid = _clone()
        if pid == 0:
            _run(plan, control, anchor)
        control.send(b"pid %d" % pid)
    except BaseException as failure:
        why = str(failure) if isinstance(failure, JoinError) else f"{type(failure).__name__}: {failure}"
        control.send(b"error " + why.encode(errors="replace")[:4096])
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
