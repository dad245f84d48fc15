"""Disks of a static pool on their node: bind mounts, and who else uses them."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from tonnage.errors import AlreadyExistsError, NotFoundError, PreconditionError, UnsupportedError
from tonnage.host import mount as host_mount
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.static import mount
from tonnage.pools.static.discovery import StaticDisk, look

pytestmark = pytest.mark.real
RECORD = VolumeRecord("v", 4096, uuid4(), fstype="tmpfs")


@pytest.fixture
def disk(real_folder: Path) -> StaticDisk:
    (real_folder / "pool" / "disk").mkdir(parents=True)
    host_mount.mount("none", real_folder / "pool" / "disk", "tmpfs", ["size=20m"])
    return look(real_folder / "pool").disks["disk"]


def test_a_life(disk: StaticDisk, real_folder: Path) -> None:
    staging, target = real_folder / "staging", real_folder / "target"
    assert not mount.is_staged(RECORD, disk, staging)
    mount.check_unused("v", disk)
    mount.stage(RECORD, disk, staging, ["noexec"])
    assert mount.is_staged(RECORD, disk, staging)
    mount.publish(RECORD, disk, staging, target, readonly=True)
    with pytest.raises(PreconditionError, match="volume v is in use at"):
        mount.check_unused("v", disk)
    assert mount.stats(RECORD, disk, target).total == 20 * 1024**2
    mount.unpublish(target)
    mount.unstage(staging)
    assert mount.elsewhere(disk) == ""
    with pytest.raises(NotFoundError):
        mount.stats(RECORD, disk, staging)


def test_refusals(disk: StaticDisk, real_folder: Path) -> None:
    staging = real_folder / "staging"
    with pytest.raises(UnsupportedError, match="mount option 'commit=5'"):
        mount.stage(RECORD, disk, staging, ["commit=5"])
    host_mount.mount("none", staging, "tmpfs", ["size=1m"])
    with pytest.raises(AlreadyExistsError, match="something else than volume v"):
        mount.is_staged(RECORD, disk, staging)
