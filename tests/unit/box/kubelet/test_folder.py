"""Removing a pod's folders never reaches what is mounted in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonnage.base.errors import PreconditionError
from tonnage.host import mount
from tonnage_box.kubelet.folder import remove_tree
from tonnage_box.kubelet.volumes import fsgroup


@pytest.mark.real
def test_a_folder_with_a_mount_is_not_removed(real_folder: Path) -> None:
    precious = real_folder / "precious"
    precious.mkdir()
    (precious / "data").write_text("x")
    inner = real_folder / "pod" / "deep" / "mounted"
    inner.mkdir(parents=True)
    mount.bind(precious, inner)
    with pytest.raises(PreconditionError, match="is a mount, unmount it first"):
        remove_tree(str(real_folder / "pod"))
    assert (precious / "data").read_text() == "x"
    mount.umount(inner)
    remove_tree(str(real_folder / "pod"))
    remove_tree(str(real_folder / "pod"))
    assert [p.name for p in real_folder.iterdir()] == ["precious"]


@pytest.mark.slow
def test_a_tree_deeper_than_a_path_may_be_long_is_given_to_a_group_and_removed(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(2500):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    fsgroup.apply(str(tmp_path), os.getgid(), policy=None)
    assert os.fstat(at).st_mode & 0o7777 == 0o2775
    os.close(at)
    remove_tree(str(tmp_path))
    assert not tmp_path.exists()
