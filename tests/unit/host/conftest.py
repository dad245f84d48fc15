"""File systems on loop devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.unit.host.mounted import MI, Mounted

from tonnage.host import loop, mount
from tonnage.host.run import run


@pytest.fixture
def mounted(real_folder: Path) -> Iterator[Mounted]:
    """mounted(fstype, *options): a fresh file system; an open descriptor of its root. It is at `real_folder/<fstype>`."""
    with ExitStack() as stack:

        def make(fstype: str, *options: str) -> int:
            image, folder = real_folder / f"{fstype}.img", real_folder / fstype
            with image.open("wb") as file:
                file.truncate(512 * MI)
            fd = os.open(image, os.O_RDWR)
            device = loop.attach(fd, "test")
            os.close(fd)
            run([f"mkfs.{fstype}", "-q", device.path])
            folder.mkdir()
            mount.mount(device.path, folder, fstype, options)
            device.close()
            stack.callback(mount.umount, folder)
            root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, root)
            return root

        yield make
