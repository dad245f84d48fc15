"""Seccomp filter of containers: the system calls that container runtimes deny by default, and those that reach volumes.

What holds for all containers: A raw block volume is a loop device, and a process that has one open may detach it from
its file without any capability. The kernel then gives the same number to the next volume of the machine, perhaps that
of another pod, and the container still has the node open. So ioctls of the loop driver fail (EPERM). A volume of a
btrfs pool is a subvolume with a limit, and a process that may write in it may create nested ones, which have no limit:
that fails too. Keys are those of the machine's user with the same number, so nothing that names a key is allowed.

What holds unless a container is Unconfined is containerd's default profile (contrib/seccomp), as a list of what is
denied: EPERM; ENOSYS for clone3, whose flags a filter cannot read, and for calls that are newer than the list.

System calls of another architecture's table, which would need a filter of their own, fail with ENOSYS.
"""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass

from tonnage.base.errors import UnsupportedError

_LOAD, _AND, _EQUAL, _AT_LEAST, _HAS_ANY, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
_FIRST, _SECOND, _HIGH = 16, 24, 4  # of the low half of an argument; the high half lies behind it
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_FOREIGN = 0x40000000  # from here on x86's x32 table
_NEWER = 470  # the first call that Linux 6.18 does not have
_KIND_AND_NUMBER, _KIND = 0xFFFF, 0xFF00  # the upper half of an ioctl is the size of its argument and its direction
_LOOP = 0x4C00  # linux/loop.h
_SUBVOLUMES = (0x9401, 0x940E, 0x9417, 0x9418)  # linux/btrfs.h: SNAP_CREATE, SUBVOL_CREATE, and their V2
_JOIN_SESSION_KEYRING = 1  # linux/keyctl.h
_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET of linux/sched.h
_PERSONALITIES = (0, 0x0008, 0x20000, 0x20008, 0xFFFFFFFF)  # PER_LINUX, PER_LINUX32, with UNAME26; the last one asks
_KEYS = ("add_key", "request_key")
_SAME = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "set_mempolicy_home_node": 450, "open_tree_attr": 467,
}  # fmt: skip
_CLONE3 = 435


@dataclass(frozen=True)
class _Machine:
    """An architecture as in linux/audit.h, and its numbers of calls that depend on arguments, and that are denied."""

    audit: int
    ioctl: int
    clone: int
    keyctl: int
    personality: int
    socket: int
    denied: dict[str, int]


_MACHINES = {
    "x86_64": _Machine(
        0xC000003E, ioctl=16, clone=56, keyctl=250, personality=135, socket=41,
        denied={
            "syslog": 103, "uselib": 134, "ustat": 136, "sysfs": 139, "vhangup": 153, "pivot_root": 155, "_sysctl": 156,
            "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168,
            "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "create_module": 174,
            "init_module": 175, "delete_module": 176, "get_kernel_syms": 177, "query_module": 178, "quotactl": 179,
            "nfsservctl": 180, "lookup_dcookie": 212, "clock_settime": 227, "mbind": 237, "set_mempolicy": 238,
            "get_mempolicy": 239, "kexec_load": 246, "add_key": 248, "request_key": 249, "migrate_pages": 256,
            "unshare": 272, "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304,
            "setns": 308, "kcmp": 312, "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
        } | _SAME,
    ),
    "aarch64": _Machine(
        0xC00000B7, ioctl=29, clone=220, keyctl=219, personality=92, socket=198,
        denied={
            "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "nfsservctl": 42, "vhangup": 58,
            "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106,
            "clock_settime": 112, "syslog": 116, "reboot": 142, "sethostname": 161, "setdomainname": 162,
            "settimeofday": 170, "add_key": 217, "request_key": 218, "swapon": 224, "swapoff": 225, "mbind": 235,
            "get_mempolicy": 236, "set_mempolicy": 237, "migrate_pages": 238, "move_pages": 239, "perf_event_open": 241,
            "fanotify_init": 262, "open_by_handle_at": 265, "setns": 268, "kcmp": 272, "finit_module": 273, "bpf": 280,
            "userfaultfd": 282, "kexec_file_load": 294,
        } | _SAME,
    ),
}  # fmt: skip


class _Filter:
    """Instructions whose jumps name labels, which are placed later. A label may stand for the next instruction: ""."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, str, str, int]] = []
        self._places: dict[str, int] = {}

    def place(self, label: str) -> None:
        """Let the label mean the next instruction."""
        self._places[label] = len(self._steps)

    def load(self, offset: int) -> None:
        """Load a word of struct seccomp_data."""
        self._steps.append((_LOAD, "", "", offset))

    def mask(self, bits: int) -> None:
        """Leave those bits of what was loaded."""
        self._steps.append((_AND, "", "", bits))

    def jump(self, code: int, value: int, then: str = "", otherwise: str = "") -> None:
        """Compare what was loaded."""
        self._steps.append((code, then, otherwise, value))

    def go(self, label: str) -> None:
        """Go there: every number is at least 0."""
        self.jump(_AT_LEAST, 0, label)

    def end(self, label: str, action: int) -> None:
        """Place a label at which the filter answers."""
        self.place(label)
        self._steps.append((_RETURN, "", "", action))

    def program(self) -> bytes:
        """The instructions as the kernel takes them."""
        made = b""
        for at, (code, then, otherwise, value) in enumerate(self._steps):
            aims = [self._places[label] - at - 1 if label else 0 for label in (then, otherwise)]
            made += struct.pack("=HBBI", code, *aims, value)
        return made


def program(machine: str, *, unconfined: bool = False) -> bytes:
    """The filter's program for a machine as os.uname() names it.

    Raises: UnsupportedError for one that we do not know.
    """
    known = _known(machine)
    made = _Filter()
    made.load(_ARCHITECTURE)
    made.jump(_EQUAL, known.audit, otherwise="absent")
    made.load(_NUMBER)
    made.jump(_AT_LEAST, _FOREIGN, "absent")
    made.jump(_EQUAL, known.ioctl, "ioctl")
    made.jump(_EQUAL, known.keyctl, "keyctl")
    for name in _KEYS if unconfined else known.denied:
        made.jump(_EQUAL, known.denied[name], "denied")
    if not unconfined:
        for number, label in ((known.clone, "clone"), (known.personality, "personality"), (known.socket, "socket")):
            made.jump(_EQUAL, number, label)
        made.jump(_EQUAL, _CLONE3, "absent")
        made.jump(_AT_LEAST, _NEWER, "absent")
        made.go("allowed")
        _add_clone(made)
        _add_personality(made)
        _add_socket(made)
    else:
        made.go("allowed")
    _add_ioctl(made)
    _add_keyctl(made)
    made.end("allowed", _ALLOW)
    made.end("absent", _ERRNO | errno.ENOSYS)
    made.end("denied", _ERRNO | errno.EPERM)
    return made.program()


def keyctl_number(machine: str) -> int:
    """The number of keyctl(2). Raises: UnsupportedError."""
    return _known(machine).keyctl


def _known(machine: str) -> _Machine:
    if (known := _MACHINES.get(machine)) is None:
        raise UnsupportedError(f"containers run on {' and '.join(_MACHINES)} only: this machine is {machine}")
    return known


def _add_clone(made: _Filter) -> None:
    """No new namespaces: in one of users a process has all capabilities."""
    made.place("clone")
    made.load(_FIRST)
    made.jump(_HAS_ANY, _NAMESPACES, "denied", "allowed")


def _add_personality(made: _Filter) -> None:
    made.place("personality")
    made.load(_FIRST)
    for value in _PERSONALITIES:
        made.jump(_EQUAL, value, "allowed")
    made.go("denied")


def _add_socket(made: _Filter) -> None:
    """Neither the kernel's cryptography, nor sockets to virtual machines, which no network namespace holds."""
    made.place("socket")
    made.load(_FIRST)
    made.jump(_EQUAL, socket.AF_ALG, "denied")
    made.jump(_EQUAL, socket.AF_VSOCK, "denied", "allowed")


def _add_ioctl(made: _Filter) -> None:
    made.place("ioctl")
    made.load(_SECOND)
    made.mask(_KIND_AND_NUMBER)
    for number in _SUBVOLUMES:
        made.jump(_EQUAL, number, "denied")
    made.mask(_KIND)
    made.jump(_EQUAL, _LOOP, "denied", "allowed")


def _add_keyctl(made: _Filter) -> None:
    """A new session keyring without a name: that is how the program that starts the command leaves the kubelet's."""
    made.place("keyctl")
    made.load(_FIRST)
    made.jump(_EQUAL, _JOIN_SESSION_KEYRING, otherwise="denied")
    made.load(_SECOND)
    made.jump(_EQUAL, 0, otherwise="denied")
    made.load(_SECOND + _HIGH)
    made.jump(_EQUAL, 0, "allowed", "denied")
