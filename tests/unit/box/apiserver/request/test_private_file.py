"""Private files are replaced whole, and nothing is left of a failure."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tonnage_box.apiserver.request.private_file import write_private


def test_it_is_private_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "key").mkdir()
    with pytest.raises(OSError, match="key"):
        write_private(tmp_path / "key", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives files away")
def test_it_may_be_another_users(tmp_path: Path) -> None:
    write_private(tmp_path / "key", b"x", 12345)
    found = (tmp_path / "key").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (12345, 0o600)
