"""Copies of whole devices: every byte, zeros left out where they are there already."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonnage.base.errors import HostError
from tonnage.host.descriptor import opened
from tonnage.storage.pools.lvm.snapshots import copy_device

CHUNK = 4 * 1024**2


def test_a_copy_is_equal_and_skips_zeros(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    content = os.urandom(4096) + bytes(2 * CHUNK) + os.urandom(CHUNK)
    source.write_bytes(content)
    target.touch()
    os.truncate(target, len(content))
    with opened(target, os.O_RDWR) as fd:
        copy_device(str(source), fd, len(content), zeroed=True, rest=False, what="a to b")
    assert target.read_bytes() == content
    assert target.stat().st_blocks * 512 < len(content) - CHUNK // 2


def test_a_source_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x" * 100)
    target.write_bytes(bytes(CHUNK))
    with opened(target, os.O_RDWR) as fd, pytest.raises(HostError, match="became shorter"):
        copy_device(str(source), fd, CHUNK, zeroed=True, rest=False, what="a to b")
    with opened(target, os.O_RDWR) as fd, pytest.raises(HostError, match="cannot open"):
        copy_device(str(tmp_path / "none"), fd, CHUNK, zeroed=True, rest=False, what="a to b")
