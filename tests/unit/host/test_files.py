"""Files that are replaced at once, and locks of open files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tonnage.host import files
from tonnage.host.descriptor import opened


def test_a_file_is_replaced_also_over_what_a_kill_left(tmp_path: Path) -> None:
    path, left = tmp_path / "record", tmp_path / "record.new"
    left.write_text("half")
    files.replace(path, b"one")
    files.replace(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not left.exists()
    files.sync(path)
    files.sync(tmp_path)


def test_only_one_descriptor_has_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with opened(path) as first, opened(path) as second:
        assert files.try_lock(first)
        assert files.try_lock(first)
        assert not files.try_lock(second)
    with opened(path) as third:
        assert files.try_lock(third)


def test_a_path_may_lead_to_another_file_than_the_open_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with opened(path, os.O_RDWR) as fd:
        assert files.is_at(path, fd)
        files.replace(path, b"")
        assert not files.is_at(path, fd)
        path.unlink()
        assert not files.is_at(str(path), fd)
