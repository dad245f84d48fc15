"""Descriptors end with their body."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonnage.host.descriptor import closing, opened


def _is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


def test_a_file_is_open_in_the_body_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    with opened(tmp_path) as folder, opened("file", dir_fd=folder) as fd:
        assert os.read(fd, 10) == b"text"
        assert not os.get_inheritable(fd)
    assert not _is_open(fd)
    assert not _is_open(folder)


def test_it_is_closed_after_a_failure(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(NotADirectoryError), closing(fd):
        os.stat(__file__ + "/below")
    assert not _is_open(fd)


def test_what_is_not_there_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), opened(tmp_path / "missing"):
        pytest.fail("it was opened")
