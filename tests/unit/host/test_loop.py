"""Loop devices of this machine."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.base.errors import HostError
from tonnage.host import device, loop, mount
from tonnage.host.run import run

pytestmark = pytest.mark.real
MI = 1024**2
_SHUT_DOWN = 0x8004587D  # fs/xfs/libxfs/xfs_fs.h: XFS_IOC_GOINGDOWN


@pytest.fixture
def image(real_folder: Path) -> Path:
    path = real_folder / "image"
    with path.open("wb") as file:
        file.truncate(4 * MI)
    return path


def _is_free(index: int, path: Path) -> bool:
    """Whether path lets go of the device; the kernel may need a moment when another process looks at it."""
    for _ in range(200):
        if loop.backing(index) != str(path):
            return True
        time.sleep(0.01)
    return False


def _attach(path: Path, *, readonly: bool = False, autoclear: bool = True) -> loop.LoopDevice:
    fd = os.open(path, os.O_RDWR)
    try:
        return loop.attach(fd, str(path), readonly=readonly, autoclear=autoclear)
    finally:
        os.close(fd)


def test_autoclear_goes_with_its_last_user(image: Path) -> None:
    attached = _attach(image)
    assert loop.backing(attached.index) == str(image)
    assert loop.is_autoclear(attached.index)
    assert device.size(attached.fd) == 4 * MI
    os.pwrite(attached.fd, b"hello", 0)
    os.fsync(attached.fd)
    attached.close()
    assert _is_free(attached.index, image)
    assert image.read_bytes()[:5] == b"hello"


def test_stays_until_detached(image: Path) -> None:
    attached = _attach(image, autoclear=False)
    attached.close()
    assert (attached.index, str(image)) in list(loop.attached())
    loop.detach(attached.index)
    loop.detach(attached.index)
    assert _is_free(attached.index, image)


def test_read_only(image: Path) -> None:
    attached = _attach(image, readonly=True)
    with pytest.raises(OSError, match="not permitted"):
        os.write(attached.fd, b"x")
    attached.close()


def test_deleted_file_keeps_its_name(image: Path) -> None:
    attached = _attach(image)
    image.unlink()
    assert loop.backing(attached.index) == str(image)
    attached.close()


def test_grows_with_its_file(image: Path) -> None:
    attached = _attach(image)
    os.truncate(image, 8 * MI)
    loop.set_capacity(attached.index)
    assert device.size(attached.fd) == 8 * MI
    attached.close()


def test_a_device_that_is_free_meanwhile_has_no_capacity_to_set(image: Path) -> None:
    """The kernel frees it a moment after the last umount: who lists devices may still see it."""
    attached = _attach(image, autoclear=False)
    attached.close()
    loop.detach(attached.index)
    assert _is_free(attached.index, image)
    loop.set_capacity(attached.index)
    assert _is_free(attached.index, image)


def test_many_threads_get_devices_of_their_own(real_folder: Path) -> None:
    paths = [real_folder / f"image{number}" for number in range(24)]
    for path in paths:
        path.touch()
        os.truncate(path, MI)
    with ThreadPoolExecutor(8) as threads:
        loops = list(threads.map(_attach, paths))
    assert [loop.backing(attached.index) for attached in loops] == list(map(str, paths))
    for attached in loops:
        attached.close()
    assert all(_is_free(attached.index, path) for attached, path in zip(loops, paths, strict=True))


def test_what_cannot_be_attached(real_folder: Path) -> None:
    fd = os.open(real_folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(HostError, match="cannot attach"):
            loop.attach(fd, str(real_folder))
    finally:
        os.close(fd)


def test_its_file_is_known_by_inode_whatever_its_path(image: Path) -> None:
    attached = _attach(image)
    moved = image.with_name("moved")
    image.rename(moved)
    image.touch()
    assert loop.backs(attached.index, moved)
    assert not loop.backs(attached.index, image)
    assert not loop.backs(attached.index, image.with_name("absent"))
    attached.close()
    assert _is_free(attached.index, moved)
    assert loop.identity(2**20 - 1) is None


def test_a_strangers_device_whose_disk_is_gone_is_passed_over(image: Path, caplog: pytest.LogCaptureFixture) -> None:
    need("mkfs.xfs")
    disk, place = image.with_name("disk"), image.with_name("place")
    place.mkdir()
    with disk.open("wb") as file:
        file.truncate(320 * MI)
    run(["mkfs.xfs", "-q", "-s", "size=4096", str(disk)])
    under = _attach(disk)
    mount.mount(under.path, place, "xfs", ())
    under.close()
    foreign = place / "image"
    foreign.touch()
    os.truncate(foreign, MI)
    theirs, ours = _attach(foreign), _attach(image)
    at = os.open(place, os.O_RDONLY)
    fcntl.ioctl(at, _SHUT_DOWN, struct.pack("=I", 2))
    os.close(at)
    try:
        with pytest.raises(HostError, match="cannot see what is behind"):
            loop.identity(theirs.index)
        assert loop.of_file(image) == [ours.index]
        assert "out of order" in caplog.text
        found = image.stat()
        with pytest.raises(HostError, match="cannot see what is behind"):  # it is no stranger's there
            list(loop.of_files({(found.st_dev, found.st_ino)}, place))
    finally:
        theirs.close()
        ours.close()
        mount.umount(place, lazy=True)
