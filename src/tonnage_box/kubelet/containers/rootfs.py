"""Root file system of a container: bwrap's arguments for a private root over the machine's /usr.

The root is a fresh folder on the node's disk, deleted with the container. /usr and a few files of /etc come read-only
from the machine; /proc and /dev are new and minimal. The network is the machine's. Capabilities are those of usual
containers without CAP_MKNOD and CAP_NET_RAW; the program that starts the command drops what the container shall not
have. No program gains any (no_new_privs), and device files in volumes do not work (nodev).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from tonnage.base.errors import InvalidError
from tonnage.host.encoding import encode
from tonnage.kubernetes.api.pods import SecurityContext
from tonnage_box.api.pod_security import CAPABILITIES

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ADDRESS = "127.0.0.1"
"""The IP of each node, which its pods share."""
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_FOLDERS = (
    "etc",
    "home",
    "mnt",
    "opt",
    "root",
    "run",
    "srv",
    "tmp",
    "var",
    "var/cache",
    "var/lib",
    "var/log",
    "var/tmp",
)
_OF_ETC = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/terminfo",
)
_PROC_READ_ONLY = ("/proc/sys", "/proc/sysrq-trigger", "/proc/fs", "/proc/irq", "/proc/bus", "/proc/acpi", "/proc/mtrr")
_PROC_HIDDEN = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kmsg")
_TAKEN = ("/", "/usr", "/proc", "/dev", "/bin", "/sbin", "/lib", "/lib64")
_TAKEN_IN_IMAGE = ("/", "/proc", "/dev")
MAX_ID = (1 << 31) - 1
"""The highest user or group, as in Kubernetes."""


@dataclass(frozen=True)
class User:
    """User and groups of the container's processes."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    home: str = ""
    """Its home folder; "" for that of the machine's root file system."""

    @property
    def home_folder(self) -> str:
        """Its home folder."""
        return self.home or ("/root" if self.uid == 0 else "/")

    def checked(self) -> User:
        """The same, where all ids are ids: -1 and 4294967295 mean "no change" to the kernel. Raises: InvalidError."""
        for number in (self.uid, self.gid, *self.groups):
            if not 0 <= number <= MAX_ID:
                raise InvalidError(f"user or group {number}: must be between 0 and {MAX_ID}, inclusive")
        return self


@dataclass(frozen=True)
class Bind:
    """A bind mount from the machine into the container. target is absolute and normalized.

    nests: mount points of other volumes are made in it also where the container may only read it.
    """

    source: str
    target: str
    read_only: bool = False
    device: bool = False
    nests: bool = False


def user(pod: SecurityContext, container: SecurityContext) -> User:
    """Whom both security contexts ask for; the container's word comes first. Raises: InvalidError."""
    uid = container.run_as_user if container.run_as_user is not None else pod.run_as_user
    gid = container.run_as_group if container.run_as_group is not None else pod.run_as_group
    nonroot = container.run_as_non_root if container.run_as_non_root is not None else pod.run_as_non_root
    if nonroot and not uid:
        raise InvalidError("container has runAsNonRoot and would run as root: set runAsUser")
    return User(uid or 0, gid or 0, groups_of(pod)).checked()


def groups_of(pod: SecurityContext) -> tuple[int, ...]:
    """Groups of all processes of a pod besides their own, each once."""
    return tuple(dict.fromkeys([*pod.supplemental_groups, *([pod.fs_group] if pod.fs_group is not None else [])]))


def taken(*, in_image: bool) -> tuple[str, ...]:
    """Real paths that nothing may cover. in_image: the root is that of an image, in which /usr is like any folder."""
    return _TAKEN_IN_IMAGE if in_image else _TAKEN


def target(path: str, word: str = "mountPath", *, in_image: bool = False) -> str:
    """A mountPath or devicePath (word) in normal form.

    Raises: InvalidError for one that would cover what must be there.

    in_image: as for taken().
    """
    encode(path, word)
    if not path.startswith("/") or ".." in path.split("/"):
        raise InvalidError(f"{word} {path[:80]!r}: want an absolute path without '..'")
    clean = os.path.normpath("/" + path.strip("/"))
    if clean in taken(in_image=in_image) or clean.startswith("/proc/"):
        raise InvalidError(f"{word} {clean!r} would cover a part of the container's root that must stay")
    return clean


def populate(root: str, who: User, network: Mapping[str, bytes]) -> None:
    """Fill a fresh, empty folder with what a root needs. network: files of /etc. Raises: OSError."""
    for folder in _FOLDERS:
        os.mkdir(f"{root}/{folder}", 0o755)
    os.chmod(f"{root}/root", 0o700)
    for folder in ("tmp", "var/tmp"):
        os.chmod(f"{root}/{folder}", 0o1777)
    passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    group = "root:x:0:\nnogroup:x:65534:\n"
    if who.uid not in (0, 65534):
        passwd += f"user:x:{who.uid}:{who.gid}::/:/bin/sh\n"
    if who.gid not in (0, 65534):
        group += f"user:x:{who.gid}:\n"
    files = {"passwd": passwd.encode(), "group": group.encode(), **network}
    for file, content in files.items():
        with open(f"{root}/etc/{file}", "wb") as out:
            out.write(content)


def machines_resolv_conf() -> str:
    """Settings of name lookup of this machine, "" where there are none."""
    with suppress(OSError), open("/etc/resolv.conf", errors="surrogateescape") as file:
        return file.read()
    return ""


def arguments(*, name: str, environment: Mapping[str, str], in_image: bool = False) -> list[str]:
    """bwrap's arguments after the root's own --bind. No path among them is a pod's or leads into a volume.

    in_image: the root is an image's, with all in it that is needed.

    They hold the environment, so they are not for a command line, which everybody on the machine can read.
    """
    args = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", name, "--unshare-cgroup-try"]
    args += [*([] if in_image else _machine_files()), "--proc", "/proc", *_guard_proc(), "--dev", "/dev"]
    args += ["--chdir", "/", "--cap-drop", "ALL"]
    for capability in CAPABILITIES:
        args += ["--cap-add", capability]
    args += ["--clearenv"]
    for key, value in environment.items():
        args += ["--setenv", key, value]
    return args


def _machine_files() -> list[str]:
    """/usr, what other systems have outside of it, and a few files of /etc; read-only."""
    args = ["--ro-bind", "/usr", "/usr"]
    for path in (f"/{folder}" for folder in _MERGED):
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path).lstrip("/"), path]
        elif os.path.isdir(path):
            args += ["--ro-bind", path, path]
    for path in _OF_ETC:
        args += ["--ro-bind-try", path, path]
    return args


def _guard_proc() -> list[str]:
    """Make the machine's part of /proc read-only or hide it: root in a container is the machine's root to sysctls.

    bwrap does so only where access(2) says that it may write, which /proc/sys denies even to root.
    """
    args = []
    for path in _PROC_READ_ONLY:
        args += ["--ro-bind-try", path, path]
    for path in _PROC_HIDDEN:
        if os.path.exists(path):
            args += ["--ro-bind", "/dev/null", path]
    return args
