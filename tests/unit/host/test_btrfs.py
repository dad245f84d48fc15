"""Subvolumes with limits, on a real btrfs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.unit.host.mounted import MI, Mounted

from tonnage.host import btrfs

pytestmark = pytest.mark.real


def test_a_subvolume_is_limited_counted_copied_and_deleted(real_folder: Path, mounted: Mounted) -> None:
    at = mounted("btrfs")
    fs = btrfs.fsid(at)
    assert fs is not None
    assert not btrfs.has_quota(fs)
    btrfs.enable_quota(at)
    assert btrfs.has_quota(fs)
    btrfs.create(at, "a", 8 * MI)
    folder = real_folder / "btrfs" / "a"
    fd = os.open(folder, os.O_RDONLY)
    number = btrfs.subvolume_id(fd)
    with pytest.raises(OSError, match=r"quota exceeded|No space"):
        (folder / "large").write_bytes(os.urandom(16 * MI))
    (folder / "large").unlink()
    btrfs.limit(at, number, 64 * MI)
    (folder / "large").write_bytes(os.urandom(16 * MI))
    os.sync()
    btrfs.commit(at)
    usage = btrfs.usage(fs, number)
    assert usage.limit == 64 * MI
    assert 16 * MI <= usage.referenced < 24 * MI
    assert number in btrfs.qgroups(fs)
    btrfs.snapshot(at, "b", fd, readonly=True)
    os.close(fd)
    assert (real_folder / "btrfs" / "b" / "large").stat().st_size == 16 * MI
    for name in ("a", "b"):
        btrfs.delete(at, name)
        assert not (real_folder / "btrfs" / name).exists()


def test_names_that_no_subvolume_can_have_and_other_file_systems(real_folder: Path) -> None:
    at = os.open(real_folder, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="too long") as caught:
            btrfs.create(at, "x" * 256, MI)
        assert caught.value.errno == errno.ENAMETOOLONG
        assert btrfs.fsid(at) is None
    finally:
        os.close(at)
