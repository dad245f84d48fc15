"""Freezing a mounted file system: writes wait, a mark stays while it is frozen, a kill's leftovers are thawed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tonnage.base.errors import PreconditionError
from tonnage.host import filesystem
from tonnage.host.descriptor import opened
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.fs import online
from tonnage.storage.pools.image import consistent_copy, file

pytestmark = pytest.mark.real
MI = 1024**2


@pytest.fixture
def mounted(real_folder: Path) -> tuple[Path, Path, VolumeRecord]:
    """An image, where it is mounted, and its record."""
    record = VolumeRecord("v", 8 * MI, uuid4(), length=32 * MI, sparse=True, fstype="ext4")
    image, path = real_folder / "v.img", real_folder / "mounted"
    path.mkdir()
    file.make(image, record)
    fd = file.open_image(image)
    file.format_image(fd, image, record)
    file.mount_image(fd, image, record, path, ())
    os.close(fd)
    return image, path, record


def test_a_frozen_file_system_has_a_mark_and_is_thawed(mounted: tuple[Path, Path, VolumeRecord]) -> None:
    image, path, record = mounted
    mark = image.with_name("mark")

    def roots() -> Iterator[int]:
        return consistent_copy.roots(image, record)

    with online.frozen(roots(), record, mark):
        assert mark.exists()
        with pytest.raises(PreconditionError, match="frozen by another process"), online.frozen(roots(), record, mark):
            pass
    assert not mark.exists()
    (path / "file").write_text("it takes writes again")


def test_what_a_kill_left_frozen_is_thawed(mounted: tuple[Path, Path, VolumeRecord]) -> None:
    image, path, record = mounted
    mark = image.with_name("mark")
    mark.touch()
    with opened(path) as at:
        filesystem.freeze(at)
    online.thaw_left(consistent_copy.roots(image, record), record, mark, is_used=lambda: True)
    assert not mark.exists()
    (path / "file").write_text("it takes writes again")


def test_a_mark_stays_while_what_is_frozen_cannot_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the mark says of the kernel's setting is undone all the same, once."""
    record, mark = VolumeRecord("v", MI, uuid4(), fstype="ext4"), tmp_path / "mark"
    paces: list[bool] = []
    monkeypatch.setattr(filesystem, "expedite", lambda *, on: paces.append(on))
    mark.write_text("rcu_expedited\n")
    for _ in range(2):
        online.thaw_left(iter(()), record, mark, is_used=lambda: True)
        assert mark.exists()
    assert paces == [False]
    online.thaw_left(iter(()), record, mark, is_used=lambda: False)
    assert not mark.exists()


def test_an_invisible_mount_cannot_be_frozen(tmp_path: Path) -> None:
    record = VolumeRecord("v", MI, uuid4(), fstype="ext4")
    frozen = online.frozen(iter(()), record, tmp_path / "mark")
    with pytest.raises(PreconditionError, match="not mounted where this process can see it"), frozen:
        pass
    assert not (tmp_path / "mark").exists()


def test_a_freeze_ends_once_and_may_never_begin(mounted: tuple[Path, Path, VolumeRecord]) -> None:
    image, path, record = mounted
    mark = image.with_name("mark")
    never = online.Freeze(consistent_copy.roots(image, record), record, mark)
    never.sync()
    never.end()
    freeze = online.Freeze(consistent_copy.roots(image, record), record, mark)
    freeze.begin()
    assert mark.exists()
    never.end()
    with opened(path) as at, pytest.raises(OSError, match="busy"):
        filesystem.freeze(at)
    for _ in range(2):
        freeze.end()
    assert not mark.exists()
    (path / "file").write_text("it takes writes again")
