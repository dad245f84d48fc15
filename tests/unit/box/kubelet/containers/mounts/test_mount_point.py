"""Places below a root: resolved inside it, whatever its symlinks say, and made where they are missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError
from tonnage.host.descriptor import opened
from tonnage_box.kubelet.containers.mounts import mount_point


def test_place_resolves_inside(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "up").symlink_to("../../../../run")
    (tmp_path / "file").touch()
    (tmp_path / "late").symlink_to("/other")
    (tmp_path / "other").symlink_to("made/late")
    (tmp_path / "loop").symlink_to("loop/x")
    with opened(tmp_path, os.O_RDONLY | os.O_DIRECTORY) as root:
        assert mount_point.real_path(root, "/var/run/a/b") == "/run/a/b"
        assert mount_point.real_path(root, "/late/c") == "/made/late/c"
        assert sorted(os.listdir(tmp_path / "run")) == []
        assert mount_point.place(root, "/var/run/a/b", folder=True) == "/run/a/b"
        assert mount_point.place(root, "/up/c", folder=False) == "/run/c"
        assert mount_point.place(root, "/late/c", folder=True) == "/made/late/c"
        assert (tmp_path / "run/a/b").is_dir()
        assert (tmp_path / "run/c").is_file()
        for path, folder in (("/loop", True), ("/file", True), ("/run", False), ("/file/x", True)):
            with pytest.raises(InvalidError, match=r"nowhere|folder"):
                mount_point.place(root, path, folder=folder)
