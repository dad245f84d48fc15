"""Where a file has data."""

from __future__ import annotations

import os
from pathlib import Path

from tonnage.host.descriptor import opened
from tonnage.storage.pools.fs.holes import data_ranges, pieces

BLOCK = 4096


def test_data_is_found_and_holes_are_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with opened(path, os.O_RDWR | os.O_CREAT) as fd:
        assert list(data_ranges(fd)) == []
        os.truncate(fd, 64 * BLOCK)
        assert list(data_ranges(fd)) == []
        os.pwrite(fd, b"a" * BLOCK, 0)
        os.pwrite(fd, b"b" * 2 * BLOCK, 32 * BLOCK)
        assert list(data_ranges(fd)) == [(0, BLOCK), (32 * BLOCK, 34 * BLOCK)]
        assert list(pieces(fd, BLOCK)) == [(0, b"a" * BLOCK), *((n * BLOCK, b"b" * BLOCK) for n in (32, 33))]
