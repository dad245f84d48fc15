"""The content of one block device, on a loop device."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tonnage.base.errors import BusyError
from tonnage.host import btrfs, loop, mount
from tonnage.host.mount import Mount
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.fs import block_device

pytestmark = pytest.mark.real
MI = 1024**2


def _views(device: str) -> list[int]:
    """The loop devices over a device."""
    return [index for index, backing in loop.attached() if backing == device]


@pytest.fixture
def device(real_folder: Path) -> Iterator[str]:
    image = real_folder / "disk"
    image.write_bytes(b"x" * 4 * MI)
    fd = os.open(image, os.O_RDWR)
    attached = loop.attach(fd, str(image), autoclear=False)
    os.close(fd)
    yield attached.path
    block_device.free_loops(_views(attached.path))  # of a view that a failed test left
    attached.close()
    loop.detach(attached.index)


def test_one_at_a_time(device: str) -> None:
    with block_device.locked(device), pytest.raises(BusyError, match="is being formatted"), block_device.locked(device):
        pass


def test_zeros(device: str) -> None:
    with block_device.locked(device) as fd:
        block_device.zero_range(fd, 4096, 4096)
        assert os.pread(fd, 12288, 0) == b"x" * 4096 + bytes(4096) + b"x" * 4096
        block_device.zero(fd, MI)
        assert os.pread(fd, 4096, MI - 4096) == b"x" * 4096
        assert not any(os.pread(fd, 3 * MI, MI))


def test_a_read_only_view(device: str, real_folder: Path) -> None:
    target = real_folder / "target"
    block_device.publish_readonly(device, target)
    assert block_device.is_published(device, target, readonly=True)
    assert not block_device.is_published(device, target, readonly=False)
    view = os.open(target, os.O_RDONLY)
    assert os.read(view, 4) == b"xxxx"
    os.close(view)
    with pytest.raises(OSError, match=r"not permitted|Read-only|denied"):
        target.write_bytes(b"y")
    block_device.unpublish(target)
    assert not target.exists()
    assert _views(device) == []


def test_a_view_that_is_shown_nowhere_is_freed(device: str, real_folder: Path) -> None:
    target = real_folder / "target"
    block_device.publish_readonly(device, target)
    block_device.free_loops(_views(device))
    assert len(_views(device)) == 1, "it is published"
    mount.umount(target)
    block_device.free_loops(_views(device))
    assert _views(device) == []


def test_which_device_is_where(device: str, real_folder: Path) -> None:
    node = real_folder / "node"
    node.touch()
    assert not block_device.is_shown(device, node)
    mount.bind(device, node)
    assert block_device.is_shown(device, node)
    assert block_device.is_bound(device)
    assert block_device.number_of(device) == (loop.MAJOR, block_device.loop_of(node))
    assert block_device.number_of(None) is None
    assert not block_device.is_character(device)
    assert block_device.is_character("/dev/null")


def test_a_file_system_that_does_not_answer_is_not_kept_open(
    device: str, real_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    subprocess.run(["mkfs.ext4", "-q", "-F", device], check=True)
    staging = real_folder / "staging"
    staging.mkdir()
    mount.mount(device, staging, "ext4")
    with monkeypatch.context() as patch:
        patch.setattr(btrfs, "fsid", fails)
        assert list(block_device.roots(device, VolumeRecord("v", MI, uuid4(), fstype="btrfs"))) == []
    assert mount.umount(staging)  # PreconditionError while a file of it is open


def test_the_table_of_mounts_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [
        [Mount(1, "0:5", "/loop1", "/node", "rw", "devtmpfs", "devtmpfs"), Mount(2, "7:2", "/", "/a", "", "", "b")]
    ]
    monkeypatch.setattr(mount, "mounts", lambda: iter(tables.pop()))
    assert block_device.shown() == {"devtmpfs", "/dev/loop1", "b"}
