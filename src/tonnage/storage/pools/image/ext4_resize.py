"""Crash-safe growth of an unmounted ext4. Blocking.

resize2fs and e2fsck change a file system in place, in an order that cannot be resumed. If they are stopped half-way,
the file system neither mounts nor checks (the superblock alone is written two bytes at a time). So e2image(8) first
saves its metadata next to the image, and they are restored before anything else is done with it. That recovers the old
file system: growing moves no data of files, it only allocates free blocks. Where the kernel permits it, a mounted ext4
grows instead, protected by its journal.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from tonnage.base.errors import BusyError, HostError, host_errors
from tonnage.host import device, files
from tonnage.host.descriptor import closing, opened
from tonnage.host.run import run
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.directory.directory import HALF
from tonnage.storage.pools.fs.holes import pieces
from tonnage.storage.pools.image import copy, file

log = logging.getLogger(__name__)
_BEFORE = ".before-"
_TIMEOUT = 3600.0  # seconds
_CHUNK = 1024**2


def grow(fd: int, image: Path, record: VolumeRecord) -> None:
    """Grow the file system of a locked image to its record's length. Record that, then forget(). Idempotent.

    Raises: HostError; then the file system is as before.
    """
    undo(fd, image, record.uuid)
    _keep(fd, image)
    try:
        copy.resize_ext4(fd, record.length)
    except HostError:
        undo(fd, image, record.uuid)
        raise
    with host_errors(f"cannot write {image}"):
        os.fsync(fd)


def _keep(fd: int, image: Path) -> None:
    """Save all metadata to a sparse file at their own offsets."""
    half, before = image.with_name(f"{HALF}{image.name}"), _before(image)
    run(["e2image", "-r", f"/dev/fd/{fd}", str(half)], timeout=_TIMEOUT, pass_fds=(fd,))
    with host_errors(f"cannot write {before}"):
        files.sync(half, os.O_NOFOLLOW)
        os.rename(half, before)
        files.sync(image.parent, os.O_NOFOLLOW)


def _before(image: Path) -> Path:
    return image.with_name(f"{_BEFORE}{image.stem}")


def undo(fd: int, image: Path, uuid: UUID) -> None:
    """Restore the saved metadata of a locked image, if growth was interrupted. Idempotent.

    uuid: of its file system; metadata saved of another one are removed. Raises: HostError.
    """
    before = _before(image)
    if device.find(before, follow=False) is None:
        return
    with (
        host_errors(f"cannot put back the metadata of {image} from {before}"),
        opened(before, os.O_RDONLY | os.O_NOFOLLOW) as source,
    ):
        found = device.probe(source)
        if found is not None and found.uuid == uuid:
            log.warning("growing a file system was stopped half-way, undone image=%s", image)
            for offset, data in pieces(source, _CHUNK):
                os.pwrite(fd, data, offset)
            os.fsync(fd)
    forget(image)


def forget(image: Path) -> None:
    """Remove the saved metadata, after the growth is recorded or the image is deleted. Idempotent.

    Raises: HostError.
    """
    with host_errors(f"cannot remove {_before(image)}"), suppress(FileNotFoundError):
        os.unlink(_before(image))


def settle(image: Path, record: VolumeRecord) -> None:
    """Recover an image whose growth was interrupted; leave others alone.

    Raises: BusyError while a tool of the killed process still works on it, HostError.
    """
    if device.find(_before(image), follow=False) is None:
        return
    if not record.pending:  # stopped between writing that down and forgetting
        forget(image)
        return
    with closing(file.open_image(image)) as fd:
        undo(fd, image, record.uuid)


def settle_all(pool: Path, records: dict[str, VolumeRecord], suffix: str, *, spared: Collection[str]) -> None:
    """Recover all images in a directory whose growth was interrupted in an earlier run.

    spared: names of damaged records, whose images are left alone. Raises: HostError.
    """
    for entry in os.listdir(pool):
        name = entry.removeprefix(_BEFORE)
        if name == entry or name in spared:
            continue
        if (record := records.get(name)) is None:
            forget(pool / f"{name}{suffix}")
            continue
        with suppress(BusyError):  # stage() waits for the tool's end
            settle(pool / f"{name}{suffix}", record)
