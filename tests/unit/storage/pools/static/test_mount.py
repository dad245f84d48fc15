"""Disks of a static pool on their node: bind mounts, and who else uses them."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from tonnage.base.errors import AlreadyExistsError, NotFoundError, PreconditionError, UnsupportedError
from tonnage.host import mount as host_mount
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.static.discovery import StaticDisk, look
from tonnage.storage.pools.static.mount import StaticMounts, elsewhere

pytestmark = pytest.mark.real
RECORD = VolumeRecord("v", 4096, uuid4(), fstype="tmpfs")


@pytest.fixture
def disk(real_folder: Path) -> StaticDisk:
    (real_folder / "pool" / "disk").mkdir(parents=True)
    host_mount.mount("none", real_folder / "pool" / "disk", "tmpfs", ["size=20m"])
    return look(real_folder / "pool").disks["disk"]


@pytest.fixture
def written() -> list[VolumeRecord]:
    return []


@pytest.fixture
def mounts(disk: StaticDisk, written: list[VolumeRecord]) -> StaticMounts:
    return StaticMounts(lambda name: disk, written.append)


def test_a_life(mounts: StaticMounts, disk: StaticDisk, written: list[VolumeRecord], real_folder: Path) -> None:
    staging, target = real_folder / "staging", real_folder / "target"
    with pytest.raises(PreconditionError, match="not staged"):
        mounts.publish(RECORD, staging, target, readonly=True)
    mounts.check_unused("v")
    mounts.stage(RECORD, staging, ["noexec"])
    mounts.stage(RECORD, staging, ["noexec"])
    assert [record.state for record in written] == ["formatted"], "once"
    mounts.publish(RECORD, staging, target, readonly=True)
    with pytest.raises(PreconditionError, match="volume v is in use at"):
        mounts.check_unused("v")
    assert mounts.stats(RECORD, target).total == 20 * 1024**2
    mounts.unpublish("v", target)
    mounts.unstage("v", staging)
    assert elsewhere(disk) == ""
    with pytest.raises(NotFoundError):
        mounts.stats(RECORD, staging)


def test_rejections(mounts: StaticMounts, real_folder: Path) -> None:
    staging = real_folder / "staging"
    with pytest.raises(UnsupportedError, match="mount option 'commit=5'"):
        mounts.stage(RECORD, staging, ["commit=5"])
    host_mount.mount("none", staging, "tmpfs", ["size=1m"])
    with pytest.raises(AlreadyExistsError, match="something else than volume v"):
        mounts.stage(RECORD, staging, [])
