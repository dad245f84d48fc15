"""Mounts without a fork, by the mount API of Linux 5.2, with mount(2) on older kernels. Blocking.

A mount point is opened once without following a symlink anywhere in its path, and the mount is moved onto that inode.
So a pod cannot exchange it in between.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tonnage.base.errors import HostError, PreconditionError, host_errors, ignore_errno
from tonnage.host import libc, nofollow, selinux
from tonnage.host.descriptor import closing, opened

log = logging.getLogger(__name__)

_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 442
_STATMOUNT = 457
_AT_FDCWD, _AT_EMPTY_PATH, _AT_SYMLINK_NOFOLLOW, _AT_NO_AUTOMOUNT = -100, 0x1000, 0x100, 0x800
_AT_RECURSIVE = 0x8000
_AT_DONT_SYNC = 0x4000  # a server over the network or of FUSE is not asked, it may be gone
_CLOEXEC, _TREE_CLONE, _MOVE_F_EMPTY, _MOVE_T_EMPTY = 1, 1, 4, 0x40
_SET_FLAG, _SET_STRING, _CMD_CREATE = 0, 1, 6
_MS_REMOUNT, _MS_BIND, _MS_PRIVATE, _MS_SLAVE = 32, 4096, 1 << 18, 1 << 19
_UMOUNT_NOFOLLOW, _MNT_DETACH = 8, 2
_STATX_ATTR_MOUNT_ROOT, _STATX_MNT_ID_UNIQUE, _STATX_MNT_ID_AT = 0x2000, 0x4000, 144
_STATMOUNT_OPTIONS, _STATMOUNT_STRINGS = 0x80, 512
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)  # such a path cannot be there
_NO_MOUNT = (errno.EINVAL, *_NOTHING)

_ATTRS = {"ro": (1, 1), "nosuid": (2, 2), "nodev": (4, 4), "noexec": (8, 8), "noatime": (0x10, 1024)}
_ATTRS |= {"relatime": (0, 1 << 21), "strictatime": (0x20, 1 << 24), "nodiratime": (0x80, 2048)}
_ATTR_ATIME = 0x70
BIND_OPTIONS = frozenset(_ATTRS)
"""Mount options that a bind mount can set."""
_DEFAULTS = frozenset({"rw", "suid", "dev", "exec", "atime", "diratime", "norelatime", "nostrictatime", "defaults"})


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mountinfo (proc(5)).

    root: the mounted part of the file system; device: major:minor; shared_options: of all mounts of the file system.
    """

    mount_id: int
    device: str
    root: str
    target: str
    options: str
    fstype: str
    source: str
    shared_options: str = ""

    @property
    def context(self) -> str:
        """The SELinux context of all its files, "" where each has its own label."""
        return selinux.shown_context(self.shared_options)

    @property
    def number(self) -> int:
        """The device number, as in os.stat()."""
        major, _, minor = self.device.partition(":")
        return os.makedev(int(major), int(minor))


def mounts() -> Iterator[Mount]:
    """All mounts of this process's mount namespace, in the kernel's order. Raises: HostError."""
    with host_errors("cannot read the table of mounts"):
        text = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    return parse(text)


def parse(text: str) -> Iterator[Mount]:
    """Parse the lines of a mountinfo file; unknown ones are skipped."""
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        head, tail = left.split(" "), right.split(" ")
        if separator and len(head) >= 6 and len(tail) >= 2 and head[0].isdigit():
            names = (_plain(head[3]), _plain(head[4]), head[5], _plain(tail[0]), _plain(tail[1]))
            yield Mount(int(head[0]), head[2], *names, shared_options=_plain(" ".join(tail[2:])))


def _plain(field: str) -> str:
    """Undo the octal escapes for space, tab, newline, backslash and '#'."""
    if "\\" not in field:
        return field
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def is_mount(path: str | os.PathLike[str]) -> bool:
    """Whether something is mounted exactly at path, bind mounts of the same file system included.

    False where nothing is. A symlink at the end is not followed. Also true where the file system that is mounted
    answers with errors only. Raises: HostError.
    """
    flags = _AT_SYMLINK_NOFOLLOW | _AT_NO_AUTOMOUNT | _AT_DONT_SYNC
    try:
        answer = libc.statx(_AT_FDCWD, os.fsencode(path), flags, 0)
    except OSError as failure:
        return failure.errno not in _NOTHING and at(path) is not None
    attributes, known = struct.unpack_from("=Q", answer, 8)[0], struct.unpack_from("=Q", answer, 56)[0]
    if known & _STATX_ATTR_MOUNT_ROOT:
        return bool(attributes & _STATX_ATTR_MOUNT_ROOT)
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))  # Linux before 5.8
    return any(mount.target == real for mount in mounts())


def at(path: str | os.PathLike[str]) -> Mount | None:
    """The topmost mount whose root is exactly at path, None for none. A symlink at the end is not followed.

    By descriptors and the mount table alone, which know also a file system that has shut down. Raises: HostError.
    """
    folder, name = os.path.split(os.fspath(path))
    with host_errors(f"cannot look at {path}"), ignore_errno(*_NOTHING):
        with opened(folder, os.O_PATH) as above, opened(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=above) as fd:
            number = mount_id(fd)
            if number == mount_id(above):
                return None
        return next((entry for entry in mounts() if entry.mount_id == number), None)
    return None


def mount_id(fd: int) -> int:
    """The number of an open file's mount, as in mountinfo. Unlike statx(2), it asks no file system. Raises: OSError."""
    text = Path(f"/proc/self/fdinfo/{fd}").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("mnt_id:")).partition(":")[2])


def device_at(path: str | os.PathLike[str]) -> int:
    """The device number of the file system at path, as in os.stat(); also of a mount that answers with errors only.

    0 where neither is known. Raises: HostError.
    """
    with suppress(OSError):
        return os.stat(path).st_dev
    entry = at(path)
    return entry.number if entry is not None else 0


def filesystem_options(path: str | os.PathLike[str]) -> frozenset[str]:
    """The options that a file system itself shows for the mount at path; none on Linux before 6.10.

    Raises: OSError where it does not answer.
    """
    answer = libc.statx(_AT_FDCWD, os.fsencode(path), _AT_DONT_SYNC, _STATX_MNT_ID_UNIQUE)
    if not struct.unpack_from("=I", answer)[0] & _STATX_MNT_ID_UNIQUE:
        return frozenset()
    number = struct.unpack_from("=Q", answer, _STATX_MNT_ID_AT)[0]
    request = struct.pack("=IIQQ", 24, 0, number, _STATMOUNT_OPTIONS)  # struct mnt_id_req
    buffer = ctypes.create_string_buffer(_STATMOUNT_STRINGS + 4096)
    with suppress(OSError):  # an older kernel, a sandbox, or more text than the buffer holds
        libc.syscall(_STATMOUNT, request, buffer, len(buffer), 0)
    _, start, known = struct.unpack_from("=IIQ", buffer)
    if not known & _STATMOUNT_OPTIONS:
        return frozenset()
    text = buffer.raw[_STATMOUNT_STRINGS + start :].partition(b"\0")[0]
    return frozenset(os.fsdecode(text).split(","))


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a mount point. Raises: PreconditionError for a symlink in its path, HostError."""
    with host_errors(f"cannot open {path}"):
        fd = nofollow.open_path(path)
    with closing(fd):
        yield fd


def mount(source: str, target: str | os.PathLike[str], fstype: str, options: Sequence[str] = ()) -> None:
    """Mount a file system. options: as after `mount -o`, one each.

    Raises: HostError with the kernel's message, PreconditionError when there is a symlink in target.
    """
    with _opened(target) as at:
        try:
            tree = _new_tree(source, fstype, options)
        except OSError as failure:
            if failure.errno != errno.ENOSYS:
                raise HostError(f"cannot mount {fstype} of {source} at {target}: {failure.strerror}") from failure
            _old_mount(source, target, at, fstype, options)
            return
        _move(tree, at, target)


def overlay(
    target: str | os.PathLike[str],
    lowers: Sequence[int],
    *,
    upper: int | None = None,
    work: int | None = None,
    options: Sequence[str] = (),
) -> None:
    """Mount an overlay of open directories, the highest of lowers first; read-only without upper and work.

    By mount(2): one string of all lowers, which descriptors hold below the page that the kernel takes. Raises:
    HostError (also for one lower without an upper), PreconditionError when there is a symlink in target.
    """
    parts = [f"lowerdir={':'.join(nofollow.by_fd(fd) for fd in lowers)}"]
    if upper is not None and work is not None:
        parts += [f"upperdir={nofollow.by_fd(upper)}", f"workdir={nofollow.by_fd(work)}"]
    with _opened(target) as at:
        _old_mount("overlay", target, at, "overlay", [*options, *parts])


def visit(source: str, fstype: str, options: Sequence[str] = ()) -> None:
    """Mount a file system detached and unmount it again, which replays its log. Raises: HostError."""
    with unseen(source, fstype, options):
        pass


@contextmanager
def unseen(source: str, fstype: str, options: Sequence[str] = ()) -> Iterator[int]:
    """A detached mount while the body runs, as a descriptor of its root. Raises: HostError.

    Other processes cannot see it. It ends with the last descriptor, also when this process is killed.
    """
    with host_errors(f"cannot mount {fstype} of {source}"):
        tree = _new_tree(source, fstype, options)
    with closing(tree):
        yield tree


def _new_tree(source: str, fstype: str, options: Sequence[str]) -> int:
    """A detached mount; it ends with its descriptor. Raises: OSError."""
    context = libc.syscall(_FSOPEN, fstype.encode(), _CLOEXEC)
    try:
        _configure(context, _SET_STRING, "source", source)
        attrs = 0
        for option in options:
            if option in _ATTRS:
                attrs |= _ATTRS[option][0]
            if option == "ro":
                _configure(context, _SET_FLAG, "ro", None)
            elif option not in _ATTRS and option not in _DEFAULTS:
                key, has_value, value = option.partition("=")
                value = value.removeprefix('"').removesuffix('"')  # they hold commas in the one text of mount(2)
                _configure(context, _SET_STRING if has_value else _SET_FLAG, key, value if has_value else None)
        libc.syscall(_FSCONFIG, context, _CMD_CREATE, None, None, 0)
        return libc.syscall(_FSMOUNT, context, _CLOEXEC, attrs)
    except OSError as failure:
        raise OSError(failure.errno, _with_kernel_words(context, failure)) from failure
    finally:
        os.close(context)


def _configure(context: int, command: int, key: str, value: str | None) -> None:
    libc.syscall(_FSCONFIG, context, command, key.encode(), None if value is None else os.fsencode(value), 0)


def _with_kernel_words(context: int, failure: OSError) -> str:
    """The error's text with the kernel's message about it ("e ext4: bad option")."""
    lines = []
    with suppress(OSError):
        while line := os.read(context, 4096):
            lines.append(line.decode(errors="replace").strip().removeprefix("e ").removeprefix("w "))
    return "; ".join([os.strerror(failure.errno or 0), *lines])


def _old_mount(source: str, target: str | os.PathLike[str], at: int, fstype: str, options: Sequence[str]) -> None:
    flags = 0
    for option in options:
        flags |= _ATTRS.get(option, (0, 0))[1]
    data = ",".join(option for option in options if option not in _ATTRS and option not in _DEFAULTS)
    with host_errors(f"cannot mount {fstype} of {source} at {target}"):
        libc.mount(os.fsencode(source), _by_fd(at), fstype.encode(), flags, data.encode() or None)


def bind(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    readonly: bool = False,
    options: Sequence[str] = (),
    private: bool = False,
) -> None:
    """Bind-mount a directory or file; read-only from the start where the kernel is 5.12 or later.

    options: of BIND_OPTIONS. private: what is mounted in one of the two is not mounted in the other. Raises: HostError,
    PreconditionError when there is a symlink in target.
    """
    attrs = [option for option in (*options, *(("ro",) if readonly else ())) if option in _ATTRS]
    with _opened(target) as at:
        with host_errors(f"cannot bind {source} to {target}"):
            try:
                tree = libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), _TREE_CLONE | os.O_CLOEXEC)
            except OSError as failure:
                if failure.errno != errno.ENOSYS:
                    raise
                _old_bind(source, at, attrs, private=private)
                return
            if not _set_attributes(tree, attrs, _MS_PRIVATE if private else 0):
                os.close(tree)
                _old_bind(source, at, attrs, private=private)
                return
        _move(tree, at, target)


def clone(source: str | os.PathLike[str] | int, options: Sequence[str] = ()) -> int:
    """A detached copy of what is mounted at a directory or file, and below it, as a descriptor of its root.

    It ends with the descriptor unless attach() puts it somewhere. source: a path, whose symlinks are followed, or an
    open file. options: of BIND_OPTIONS, for each mount of the copy. What is mounted in the copy is not mounted in the
    original; what is unmounted in a shared original is unmounted in the copy too, which so makes nothing busy.

    Raises: OSError, ENOSYS before Linux 5.12 (mount_setattr(2)).
    """
    at, path = (source, b"") if isinstance(source, int) else (_AT_FDCWD, os.fsencode(source))
    tree = libc.syscall(_OPEN_TREE, at, path, _TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE)
    try:
        set_options(tree, options, propagation=_MS_SLAVE, deep=True)
    except OSError:
        os.close(tree)
        raise
    return tree


def detached(source: str, fstype: str, options: Sequence[str] = ()) -> int:
    """A new file system, mounted nowhere, as a descriptor of its root. As clone(). Raises: OSError."""
    return _new_tree(source, fstype, options)


def attach(tree: int, at: int) -> None:
    """Mount what clone() or detached() has made on an open file of this thread's mount namespace. Raises: OSError.

    tree stays open, and is a descriptor of the mount's root.
    """
    libc.syscall(_MOVE_MOUNT, tree, b"", at, b"", _MOVE_F_EMPTY | _MOVE_T_EMPTY)


def set_options(root: int, options: Sequence[str], *, propagation: int = 0, deep: bool = False) -> None:
    """Add options, of BIND_OPTIONS, to the mount whose root is open. deep: also to all below it.

    propagation: a flag of mount(2), 0 for no change. Raises: OSError, ENOSYS before Linux 5.12.
    """
    bits = 0
    for name in options:
        bits |= _ATTRS[name][0]
    attr = struct.pack("=QQQQ", bits, 0, propagation, 0)  # struct mount_attr
    libc.syscall(_MOUNT_SETATTR, root, b"", _AT_EMPTY_PATH | (_AT_RECURSIVE if deep else 0), attr, len(attr))


def _set_attributes(tree: int, attrs: Sequence[str], propagation: int) -> bool:
    """Set the attributes of a detached mount. False where the kernel cannot."""
    bits = 0
    for name in attrs:
        bits |= _ATTRS[name][0]
    clear = _ATTR_ATIME if bits & _ATTR_ATIME or "relatime" in attrs else 0
    if not bits and not clear and not propagation:
        return True
    attr = struct.pack("=QQQQ", bits, clear, propagation, 0)  # struct mount_attr
    try:
        libc.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attr, len(attr))
    except OSError as failure:
        if failure.errno == errno.ENOSYS:
            return False
        os.close(tree)
        raise
    return True


def _old_bind(source: str | os.PathLike[str], at: int, attrs: Sequence[str], *, private: bool) -> None:
    libc.mount(os.fsencode(source), _by_fd(at), None, _MS_BIND, None)
    flags = 0
    for name in attrs:
        flags |= _ATTRS[name][1]
    # Through the path again: the descriptor still shows what is under the mount.
    for change in (_MS_REMOUNT | _MS_BIND | flags if flags else 0, _MS_PRIVATE if private else 0):
        if change:
            libc.mount(None, os.readlink(_by_fd(at)), None, change, None)


def _move(tree: int, at: int, target: str | os.PathLike[str]) -> None:
    with closing(tree), host_errors(f"cannot mount at {target}"):
        attach(tree, at)


def _by_fd(fd: int) -> bytes:
    return nofollow.by_fd(fd).encode()


def umount(target: str | os.PathLike[str], *, lazy: bool = False) -> bool:
    """Unmount the topmost mount at target; False when nothing is mounted there. Follows no symlink.

    Never looks at what is mounted. Lazily at last, when the kernel rejects for another reason than that it is in use.
    Raises: PreconditionError while it is in use or when there is a symlink on the way to it, HostError.
    """
    with host_errors(f"cannot unmount {target}"), ignore_errno(*_NOTHING), nofollow.parent(target) as (at, _):
        return umount_in(at, target, lazy=lazy)
    return False


def umount_in(at: int, target: str | os.PathLike[str], *, lazy: bool = False) -> bool:
    """The same with an open descriptor of target's directory."""
    name = os.fsencode(nofollow.by_fd(at, os.path.basename(target)))
    with host_errors(f"cannot unmount {target}"), ignore_errno(*_NO_MOUNT):
        try:
            libc.umount2(name, _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0))
        except OSError as failure:
            if failure.errno == errno.EBUSY:
                raise PreconditionError(
                    f"{target} is in use: a process has a file or directory of it open"
                ) from failure
            if lazy or failure.errno in (errno.EPERM, *_NO_MOUNT):
                raise
            log.warning("cannot unmount, detaching target=%s error=%s", target, failure.strerror)
            libc.umount2(name, _UMOUNT_NOFOLLOW | _MNT_DETACH)
        return True
    return False
