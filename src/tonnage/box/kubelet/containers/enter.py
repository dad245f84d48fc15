"""Helper program that runs one command inside a running container, with no more rights than the container has.

It gets a request (marshal) in the descriptor that its argument names. Nothing is imported and no program is executed
between the moment it enters and the moment it has given up its rights: a container controls what is found there. It is
not dumpable, so the container's processes can neither trace it nor open its files (see CVE-2019-5736).
"""

import ctypes
import marshal
import os
import sys

_SETNS = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x20000000  # mnt, cgroup, uts, ipc, pid
_PDEATHSIG, _DUMPABLE, _SECCOMP, _CAPBSET_DROP, _NO_NEW_PRIVS = 1, 4, 22, 24, 38
_VERSION = 0x20080522  # linux/capability.h, version 3
_NOT_FOUND, _NOT_EXECUTABLE, _NOT_ENTERED = 127, 126, 125
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _prctl(option: int, value: object, more: object = 0) -> None:
    _call("prctl", option, ctypes.c_ulong(value) if isinstance(value, int) else value, more, 0, 0)


def drop(uid: int, gid: int, groups: list[int], capabilities: list[int], program: bytes) -> None:
    """Become the container's user, with its capabilities and system call filter. Raises OSError."""
    for number in range(64):
        if number not in capabilities and _libc.prctl(_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) != 0:
            break  # the kernel knows no more of them
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    mask = sum(1 << number for number in capabilities) if uid == 0 else 0
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0))
    _prctl(_NO_NEW_PRIVS, 1)
    if program:
        code = ctypes.create_string_buffer(program, len(program))
        steps = (ctypes.c_size_t * 2)(len(program) // 8, ctypes.addressof(code))  # struct sock_fprog
        _prctl(_SECCOMP, 2, ctypes.byref(steps))


def execute(argv: list[bytes], environment: dict[bytes, bytes], folder: bytes) -> int:
    """Become the command; returns the exit code of a shell when that fails."""
    try:
        os.chdir(folder)
    except OSError:
        os.chdir("/")
    name = argv[0]
    paths = [name]
    if b"/" not in name:
        paths = [part + b"/" + name for part in environment.get(b"PATH", b"/usr/bin:/bin").split(b":") if part]
    code = _NOT_FOUND
    for path in paths:
        try:
            os.execve(path, argv, environment)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            code = _NOT_EXECUTABLE
    what = b"no such file or directory" if code == _NOT_FOUND else b"permission denied"
    os.write(2, b'exec: "' + name + b'": ' + what + b"\n")
    return code


def main(number: int) -> int:
    """Enter, fork into the pid namespace, and return the command's exit code as a shell does. Blocking."""
    _prctl(_DUMPABLE, 0)
    _prctl(_PDEATHSIG, 9)
    with os.fdopen(number, "rb") as file:
        request = marshal.load(file)
    if request["group"]:
        with open(request["group"], "w") as group:
            group.write("0")
    _call("setns", request["pidfd"], _SETNS)
    os.close(request["pidfd"])
    os.chdir("/")
    child = os.fork()
    if child == 0:
        _prctl(_PDEATHSIG, 9)
        drop(request["uid"], request["gid"], request["groups"], request["capabilities"], request["program"])
        _prctl(_PDEATHSIG, 9)  # cleared by the change of the user
        os._exit(execute(request["argv"], request["environment"], request["folder"]))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    try:
        CODE = main(int(sys.argv[1]))
    except OSError as failure:
        os.write(2, f"cannot enter the container: {failure}\n".encode())
        CODE = _NOT_ENTERED
    os._exit(CODE)
