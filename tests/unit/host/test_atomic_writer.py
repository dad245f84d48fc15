"""Files of a ConfigMap change at one stroke."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonnage.errors import HostError
from tonnage.host import atomic_writer
from tonnage.host.atomic_writer import Content


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
