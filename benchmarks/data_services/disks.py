"""File systems in files for the time of a measurement: disks of other kinds than this machine's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tonnage.host import loop, mount

_MKFS: dict[str, Sequence[str]] = {
    # The block size of our loop devices; blocks can be shared.
    "xfs": ("mkfs.xfs", "-q", "-f", "-K", "-m", "reflink=1", "-s", "size=4096"),
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=1"),
    "btrfs": ("mkfs.btrfs", "-q", "-f", "-K"),
}


@contextmanager
def disk(folder: Path, fstype: str, size: int, *options: str) -> Iterator[Path]:
    """A mounted file system of so many bytes, in a sparse file; both are removed afterwards. Blocking. Needs root."""
    image, place = folder / f"{fstype}.img", folder / f"{fstype}-disk"
    place.mkdir()
    fd = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
        subprocess.run([*_MKFS[fstype], str(image)], check=True, capture_output=True)
        attached = loop.attach(fd, str(image))
        try:
            mount.mount(attached.path, place, fstype, options)
        finally:
            attached.close()
    finally:
        os.close(fd)
    try:
        yield place
    finally:
        mount.umount(place)  # which frees the loop device
        place.rmdir()
        image.unlink()
