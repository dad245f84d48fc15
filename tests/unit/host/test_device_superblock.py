"""Superblocks as mkfs writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.host.device import filesystem_length, is_unused
from tonnage.host.run import run

MI = 1 << 20


@pytest.mark.real
@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
def test_a_fresh_file_system_is_unused_and_has_its_length(tmp_path: Path, fstype: str) -> None:
    need(f"mkfs.{fstype}")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(512 * MI)
    run([f"mkfs.{fstype}", "-q", str(image)])
    fd = os.open(image, os.O_RDONLY)
    try:
        assert filesystem_length(fd) == 512 * MI
        assert is_unused(fd)
    finally:
        os.close(fd)


def test_what_is_no_file_system_counts_as_used(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "image", os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(fd, MI)
        assert filesystem_length(fd) == 0
        assert not is_unused(fd)
    finally:
        os.close(fd)
