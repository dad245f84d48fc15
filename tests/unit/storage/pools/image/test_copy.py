"""Copies of image files: equal, with holes, and with blocks of their own where they must have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonnage.base.errors import HostError
from tonnage.host.descriptor import closing, opened
from tonnage.storage.pools.image import copy

MI = 1024**2


@pytest.mark.slow
@pytest.mark.parametrize("share", [True, False])
def test_a_copy_is_equal_and_has_holes(tmp_path: Path, *, share: bool) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(4096))
    os.truncate(source, 64 * MI)
    with closing(copy.make(target)) as fd, opened(source, os.O_RDONLY) as origin:
        shared = copy.copy(fd, origin, target, share=share)
        assert share or not shared
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks * 512 < MI


def test_an_image_never_shrinks(tmp_path: Path) -> None:
    with closing(copy.make(tmp_path / "a")) as fd:
        copy.extend(fd, tmp_path / "a", 2 * MI, sparse=True)
        copy.extend(fd, tmp_path / "a", MI, sparse=True)
        assert os.fstat(fd).st_size == 2 * MI
        copy.extend(fd, tmp_path / "a", MI, sparse=False)
        assert os.fstat(fd).st_blocks * 512 >= MI
    with pytest.raises(HostError, match="cannot make"):
        copy.make(tmp_path / "none" / "a")
