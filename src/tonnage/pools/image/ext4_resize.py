"""Growing an ext4 that is not mounted, so that a kill or a power cut in the middle loses nothing. Blocking.

resize2fs and e2fsck change a file system in place, in an order that nobody can resume: stopped half-way they leave one
that neither mounts nor checks (the superblock alone is written two bytes at a time). So its metadata are kept beside
the image first, by e2image(8), and put back before anything else is done with it. That makes the old file system whole
again: growing moves no data of files, it only takes blocks that were free. Where the kernel lets us, a mounted ext4
grows instead, which its journal makes safe.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from tonnage.errors import Busy, HostError
from tonnage.host import device
from tonnage.host.run import run
from tonnage.pools.base.record import Record
from tonnage.pools.directory.directory import HALF
from tonnage.pools.image import copy, file

log = logging.getLogger(__name__)
_BEFORE = ".before-"
_TIMEOUT = 3600.0  # seconds
_CHUNK = 1024**2


def grow(fd: int, image: Path, record: Record) -> None:
    """Let the file system of a locked image take all of its record's length. Write down that it has, then forget().

    May be repeated. Raises HostError; then the file system is as before.
    """
    undo(fd, image, record.uuid)
    _keep(fd, image)
    try:
        copy.resize_ext4(fd, record.length)
        os.fsync(fd)
    except OSError as failure:
        raise HostError(f"cannot write {image}: {failure.strerror}") from failure
    except HostError:
        undo(fd, image, record.uuid)
        raise


def _keep(fd: int, image: Path) -> None:
    """Copy all metadata to a sparse file where each block has its place."""
    half, before = image.with_name(f"{HALF}{image.name}"), _before(image)
    run(["e2image", "-r", f"/dev/fd/{fd}", str(half)], timeout=_TIMEOUT, pass_fds=(fd,))
    try:
        _sync(half)
        os.rename(half, before)
        _sync(image.parent)
    except OSError as failure:
        raise HostError(f"cannot write {before}: {failure.strerror}") from failure


def _before(image: Path) -> Path:
    return image.with_name(f"{_BEFORE}{image.stem}")


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def undo(fd: int, image: Path, uuid: UUID) -> None:
    """Put back what was kept of a locked image, if growing it was stopped; nothing where that was not so.

    uuid: of its file system: what was kept of another is thrown away. May be repeated. Raises HostError.
    """
    before = _before(image)
    try:
        source = os.open(before, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as failure:
        raise HostError(f"cannot open {before}: {failure.strerror}") from failure
    try:
        found = device.probe(source)
        if found is not None and found.uuid == uuid:
            log.warning("growing a file system was stopped half-way, undone image=%s", image)
            for offset, data in _runs(source):
                os.pwrite(fd, data, offset)
            os.fsync(fd)
    except OSError as failure:
        raise HostError(f"cannot put back the metadata of {image} from {before}: {failure.strerror}") from failure
    finally:
        os.close(source)
    forget(image)


def _runs(fd: int) -> Iterator[tuple[int, bytes]]:
    """All that is no hole."""
    at, end = 0, os.fstat(fd).st_size
    while at < end:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # nothing but a hole up to the end
            return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        for offset in range(start, at, _CHUNK):
            yield offset, os.pread(fd, min(_CHUNK, at - offset), offset)


def forget(image: Path) -> None:
    """Remove what was kept: the growth is written down, or the image is gone. May be repeated. Raises HostError."""
    try:
        with suppress(FileNotFoundError):
            os.unlink(_before(image))
    except OSError as failure:
        raise HostError(f"cannot remove {_before(image)}: {failure.strerror}") from failure


def settle(image: Path, record: Record) -> None:
    """Make an image whole that a process was growing when it was stopped; others are left alone.

    Raises Busy while a tool of that process is still at work on it, HostError.
    """
    if not os.path.lexists(_before(image)):
        return
    if not record.pending:  # stopped between writing that down and forgetting
        forget(image)
        return
    fd = file.open_image(image)
    try:
        undo(fd, image, record.uuid)
    finally:
        os.close(fd)


def settle_all(pool: Path, records: dict[str, Record], suffix: str, *, spared: Collection[str]) -> None:
    """Make whole what an earlier run left half grown in a folder of images. spared: names of damaged records, whose
    images are left alone. Raises HostError."""
    for entry in os.listdir(pool):
        name = entry.removeprefix(_BEFORE)
        if name == entry or name in spared:
            continue
        if (record := records.get(name)) is None:
            forget(pool / f"{name}{suffix}")
            continue
        with suppress(Busy):  # stage() waits for the tool's end
            settle(pool / f"{name}{suffix}", record)
