"""One image file: made, locked, formatted, found in use, removed."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from uuid import uuid4

import pytest

from tonnage.base.errors import BusyError, HostError, OutOfRangeError
from tonnage.host import device, mount
from tonnage.host.descriptor import closing
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.image import file

MI = 1024**2
RECORD = VolumeRecord("v", 8 * MI, uuid4(), length=16 * MI, sparse=True, fstype="ext4")


def test_thick_and_sparse(tmp_path: Path) -> None:
    image = tmp_path / "v.img"
    for sparse, blocks in ((True, 0), (False, 16 * MI // 512)):
        file.make(image, VolumeRecord("v", 8 * MI, uuid4(), length=16 * MI, sparse=sparse, fstype="ext4"))
        found = image.stat()
        assert found.st_size == 16 * MI
        assert abs(found.st_blocks - blocks) <= 16
    for _ in range(2):
        file.remove(image)


def test_one_that_is_larger_than_files_can_be_leaves_nothing(tmp_path: Path) -> None:
    """The limit is the process's: that of file systems differs, and tmpfs has none."""
    image, limits = tmp_path / "v.img", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MI, limits[1]))
    try:
        with pytest.raises(OutOfRangeError, match=r"v\.img"):
            file.make(image, RECORD)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not image.exists()


def test_one_opener_at_a_time(tmp_path: Path) -> None:
    image = tmp_path / "v.img"
    with pytest.raises(HostError, match="content is lost"):
        file.open_image(image)
    assert not file.is_used(image)
    file.make(image, RECORD)
    assert not file.is_used(image)
    with closing(file.open_image(image)):
        assert file.is_used(image, wait=False)
        with pytest.raises(BusyError, match="mounted elsewhere"):
            file.open_image(image)
        os.close(file.open_image(image, shared=True))


@pytest.mark.real
def test_a_formatted_image_is_mounted(real_folder: Path) -> None:
    image, path = real_folder / "v.img", real_folder / "mounted"
    path.mkdir()
    file.make(image, RECORD)
    with closing(file.open_image(image)) as fd:
        file.format_image(fd, image, RECORD)
        found = device.probe(fd)
        assert found is not None
        assert (found.kind, found.uuid) == ("ext4", RECORD.uuid)
        file.mount_image(fd, image, RECORD, path, ())
    assert file.shows(image, path)
    assert not file.shows(real_folder / "other.img", path)
    mount.umount(path)
