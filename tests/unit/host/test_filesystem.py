"""A mounted file system as a whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.unit.host.mounted import MI, Mounted

from tonnage.host import filesystem, loop

pytestmark = pytest.mark.real


def test_a_file_system_is_frozen_once_and_thawed_once(mounted: Mounted) -> None:
    root = mounted("ext4")
    filesystem.freeze(root)
    with pytest.raises(OSError, match="busy") as caught:
        filesystem.freeze(root)
    assert caught.value.errno == errno.EBUSY
    assert filesystem.thaw(root)
    assert not filesystem.thaw(root)


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
def test_it_grows_with_its_device_and_again_is_nothing(real_folder: Path, mounted: Mounted, fstype: str) -> None:
    root = mounted(fstype)
    if fstype == "ext4" and not filesystem.may_grow_ext4():
        pytest.skip("needs CAP_SYS_RESOURCE")
    image = real_folder / f"{fstype}.img"
    before = os.fstatvfs(root).f_blocks
    os.truncate(image, 640 * MI)
    (index,) = loop.of_file(image)
    loop.set_capacity(index)
    for _ in range(2):
        filesystem.grow(root, fstype, 640 * MI)
    grown = (os.fstatvfs(root).f_blocks - before) * os.fstatvfs(root).f_frsize
    assert 100 * MI < grown <= 128 * MI


def test_free_blocks_are_discarded(real_folder: Path, mounted: Mounted) -> None:
    root = mounted("ext4")
    (real_folder / "ext4" / "file").write_bytes(b"x" * 64 * MI)
    os.sync()
    full = (real_folder / "ext4.img").stat().st_blocks
    (real_folder / "ext4" / "file").unlink()
    os.sync()
    filesystem.trim(root)
    assert (real_folder / "ext4.img").stat().st_blocks < full - 60 * MI // 512


@pytest.mark.parametrize(
    ("release", "nests"),
    [
        ("6.8.0-45-generic", True),
        ("6.18.44", True),
        ("7.0-rc1", True),
        ("6.7.12", False),
        ("5.15.0", False),
        ("odd", False),
    ],
)
def test_which_kernels_nest_freezes(release: str, nests: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*names[:2], release, *names[3:])))
    assert filesystem.freezes_nest() == nests
