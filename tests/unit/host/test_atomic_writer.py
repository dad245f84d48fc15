"""Files of a volume, replaced all at once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tonnage.errors import Invalid
from tonnage.host import atomic_writer
from tonnage.host.atomic_writer import Content


def test_files_change_at_one_stroke(tmp_path: Path) -> None:
    folder = str(tmp_path)
    atomic_writer.write(folder, {"a": Content(b"1"), "sub/b": Content(b"2", 0o600)})
    held = os.path.realpath(tmp_path / "..data")
    assert (tmp_path / "a").read_bytes() == b"1"
    assert stat.S_IMODE((tmp_path / "sub" / "b").stat().st_mode) == 0o600
    atomic_writer.write(folder, {"a": Content(b"1"), "sub/b": Content(b"2", 0o600)})
    assert os.path.realpath(tmp_path / "..data") == held
    atomic_writer.write(folder, {"c": Content(b"3")})
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("..")) == ["c"]
    assert not os.path.exists(held)


@pytest.mark.parametrize("path", ["../x", "/x", "a/../b", "", "..data", "a//b"])
def test_files_stay_below_their_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(Invalid):
        atomic_writer.write(str(tmp_path), {path: Content(b"")})
