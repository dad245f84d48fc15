"""Growing an ext4 that is not mounted: stopped anywhere, the file system and its files are whole again."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace
from tests.programs import need

from tonnage.base.errors import BusyError, HostError
from tonnage.host import loop, mount
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.fs.formats import MI
from tonnage.storage.pools.image import ext4_resize
from tonnage.storage.pools.image import file as image_file

pytestmark = pytest.mark.real
CONTENT = b"precious" * 1000


@pytest.fixture
def image(real_folder: Path) -> Path:
    """A volume's image with a file in it."""
    need("e2image")
    path, record = real_folder / "v.img", _record()
    image_file.make(path, replace(record, length=16 * MI))
    fd = image_file.open_image(path)
    image_file.format_image(fd, path, replace(record, length=16 * MI, state="new"))
    os.close(fd)
    with _Mounted(path) as root:
        (root / "file").write_bytes(CONTENT)
    os.truncate(path, record.length)
    return path


_UUID = uuid4()


def _record() -> VolumeRecord:
    return VolumeRecord(
        "v", 20 * MI, _UUID, length=64 * MI, sparse=True, fstype="ext4", state="formatted", pending=True
    )


class _Mounted:
    def __init__(self, image: Path) -> None:
        self._image = image
        self._root = image.with_name("root")

    def __enter__(self) -> Path:
        self._root.mkdir(exist_ok=True)
        with open(self._image, "r+b") as file:
            attached = loop.attach(file.fileno(), str(self._image))
        mount.mount(attached.path, self._root, "ext4")
        attached.close()
        return self._root

    def __exit__(self, *_: object) -> None:
        mount.umount(self._root)


def _check(image: Path, size: int) -> None:
    """It is whole, has that size, and its file."""
    subprocess.run(["e2fsck", "-f", "-n", image], check=True, capture_output=True)
    with _Mounted(image) as root:
        assert (root / "file").read_bytes() == CONTENT
        found = os.statvfs(root)
        assert size * 0.6 < found.f_blocks * found.f_frsize < size


def _tear(image: Path) -> None:
    """As a killed resize2fs leaves it, or worse."""
    with open(image, "r+b") as file:
        file.seek(1024 + 4)
        file.write(b"\xff\xee\xdd\xcc")
        file.seek(4096)
        file.write(os.urandom(4096))
        file.seek(8192 + 4096)
        file.write(os.urandom(64))


def _grow(image: Path, record: VolumeRecord) -> None:
    fd = image_file.open_image(image)
    try:
        ext4_resize.grow(fd, image, record)
    finally:
        os.close(fd)


def _left(image: Path) -> list[str]:
    return sorted(entry for entry in os.listdir(image.parent) if entry not in ("v.img", "root"))


def test_it_grows(image: Path) -> None:
    _grow(image, _record())
    ext4_resize.forget(image)
    _check(image, 64 * MI)
    assert _left(image) == []


def test_what_was_stopped_half_way_is_undone(image: Path) -> None:
    _grow(image, _record())
    _tear(image)
    assert subprocess.run(["e2fsck", "-f", "-n", image], check=False, capture_output=True).returncode
    ext4_resize.settle_all(image.parent, {"v": _record()}, ".img", spared=())
    _check(image, 16 * MI)
    assert _left(image) == []
    _grow(image, _record())
    _check(image, 64 * MI)


def test_growing_again_begins_with_what_was_kept(image: Path) -> None:
    _grow(image, _record())
    _tear(image)
    _grow(image, _record())
    _check(image, 64 * MI)


def test_a_tool_that_fails_leaves_all_as_it_was(image: Path) -> None:
    with pytest.raises(HostError, match="resize2fs"):
        _grow(image, replace(_record(), length=4096 * 1024 * MI * MI))
    _check(image, 16 * MI)
    assert _left(image) == []


def test_a_growth_that_was_written_down_stays(image: Path) -> None:
    _grow(image, _record())
    ext4_resize.settle(image, replace(_record(), pending=False))
    _check(image, 64 * MI)
    assert _left(image) == []


def test_what_was_kept_of_another_volume_is_thrown_away(image: Path) -> None:
    _grow(image, _record())
    ext4_resize.settle(image, replace(_record(), uuid=uuid4()))
    _check(image, 64 * MI)
    assert _left(image) == []


def test_what_is_left_of_a_deleted_volume_goes_and_that_of_a_damaged_one_stays(image: Path) -> None:
    _grow(image, _record())
    ext4_resize.settle_all(image.parent, {}, ".img", spared=("v",))
    assert _left(image) == [".before-v"]
    ext4_resize.settle_all(image.parent, {}, ".img", spared=())
    assert _left(image) == []


def test_nothing_is_done_while_a_tool_is_at_work(image: Path) -> None:
    _grow(image, _record())
    fd = os.open(image, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(BusyError):
        ext4_resize.settle(image, _record())
    ext4_resize.settle_all(image.parent, {"v": _record()}, ".img", spared=())
    assert _left(image) == [".before-v"]
    os.close(fd)


def test_what_cannot_be_seen_is_not_taken_for_none(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _grow(image, _record())
    _tear(image)
    real = os.stat

    def fails(path: str | Path, **more: bool) -> os.stat_result:
        if ".before-" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, **more)

    with monkeypatch.context() as patch, open(image, "r+b") as file:
        patch.setattr(os, "stat", fails)
        patch.setattr(os, "lstat", fails)
        with pytest.raises(HostError, match="Input/output"):
            ext4_resize.undo(file.fileno(), image, _UUID)
        with pytest.raises(HostError, match="Input/output"):
            ext4_resize.settle(image, _record())
    ext4_resize.settle(image, _record())
    _check(image, 16 * MI)
