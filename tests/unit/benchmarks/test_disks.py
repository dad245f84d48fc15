"""Disks for the time of a measurement: what is written there shares blocks, and nothing of them is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.data_services.disks import disk

from tonnage.host import loop, mount
from tonnage.storage.pools.image import copy

pytestmark = [pytest.mark.real, pytest.mark.skipif(os.geteuid() != 0, reason="needs root: loop devices and mounts")]


@pytest.mark.parametrize("fstype", ["xfs", "btrfs"])
def test_blocks_can_be_shared_and_nothing_is_left(tmp_path: Path, fstype: str) -> None:
    with disk(tmp_path, fstype, 400 << 20) as place:
        (image,) = tmp_path.glob("*.img")
        assert list(loop.of_file(image))
        with (place / "a").open("wb+") as source, (place / "b").open("wb+") as made:
            source.write(b"x" * 4096)
            source.flush()
            assert copy.can_share(made.fileno(), source.fileno())
    assert not mount.is_mount(place)
    assert not list(tmp_path.iterdir())
