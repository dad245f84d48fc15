"""Volumes that are block devices, on a loop device: formatted once, mounted, published, grown."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace
from tests.programs import need

from tonnage.base.errors import AlreadyExistsError, HostError, NotFoundError, PreconditionError
from tonnage.host import loop, mount
from tonnage.host.descriptor import opened
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.device_mounts import NODE, DeviceMounts
from tonnage.storage.pools.fs import block_device

pytestmark = pytest.mark.real
MI = 1024**2


class Loop:
    """One loop device for all volumes, and the last record."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.record: VolumeRecord | None = None

    def is_used(self, name: str) -> bool:
        return block_device.is_bound(self.device)

    def bring_up(self, record: VolumeRecord) -> str:
        return self.device

    def device_of(self, record: VolumeRecord) -> str | None:
        return self.device

    def make_content(self, record: VolumeRecord, device: str) -> None:
        with block_device.locked(device) as fd:
            block_device.prepare(fd, device, record, zeroed=True)

    def mount_options(self, record: VolumeRecord, options: Sequence[str]) -> Sequence[str]:
        return options

    def write(self, record: VolumeRecord) -> None:
        self.record = record


@pytest.fixture
def devices(real_folder: Path) -> Iterator[Loop]:
    image = real_folder / "disk"
    image.touch()
    os.truncate(image, 512 * MI)
    fd = os.open(image, os.O_RDWR)
    attached = loop.attach(fd, str(image), autoclear=False)
    os.close(fd)
    yield Loop(attached.path)
    attached.close()
    loop.detach(attached.index)


def test_a_file_system_is_made_once(devices: Loop, real_folder: Path) -> None:
    mounts, staging, target = DeviceMounts(devices), real_folder / "staging", real_folder / "target"
    record = VolumeRecord("v", 32 * MI, uuid4(), length=64 * MI, fstype="ext4")
    with pytest.raises(PreconditionError, match="not staged"):
        mounts.publish(record, staging, target, readonly=False)
    for _ in range(2):
        mounts.stage(record, staging, [])
        record = devices.record or record
        (staging / "file").touch()
        mounts.publish(record, staging, target, readonly=False)
        assert (target / "file").exists()
        assert mounts.stats(record, target).total > 32 * MI
        assert mounts.fault_at(record, staging) == ""
        mounts.unpublish("v", target)
        mounts.unstage("v", staging)
    assert record.state == "formatted"
    with pytest.raises(NotFoundError):
        mounts.stats(record, staging)


def test_an_expanded_one_grows(devices: Loop, real_folder: Path) -> None:
    need("mkfs.btrfs")
    mounts, staging = DeviceMounts(devices), real_folder / "staging"
    record = VolumeRecord("v", 8 * MI, uuid4(), length=160 * MI, fstype="btrfs")
    mounts.stage(record, staging, [])
    larger = replace(devices.record or record, length=320 * MI, pending=True)
    grown = mounts.grow(larger, staging)
    assert not grown.pending
    assert devices.record == grown, "which is written down"
    mounts.unstage("v", staging)


def test_a_node_of_raw_block_is_shown_and_nothing_else_taken_for_it(devices: Loop, real_folder: Path) -> None:
    mounts, staging, target = DeviceMounts(devices), real_folder / "staging", real_folder / "target"
    record = VolumeRecord("v", 512 * MI, uuid4(), length=512 * MI, block=True)
    mounts.stage(record, staging, [])
    assert mount.is_mount(staging / NODE)
    for _ in range(2):
        mounts.publish(record, staging, target, readonly=True)
    with pytest.raises(AlreadyExistsError, match="readonly=False"):
        mounts.publish(record, staging, target, readonly=False)
    assert mounts.stats(record, target).total == 512 * MI
    assert mounts.device(record) == block_device.number_of(devices.device)
    with pytest.raises(PreconditionError, match="in use"):
        mounts.check_unused("v")
    mounts.unpublish("v", target)
    mounts.unstage("v", staging)
    assert mounts.fault_at(record, staging) != ""
    mounts.check_unused("v")


def test_one_that_has_shut_down_is_told_and_repaired(devices: Loop, real_folder: Path) -> None:
    need("mkfs.xfs")
    mounts, staging, target = DeviceMounts(devices), real_folder / "staging", real_folder / "target"
    record = VolumeRecord("v", 320 * MI, uuid4(), length=400 * MI, fstype="xfs")
    mounts.stage(record, staging, [])
    record = devices.record or record
    mounts.publish(record, staging, target, readonly=False)
    (target / "file").write_text("kept")
    assert mounts.places([record]) == {"v": staging}
    shut_down(staging)

    assert mounts.places([record]) == {"v": staging}
    assert "Input/output error" in mounts.fault_at(record, staging)
    with pytest.raises(PreconditionError, match=f"answers 'Input/output error' and is in use at {target}; look at"):
        mounts.stage(record, staging, [])
    with pytest.raises(HostError, match=r"volume v: cannot grow: .* answers 'Input/output error'; look at"):
        mounts.grow(record, target)
    mounts.unpublish("v", target)
    mounts.publish(record, staging, target, readonly=False)
    assert (target / "file").read_text() == "kept"
    assert mounts.fault_at(record, staging) == ""

    shut_down(staging)
    mounts.unpublish("v", target)
    mounts.unstage("v", staging)
    assert mounts.places([record]) == {}
    mounts.stage(record, staging, [])
    assert (staging / "file").read_text() == "kept"
    mounts.unstage("v", staging)


def shut_down(path: Path) -> None:
    """As the kernel does after an error; skips where its xfs has no ioctl for it."""
    os.sync()
    with opened(path) as fd:
        try:
            fcntl.ioctl(fd, 0x8004587D, struct.pack("=I", 2))  # XFS_IOC_GOINGDOWN, without the log
        except OSError as failure:
            pytest.skip(f"the kernel cannot shut it down: {failure.strerror}")
