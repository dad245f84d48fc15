"""Who uses a block device, and what is on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError
from tonnage.host import disk, loop, mount
from tonnage.host.run import run

pytestmark = pytest.mark.real


def test_a_device_with_a_file_system_free_and_mounted(real_folder: Path) -> None:
    image, folder = real_folder / "image", real_folder / "folder"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    run(["mkfs.ext4", "-q", "-b", "4096", str(image)])
    folder.mkdir()
    fd = os.open(image, os.O_RDWR)
    device = loop.attach(fd, "test")
    try:
        found = disk.inspect(Path(device.path))
        assert (found.size, found.users) == (16 << 20, ())
        assert [signature.type for signature in found.signatures] == ["ext4"]
        mount.mount(device.path, folder, "ext4")
        used = disk.inspect(Path(device.path))
        assert used.users == (f"it is mounted at {folder}",)
        assert used.signatures == ()
        mount.umount(folder)
    finally:
        device.close()
        os.close(fd)


def test_what_is_no_device(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="is not a block device"):
        disk.inspect(tmp_path)
    with pytest.raises(InvalidError, match=r"device .*missing: No such file"):
        disk.inspect(tmp_path / "missing")
