"""Files of a volume, replaced all at once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tonnage.base.errors import HostError, InvalidError
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


def test_a_mount_point_that_is_not_its_own_stays(tmp_path: Path) -> None:
    """Of another volume of the pod, mounted inside this one: a folder or a file."""
    atomic_writer.write(str(tmp_path), {"a": Content(b"1")})
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted.conf").touch()
    atomic_writer.write(str(tmp_path), {"b": Content(b"2")})
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("..")) == ["b", "mounted", "mounted.conf"]


@pytest.mark.parametrize("path", ["../x", "/x", "a/../b", "", "..data", "a//b"])
def test_files_stay_below_their_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidError):
        atomic_writer.write(str(tmp_path), {path: Content(b"")})


def test_a_reader_of_the_old_files_keeps_them_until_it_opens_again(tmp_path: Path) -> None:
    atomic_writer.write(str(tmp_path), {"a": Content(b"1"), "b": Content(b"1")})
    with (tmp_path / "a").open("rb") as reader:
        atomic_writer.write(str(tmp_path), {"a": Content(b"2")})
        assert reader.read() == b"1"
    assert (tmp_path / "a").read_bytes() == b"2"
    assert not (tmp_path / "b").exists()


def test_leftovers_of_a_killed_writer_are_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "..old").mkdir()
    os.symlink("..nowhere", tmp_path / "..data_tmp")
    atomic_writer.write(str(tmp_path), {"a": Content(b"1")})
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("..")]) == 2


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"cannot write the files of .*: No such file or directory"):
        atomic_writer.write(str(tmp_path / "missing"), {"a": Content(b"1")})


def test_content_is_never_shown() -> None:
    assert repr(Content(b"secret")) == "Content(6 bytes, 644)"


def test_files_that_a_killed_writer_did_not_link_are_linked_by_the_next(tmp_path: Path) -> None:
    files = {"a": Content(b"1"), "b": Content(b"2")}
    atomic_writer.write(str(tmp_path), files)
    (tmp_path / "b").unlink()
    (tmp_path / "old").symlink_to("..data/old")
    atomic_writer.write(str(tmp_path), files)
    assert sorted(one.name for one in tmp_path.iterdir() if not one.name.startswith("..")) == ["a", "b"]
    assert (tmp_path / "b").read_bytes() == b"2"
