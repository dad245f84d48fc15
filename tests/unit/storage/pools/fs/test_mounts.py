"""Mounts of pools: no symlink is followed, nothing else is taken for the volume, files stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.errors import AlreadyExistsError, NotFoundError, PreconditionError
from tonnage.host import mount
from tonnage.storage.pools.fs import mounts


def test_mount_points(tmp_path: Path) -> None:
    for _ in range(2):
        mounts.make_directory(tmp_path / "d", mode=0o700)
        mounts.make_file(tmp_path / "f")
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "d")
    for path, make in ((tmp_path / "link", mounts.make_directory), (tmp_path / "f", mounts.make_directory)):
        with pytest.raises(PreconditionError, match="remove it"):
            make(path)
    with pytest.raises(PreconditionError):
        mounts.make_file(tmp_path / "d")
    with pytest.raises(PreconditionError, match="symlink"):
        mounts.make_file(tmp_path / "link" / "inner")


def test_what_is_removed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "file").touch()
    with pytest.raises(PreconditionError, match="its files stay"):
        mounts.unpublish(tmp_path / "d")
    (tmp_path / "text").write_text("content")
    with pytest.raises(PreconditionError, match="file with content"):
        mounts.unpublish(tmp_path / "text")
    mounts.make_file(tmp_path / "empty")
    for _ in range(2):
        mounts.unpublish(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


@pytest.mark.real
def test_a_target_shows_one_volume(real_folder: Path) -> None:
    a, b, target = (real_folder / name for name in ("a", "b", "target"))
    a.mkdir()
    b.mkdir()
    for _ in range(2):
        mounts.publish(a, target, block=False, readonly=True)
    with pytest.raises(AlreadyExistsError, match="already shows something else"):
        mounts.publish(b, target, block=False, readonly=True)
    with pytest.raises(AlreadyExistsError, match="already published read-only"):
        mounts.publish(a, target, block=False, readonly=False)
    assert mounts.stats(target).total > 0
    mounts.unpublish(target)
    assert not target.exists()
    assert not mount.is_mount(target)
    with pytest.raises(NotFoundError):
        mounts.stats(target)
