"""What the kernel and mkfs alone take for what the driver does: the lower bounds."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from tonnage.host import btrfs, loop, mount
from tonnage.storage.pools.fs.formats import EXT4


def life(folder: Path, size: int) -> float:
    """Milliseconds for a file, mkfs.ext4 with our options, loop device, mount, bind, and everything undone: each step
    that CSI answers is on the disk before the next.

    That is the file and its folder synced when it is made, the file system synced when mkfs is done, the folder synced
    when the file is gone. What a driver writes for itself is not in it: the volume's record, which is synced with its
    folder when it is made and when the volume has been formatted.
    """
    image, staging, target = folder / "bare.img", folder / "bare-staging", folder / "bare-target"
    length = EXT4.length(size)
    began = time.perf_counter()
    fd = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, length)
        os.fsync(fd)
        _sync(folder)
        subprocess.run(EXT4.mkfs(str(image), length, uuid4()), check=True, capture_output=True)
        os.fsync(fd)
        staging.mkdir()
        target.mkdir()
        attached = loop.attach(fd, str(image))
        try:
            mount.mount(loop.device(attached.index), staging, "ext4", ("nodev",))
        finally:
            attached.close()
    finally:
        os.close(fd)
    mount.bind(staging, target)
    mount.umount(target)
    mount.umount(staging)
    target.rmdir()
    staging.rmdir()
    image.unlink()
    _sync(folder)
    return (time.perf_counter() - began) * 1000


def _sync(folder: Path) -> None:
    with _open(folder) as at:
        os.fsync(at)


def created(folder: Path, name: str) -> float:
    """Milliseconds for the commit of a btrfs in which a subvolume with a limit was made."""
    with _open(folder) as at:
        btrfs.create(at, name, 1 << 27)
        return _commit(at)


def deleted(folder: Path, name: str) -> float:
    """Milliseconds for the commit of a btrfs in which a subvolume was deleted."""
    with _open(folder) as at:
        btrfs.delete(at, name)
        return _commit(at)


@contextmanager
def _open(folder: Path) -> Iterator[int]:
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield at
    finally:
        os.close(at)


def _commit(at: int) -> float:
    began = time.perf_counter()
    btrfs.commit(at)
    return (time.perf_counter() - began) * 1000
