"""Pools on the disk that the node lives on: rejected in its configuration, kept from filling it elsewhere."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.host import mount
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.pools import kubelet_disk
from tonnage.storage.pools.base.contract import Keep
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.directory.kind import DirectoryConfig
from tonnage.storage.pools.kind import PoolConfig

MI = 1024**2
GI = 1024**3


@pytest.fixture
def on_root() -> Path:
    """A folder to be made on the root file system."""
    return Path("/nowhere-yet/pool")


@pytest.fixture
def elsewhere(real_folder: Path) -> Path:
    """A folder on a disk of its own."""
    disk = real_folder / "disk"
    disk.mkdir()
    mount.mount("none", disk, "tmpfs", ["size=64m"])
    return disk


def _image(where: Path, options: str = "") -> PoolConfig:
    return parse(f"image:{where},size=10Gi{options}")


def test_what_lies_on_the_nodes_disk(on_root: Path) -> None:
    assert kubelet_disk.shares(_image(on_root)) == "/"
    assert kubelet_disk.shares(parse("fake,size=1Gi")) == ""
    assert kubelet_disk.shares(parse("lvm:vg0")) == ""


@pytest.mark.real
def test_a_disk_of_its_own_is_left_as_it_is(elsewhere: Path) -> None:
    for options in ("", ",rootfs=no", ",rootfs=yes", ",keep=1Mi", ",overcommit=yes"):
        config = _image(elsewhere / "pool", options)
        assert kubelet_disk.settle(config) == config
        assert kubelet_disk.remark(config) == ""


@pytest.mark.real
def test_the_kubelets_disk_counts_too(elsewhere: Path) -> None:
    (elsewhere / "kubelet").mkdir()
    config = _image(elsewhere / "pool", ",rootfs=no")
    with pytest.raises(UnavailableError, match=f"with {elsewhere}/kubelet"):
        kubelet_disk.settle(config, [elsewhere / "kubelet"])
    assert kubelet_disk.settle(config, [Path("/root"), elsewhere / "not-made"]) == config


@pytest.mark.real
def test_a_symlink_to_the_nodes_disk(elsewhere: Path, tmp_path: Path) -> None:
    (elsewhere / "link").symlink_to("/usr")
    assert kubelet_disk.shares(_image(elsewhere / "link" / "pool")) == kubelet_disk.shares(_image(Path("/usr/pool")))


def test_a_configuration_must_say_that_it_is_meant(on_root: Path) -> None:
    rejected = r"on the node's root file system .*give it a disk of its own or say rootfs=yes"
    for look in (kubelet_disk.settle, kubelet_disk.check):
        with pytest.raises(UnavailableError, match=rejected):
            look(_image(on_root, ",rootfs=no"))
    kubelet_disk.check(_image(on_root, ",rootfs=yes"))
    assert kubelet_disk.settle(_image(on_root, ",rootfs=yes")).limits.keep == Keep(percent=15)
    assert kubelet_disk.settle(_image(on_root, ",rootfs=yes,keep=3Gi")).limits.keep == Keep(3 * GI)


def test_nothing_can_be_kept_of_what_is_promised_without_bound(on_root: Path) -> None:
    with pytest.raises(InvalidError, match="can keep nothing free: say overcommit=RATIO, or keep=0"):
        kubelet_disk.settle(_image(on_root, ",rootfs=yes,overcommit=yes"))
    assert kubelet_disk.settle(_image(on_root, ",rootfs=yes,overcommit=yes,keep=0")).limits.keep == Keep()
    assert "it may fill that" in kubelet_disk.remark(_image(on_root, ",overcommit=yes"))


def test_on_a_command_line_a_warning_says_what_is_kept(on_root: Path) -> None:
    config = _image(on_root)
    assert isinstance(config, DirectoryConfig)
    assert kubelet_disk.settle(config) == replace(config, keep=Keep(percent=15))
    found = os.statvfs("/")
    kept = Keep(percent=15).of(found.f_blocks * found.f_frsize) // MI * MI
    assert f"it keeps 15% ({from_bytes(kept)}) free (keep=)" in kubelet_disk.remark(config)
    assert "keeps 10Gi free" in kubelet_disk.remark(_image(on_root, ",keep=10Gi"))
    assert kubelet_disk.remark(_image(on_root, ",rootfs=yes")) == ""


@pytest.mark.real
async def test_what_is_kept_is_no_room(elsewhere: Path) -> None:
    disks = Disks()
    room = []
    for number, options in enumerate(("", ",keep=16Mi", ",keep=50%")):
        pool = make(parse(f"image:{elsewhere}/{number}{options}"), disks=disks)
        await pool.open()
        room.append((await pool.capacity(block=True)).free)
        await pool.close()
    assert room[0] - room[1] == pytest.approx(16 * MI, abs=64 * 1024), "markers and folders take some blocks"
    assert room[0] - room[2] == pytest.approx(32 * MI, abs=64 * 1024)


@pytest.mark.real
async def test_what_a_btrfs_image_keeps_is_of_the_disk_outside(real_folder: Path, elsewhere: Path) -> None:
    mount.umount(elsewhere)
    mount.mount("none", elsewhere, "tmpfs", ["size=512m"])
    pool = make(parse(f"btrfs:{elsewhere}/pool,size=64Mi,keep=50%"), disks=Disks())
    await pool.open()
    assert (await pool.capacity()).free == 64 << 20
    await pool.close()
