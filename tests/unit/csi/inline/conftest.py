"""An inline driver over a real tmpfs, with a source that a test steers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.csi.inline.world import World

from tonnage.host import mount


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    if os.geteuid() != 0:
        pytest.skip("mounts need root")
    found = World(tmp_path)
    yield found
    for one in reversed([one.target for one in mount.mounts() if one.target.startswith(f"{tmp_path}/")]):
        mount.umount(one, lazy=True)
