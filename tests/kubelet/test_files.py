"""Removing a pod's folders never reaches what is mounted in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.errors import Precondition
from tonnage.host import mount
from tonnage.kubelet.files import remove_tree


@pytest.mark.real
def test_a_folder_with_a_mount_is_not_removed(real_folder: Path) -> None:
    precious = real_folder / "precious"
    precious.mkdir()
    (precious / "data").write_text("x")
    inner = real_folder / "pod" / "deep" / "mounted"
    inner.mkdir(parents=True)
    mount.bind(precious, inner)
    with pytest.raises(Precondition, match="is a mount, unmount it first"):
        remove_tree(str(real_folder / "pod"))
    assert (precious / "data").read_text() == "x"
    mount.umount(inner)
    remove_tree(str(real_folder / "pod"))
    remove_tree(str(real_folder / "pod"))
    assert [p.name for p in real_folder.iterdir()] == ["precious"]
