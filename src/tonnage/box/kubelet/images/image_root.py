"""Root of a container that runs from an image: an overlay of its layers and of a folder that goes with the container.

An image's symlinks may lead anywhere, and bwrap would follow them out of the root. So every path that bwrap gets is
resolved here, inside the image, and made where it is missing; no process of the container runs yet. Blocking.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

from tonnage.box.kubelet.containers import rootfs
from tonnage.box.kubelet.containers.process import ROOT
from tonnage.box.kubelet.containers.rootfs import Bind
from tonnage.box.kubelet.folder import remove_tree
from tonnage.box.kubelet.images.node_images import UPPER, WORK
from tonnage.errors import HostError, InvalidError, NotFoundError, host_errors, ignore_errno
from tonnage.host import mount, nofollow
from tonnage.host.descriptor import closing, opened
from tonnage.images.store import ImageRecord, ImageStore

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FIXED = ("/proc", "/dev")
_MAX_LINKS = 40


def make(folder: str, store: ImageStore, image: str) -> ImageRecord:
    """Mount the root of an image in a container's folder. Raises HostError, NotFoundError (removed meanwhile)."""
    for name in (ROOT, UPPER, WORK):
        os.mkdir(f"{folder}/{name}", 0o755)
    record = store.use(image, f"{folder}/{UPPER}")  # what the name means now: only that is protected
    if record is None:
        raise NotFoundError(f"image {image}: it was removed meanwhile")
    with ExitStack() as stack, host_errors(f"image {record.name}: its layers cannot be opened"):
        lowers = [stack.enter_context(opened(store.layer(chain), _FOLDER)) for chain in reversed(record.layers)]
        upper, work = (stack.enter_context(opened(f"{folder}/{name}", _FOLDER)) for name in (UPPER, WORK))
        if not lowers:  # an image without layers is an empty folder
            lowers = [stack.enter_context(opened(f"{folder}/{ROOT}", _FOLDER))]
        found = os.fstat(lowers[0])
        os.fchown(upper, found.st_uid, found.st_gid)
        os.fchmod(upper, stat.S_IMODE(found.st_mode))
        mount.overlay(f"{folder}/{ROOT}", lowers, upper=upper, work=work, options=("nosuid", "nodev"))
    return record


def remove(folder: str) -> None:
    """Unmount the root and remove all that was written into it; also that of a container without an image. Idempotent.

    Raises HostError, PreconditionError (in use).
    """
    while mount.umount(f"{folder}/{ROOT}"):
        continue
    for name in (ROOT, WORK, UPPER):  # the last protects the layers
        remove_tree(f"{folder}/{name}")


def prepare(folder: str, binds: Sequence[Bind], files: dict[str, str], working_dir: str) -> list[Bind]:
    """Make what bwrap mounts on, the files of /etc and the working directory; returns binds with real targets.

    Raises InvalidError (the image has something else there), HostError.
    """
    with host_errors("the image's root cannot be prepared"), opened(f"{folder}/{ROOT}", _FOLDER) as root:
        for path in _FIXED:
            if place(root, path, folder=True) != path:
                raise InvalidError(f"the image has a symlink at {path}: it is not followed")
        _write_etc(root, files)
        placed: dict[str, str] = {}
        real = []
        for bind in sorted(binds, key=lambda b: b.target.count("/")):
            placed[bind.target] = _target(root, bind, placed)
            real.append(replace(bind, target=placed[bind.target]))
        if working_dir and not working_dir.startswith(("/dev/", "/proc/")) and not rootfs.holder(binds, working_dir):
            place(root, working_dir, folder=True)
        return real


def _target(root: int, bind: Bind, placed: dict[str, str]) -> str:
    """Where a bind is mounted: in /dev and in other volumes as it is, else at the real path in the image."""
    if bind.target.startswith("/dev/"):
        return bind.target
    outer = max((path for path in placed if bind.target.startswith(f"{path}/")), key=len, default="")
    if outer:
        return placed[outer] + bind.target[len(outer) :]
    real = place(root, bind.target, folder=not bind.device and os.path.isdir(bind.source))
    if real == "/" or real in _FIXED or real.startswith(tuple(f"{path}/" for path in _FIXED)):
        raise InvalidError(f"mountPath {bind.target!r} leads to {real} by a symlink of the image: it is not mounted")
    return real


def place(root: int, path: str, *, folder: bool, links: int = 0) -> str:
    """The real path of an absolute path inside root, an open directory; made as a folder or file if it is missing.

    What a symlink leads to is made too. links: how many such were followed. Raises InvalidError (something else is
    there), OSError.
    """
    done, parts = "/", [part for part in path.split("/") if part]
    for number, part in enumerate(parts, 1):
        wants_folder = folder or number < len(parts)
        candidate = f"{done.rstrip('/')}/{part}"
        try:
            fd = _opened_or_made(root, done, part, wants_folder=wants_folder)
        except OSError as failure:
            if failure.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            link = _link(root, done, part) if failure.errno == errno.ENOENT and links < _MAX_LINKS else ""
            if link:
                return place(root, "/".join([link, *parts[number:]]), folder=folder, links=links + 1)
            raise InvalidError(f"path {candidate!r} leads nowhere in the image: {failure.strerror}") from failure
        with closing(fd):
            if stat.S_ISDIR(os.fstat(fd).st_mode) != wants_folder:
                what = "no folder" if wants_folder else "a folder"
                raise InvalidError(f"path {candidate!r} is {what} in the image")
            done = _real(root, fd)
    return done


def _opened_or_made(root: int, at: str, name: str, *, wants_folder: bool) -> int:
    path = f"{at.rstrip('/')}/{name}"
    try:
        return _in_root(root, path)
    except FileNotFoundError:
        with closing(_in_root(root, at)) as parent, suppress(FileExistsError):
            if wants_folder:
                os.mkdir(name, 0o755, dir_fd=parent)
            else:
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=parent))
        return _in_root(root, path)


def _link(root: int, at: str, name: str) -> str:
    """Where a symlink leads, as an absolute path; "" if it is none."""
    with closing(_in_root(root, at)) as parent, ignore_errno(errno.EINVAL, errno.ENOENT):
        return os.path.normpath(os.path.join("/", at, os.readlink(name, dir_fd=parent)))
    return ""


def _in_root(root: int, path: str) -> int:
    try:
        return nofollow.open_in_root(root, path)
    except OSError as failure:
        if failure.errno == errno.ENOSYS:
            raise HostError("images need Linux 5.6 or later (openat2)") from failure
        raise


def _real(root: int, fd: int) -> str:
    """The path of an open file inside root."""
    base, path = (os.readlink(nofollow.by_fd(one)) for one in (root, fd))
    return path[len(base.rstrip("/")) :] or "/"


def _write_etc(root: int, files: dict[str, str]) -> None:
    """Write files of /etc anew, whatever is there."""
    place(root, "/etc", folder=True)
    with closing(nofollow.open_in_root(root, "/etc", os.O_RDONLY | os.O_DIRECTORY)) as etc:
        for name in files:
            with ignore_errno(errno.ENOENT):
                os.unlink(name, dir_fd=etc)
        for name, text in files.items():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with opened(name, flags, dir_fd=etc) as fd:
                os.write(fd, text.encode(errors="surrogateescape"))
                os.fchmod(fd, 0o644)


def read(folder: str, path: str, most: int) -> str:
    """A file of the image, at most so many bytes; "" if there is none. Raises OSError."""
    absent = ignore_errno(errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
    with (
        absent,
        opened(f"{folder}/{ROOT}", _FOLDER) as root,
        closing(nofollow.open_in_root(root, path, os.O_RDONLY | os.O_NONBLOCK)) as fd,
    ):
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return os.read(fd, most).decode(errors="surrogateescape")
    return ""
