"""Consistent copies of an image: its file system is frozen while it is read, if it is mounted. Blocking.

A file system that a killed process left frozen would block its pods forever. So a mark file next to the image records
it, and thaw_all() thaws it at the next start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tonnage.errors import PreconditionError, host_errors
from tonnage.host import loop
from tonnage.host.descriptor import closing, opened
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.fs import block_device, online
from tonnage.pools.fs.holes import data_ranges
from tonnage.pools.image import copy as image_copy
from tonnage.pools.image import ext4_resize, file

log = logging.getLogger(__name__)
_MARK = ".frozen-"


def copy(
    image: Path, record: VolumeRecord, target: Path, *, share: bool = True, is_frozen: bool = False
) -> tuple[int, bool]:
    """Copy the image of a volume to the new file target; return its descriptor and whether they share blocks.

    The copy is locked and not yet durable. share: whether sharing blocks is allowed. is_frozen: whether the caller
    holds its freeze(). Raises ExhaustedError,
    PreconditionError (in use in a way that allows no consistent copy), HostError.
    """
    fd = image_copy.make(target)
    try:
        with still(image, record, fd, share=share, is_frozen=is_frozen) as source:
            return fd, image_copy.copy(fd, source, target, share=share)
    except BaseException:
        os.close(fd)
        file.remove(target)
        raise


@contextmanager
def still(image: Path, record: VolumeRecord, fd: int, *, share: bool = True, is_frozen: bool = False) -> Iterator[int]:
    """Open the image for reading, with no writes to it while the body runs.

    fd: the empty file to copy to. share: whether that may share its blocks. is_frozen: whether it is still already.
    """
    if not is_frozen:
        ext4_resize.settle(image, record)
    is_still = is_frozen or not file.is_used(image)
    with closing(_open(image)) as source:
        if is_still:
            yield source
        elif record.block:
            if not share or not image_copy.can_share(fd, source):
                why = "its disk cannot share blocks between files" if share else "erasing forbids to share its blocks"
                raise PreconditionError(
                    f"raw block volume {record.name} is in use and {why}: a copy would not be of one moment; stop its"
                    " pod first" + (", or put the pool on xfs or btrfs" if share else "")
                )
            _flush(image)
            yield source
        else:
            with online.frozen(roots(image, record), record, _mark(image, record)):
                yield source


def _open(image: Path) -> int:
    with host_errors(f"cannot open {image}", advice="the volume's content is lost if it is"):
        return os.open(image, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _mark(image: Path, record: VolumeRecord) -> Path:
    return image.with_name(f"{_MARK}{record.name}")


def freeze(image: Path, record: VolumeRecord) -> online.Freeze:
    """A freeze of the mounted file system of an image, not begun. Raises PreconditionError."""
    ext4_resize.settle(image, record)
    return online.Freeze(roots(image, record), record, _mark(image, record))


def copied_bytes(image: Path, folder: Path, *, share: bool) -> int:
    """Bytes of data that a copy of an image to folder writes: 0 where it shares the blocks. Raises HostError.

    share: whether sharing is allowed.
    """
    with closing(_open(image)) as source, host_errors(f"cannot make a file in {folder}"):
        if share:
            with closing(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)) as probe:
                if image_copy.can_share(probe, source):
                    return 0
        return sum(end - start for start, end in data_ranges(source))


def _flush(image: Path) -> None:
    for index in loop.of_file(image):
        with opened(loop.device(index), os.O_RDONLY) as fd:
            os.fsync(fd)


def roots(image: Path, record: VolumeRecord) -> Iterator[int]:
    """The roots of all mounts of an image, opened; the caller closes them."""
    for index in loop.of_file(image):
        yield from block_device.roots(loop.device(index), record)


def thaw_all(pool: Path, records: dict[str, VolumeRecord], suffix: str) -> None:
    """Thaw file systems that a killed process left frozen. Raises HostError."""
    for entry in os.listdir(pool):
        name = entry.removeprefix(_MARK)
        if name == entry:
            continue
        if record := records.get(name):
            online.thaw_left(roots(pool / f"{name}{suffix}", record), record, pool / entry)
        else:
            online.remove_mark(pool / entry)
