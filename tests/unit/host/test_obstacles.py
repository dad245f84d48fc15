"""Flags that keep root from removing files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.host.mounted import Mounted

from tonnage.host import btrfs, obstacles
from tonnage.host.run import run

pytestmark = pytest.mark.real


@pytest.mark.parametrize("flag", ["+i", "+a"])
def test_immutable_and_append_only_files_can_be_removed_again(real_folder: Path, mounted: Mounted, flag: str) -> None:
    at = mounted("ext4")
    file = real_folder / "ext4" / "file"
    file.touch()
    run(["chattr", flag, str(file)])
    with pytest.raises(PermissionError):
        file.unlink()
    obstacles.clear_entry("file", at)
    file.unlink()


def test_entries_without_flags_are_left_alone(real_folder: Path) -> None:
    os.symlink("nowhere", real_folder / "link")
    os.mkfifo(real_folder / "pipe")
    at = os.open(real_folder, os.O_RDONLY)
    try:
        for name in ("link", "pipe", "missing"):
            obstacles.clear_entry(name, at)
        obstacles.clear(at)
        assert {"link", "pipe"} <= set(os.listdir(real_folder))
    finally:
        os.close(at)


def test_a_read_only_subvolume_can_be_emptied_again(real_folder: Path, mounted: Mounted) -> None:
    at = mounted("btrfs")
    folder = real_folder / "btrfs"
    run(["btrfs", "subvolume", "create", str(folder / "a")])
    (folder / "a" / "below").mkdir()
    source = os.open(folder / "a", os.O_RDONLY)
    btrfs.snapshot(at, "b", source, readonly=True)
    os.close(source)
    with pytest.raises(OSError, match="Read-only"):
        (folder / "b" / "below").rmdir()
    below = os.open(folder / "b" / "below", os.O_RDONLY)
    obstacles.clear(below)
    os.close(below)
    (folder / "b" / "below").rmdir()
