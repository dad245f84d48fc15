"""The btrfs of a pool's own: made once, mounted while the pool is open."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.programs import need

from tonnage.base.errors import InvalidError
from tonnage.host import mount
from tonnage.storage.pools.base.contract import PoolLimits
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.btrfs.image_file import IMAGE_FILES, BtrfsImage

pytestmark = pytest.mark.real
MI = 1024**2


def test_it_is_made_once_and_mounted(real_folder: Path) -> None:
    need("mkfs.btrfs")
    limits = PoolLimits(100 * MI, float("inf"), sparse=True)
    for _ in range(2):
        image = BtrfsImage(real_folder / "pool", limits, Disks())
        image.open()
        assert mount.is_mount(image.root)
        (image.root / "file").touch()
        assert {path.name for path in (real_folder / "pool").iterdir()} >= IMAGE_FILES
        image.close()
        assert not mount.is_mount(image.root)
    image.open()
    assert (image.root / "file").exists()
    image.close()


def test_it_needs_a_size(real_folder: Path) -> None:
    with pytest.raises(InvalidError, match="give the pool a size="):
        BtrfsImage(real_folder / "pool", PoolLimits(), Disks()).open()
