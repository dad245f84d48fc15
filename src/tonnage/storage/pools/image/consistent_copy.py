"""Consistent copies of an image that is mounted, or not. Blocking.

Where files share blocks, the kernel shares all blocks of an image at one moment. The copy then is what a power cut at
that moment would leave, after all that was written before has been synced. A file system is made for that: its log is
replayed in each copy. To freeze it instead takes nine flushes of its disk, one after the other, while writers wait.

It is frozen where its image is copied byte by byte or has many extents, where it has no log, and in a group of volumes.
A file system that a killed process left frozen would block its pods forever. So a mark file next to the image records
it, and thaw_all() thaws it at the next start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

from tonnage.base.errors import PreconditionError, host_errors
from tonnage.host import device, loop
from tonnage.host.descriptor import closing, opened
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.fs import block_device, online
from tonnage.storage.pools.fs.holes import data_ranges
from tonnage.storage.pools.image import copy as image_copy
from tonnage.storage.pools.image import ext4_resize, file

log = logging.getLogger(__name__)
_MARK = ".frozen-"
_FEW = 1000
"""Extents of an image whose blocks are shared at one moment: more take longer than a freeze."""


def copy(
    image: Path, record: VolumeRecord, target: Path, *, share: bool = True, is_frozen: bool = False
) -> tuple[int, bool]:
    """Copy the image of a volume to the new file target; return its descriptor and whether they share blocks.

    The copy is locked and not yet durable. share: whether sharing blocks is allowed. is_frozen: whether the caller
    holds its freeze(). Raises: ExhaustedError,
    PreconditionError (in use in a way that allows no consistent copy), HostError.
    """
    if not is_frozen:
        ext4_resize.settle(image, record)
    is_still = is_frozen or not file.is_used(image)
    fd = image_copy.make(target)
    try:
        with closing(_open(image)) as source:
            if not is_still and not record.block:
                return fd, _copy_mounted(image, record, fd, source, target, share=share)
            if not is_still:
                _check_shares(record, fd, source, share=share)
                _flush(image)
            return fd, image_copy.copy(fd, source, target, share=share)
    except BaseException:
        os.close(fd)
        file.remove(target)
        raise


def _copy_mounted(image: Path, record: VolumeRecord, fd: int, source: int, target: Path, *, share: bool) -> bool:
    """Copy an image whose file system programs use: they wait for as short as possible."""
    early = image_copy.share_early(fd, source) if share else None
    if early is not None and len(early) <= _FEW and _survives(source, image):
        _sync(image, record)
        image_copy.share_at_once(fd, source)
        return True
    with online.frozen(roots(image, record), record, _mark(image, record)):
        if early is None:
            return image_copy.copy(fd, source, target, share=share)
        image_copy.catch_up(fd, source, early)
        return True


def _survives(source: int, image: Path) -> bool:
    with host_errors(f"cannot read {image}"):
        return device.survives_power_cuts(source)


def _sync(image: Path, record: VolumeRecord) -> None:
    """Write what programs have written before, so that the copy has it. Raises: as freeze(), HostError."""
    freeze = online.Freeze(roots(image, record), record, _mark(image, record))
    try:
        freeze.sync()
    finally:
        freeze.end()


def _check_shares(record: VolumeRecord, fd: int, source: int, *, share: bool) -> None:
    """Raises: PreconditionError when raw block that is in use would be copied byte by byte, which takes a while."""
    if not share or not image_copy.can_share(fd, source):
        _reject_block(record, share=share)


def _reject_block(record: VolumeRecord, *, share: bool) -> NoReturn:
    why = "its disk cannot share blocks between files" if share else "erasing forbids to share its blocks"
    raise PreconditionError(
        f"raw block volume {record.name} is in use and {why}: a copy would not be of one moment; stop its"
        " pod first" + (", or put the pool on xfs or btrfs" if share else "")
    )


def _open(image: Path) -> int:
    with host_errors(f"cannot open {image}", advice="the volume's content is lost if it is"):
        return os.open(image, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _mark(image: Path, record: VolumeRecord) -> Path:
    return image.with_name(f"{_MARK}{record.name}")


def freeze(image: Path, record: VolumeRecord) -> online.Freeze:
    """A freeze of the mounted file system of an image, not begun. Raises: PreconditionError."""
    ext4_resize.settle(image, record)
    return online.Freeze(roots(image, record), record, _mark(image, record))


def check(image: Path, record: VolumeRecord, folder: Path, *, share: bool) -> int:
    """As copied_bytes(). Raises: PreconditionError for raw block in use that would be copied, HostError."""
    copied = copied_bytes(image, folder, share=share)
    if copied and record.block and file.is_used(image):
        _reject_block(record, share=share)
    return copied


def copied_bytes(image: Path, folder: Path, *, share: bool) -> int:
    """Bytes of data that a copy of an image to folder writes: 0 where it shares the blocks. Raises: HostError.

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
    """Thaw file systems that a killed process left frozen. Raises: HostError."""
    for entry in os.listdir(pool):
        name = entry.removeprefix(_MARK)
        if name == entry:
            continue
        if record := records.get(name):
            image = pool / f"{name}{suffix}"
            online.thaw_left(roots(image, record), record, pool / entry, is_used=partial(file.is_used, image))
        else:
            online.remove_mark(pool / entry)
