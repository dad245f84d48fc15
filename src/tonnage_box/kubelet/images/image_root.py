"""Root of a container that runs from an image: an overlay of its layers and of a folder that goes with the container.

An image's symlinks may lead anywhere, and bwrap would follow them out of the root. So bwrap gets two paths only, which
are made here and are no symlinks; no process of the container runs yet. Blocking.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import ExitStack

from tonnage.base.errors import InvalidError, NotFoundError, host_errors, ignore_errno
from tonnage.host import mount, nofollow
from tonnage.host.descriptor import closing, opened
from tonnage.storage.images.store import ImageRecord, ImageStore
from tonnage_box.kubelet.containers.mounts.mount_point import place
from tonnage_box.kubelet.containers.process import ROOT
from tonnage_box.kubelet.folder import remove_tree
from tonnage_box.kubelet.images.node_images import UPPER, WORK

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FIXED = ("/proc", "/dev")


def make(folder: str, store: ImageStore, image: str) -> ImageRecord:
    """Mount the root of an image in a container's folder. Raises: HostError, NotFoundError (removed meanwhile)."""
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

    Raises: HostError, PreconditionError (in use).
    """
    while mount.umount(f"{folder}/{ROOT}"):
        continue
    for name in (ROOT, WORK, UPPER):  # the last protects the layers
        remove_tree(f"{folder}/{name}")


def prepare(folder: str, files: Mapping[str, bytes]) -> None:
    """Make what bwrap mounts on, and the files of /etc.

    Raises: InvalidError (the image has something else there), HostError.
    """
    with host_errors("the image's root cannot be prepared"), opened(f"{folder}/{ROOT}", _FOLDER) as root:
        for path in _FIXED:
            if place(root, path, folder=True) != path:
                raise InvalidError(f"the image has a symlink at {path}: it is not followed")
        _write_etc(root, files)


def _write_etc(root: int, files: Mapping[str, bytes]) -> None:
    """Write files of /etc anew, whatever is there."""
    place(root, "/etc", folder=True)
    with closing(nofollow.open_in_root(root, "/etc", os.O_RDONLY | os.O_DIRECTORY)) as etc:
        for name in files:
            with ignore_errno(errno.ENOENT):
                os.unlink(name, dir_fd=etc)
        for name, content in files.items():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with opened(name, flags, dir_fd=etc) as fd:
                os.write(fd, content)
                os.fchmod(fd, 0o644)


def read(folder: str, path: str, most: int) -> str:
    """A file of the image, at most so many bytes; "" if there is none. Raises: OSError."""
    absent = ignore_errno(errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
    with (
        absent,
        opened(f"{folder}/{ROOT}", _FOLDER) as root,
        closing(nofollow.open_in_root(root, path, os.O_RDONLY | os.O_NONBLOCK)) as fd,
    ):
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return os.read(fd, most).decode(errors="surrogateescape")
    return ""
