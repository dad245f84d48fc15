"""Volumes that are block devices: logical volumes and namespaces of persistent memory.

The node's part of such a back end: format once, stage, publish. Blocking.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from tonnage.base.errors import AlreadyExistsError, NotFoundError, PreconditionError
from tonnage.host import filesystem, mount
from tonnage.storage.pools.base.contract import Stats
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.backend import Mounts
from tonnage.storage.pools.fs import block_device, mounts, online, shutdown

log = logging.getLogger(__name__)
NODE = "device"
"""Name of the device node inside the staging directory of a raw block volume."""


class Devices(Protocol):
    """The devices of a pool's volumes."""

    def is_used(self, name: str) -> bool:
        """Whether the device of a volume is open or published. Raises: HostError."""

    def bring_up(self, record: VolumeRecord) -> str:
        """Activate the device of a volume and return it. Idempotent. Raises: HostError."""

    def device_of(self, record: VolumeRecord) -> str | None:
        """The device of a volume, None while it is not active. Raises: HostError."""

    def make_content(self, record: VolumeRecord, device: str) -> None:
        """Make the content of a volume in state new, durable. Idempotent.

        Raises: PreconditionError when foreign content is on it, BusyError, HostError.
        """

    def mount_options(self, record: VolumeRecord, options: Sequence[str]) -> Sequence[str]:
        """All mount options of a volume, except those of its file system. options: the requested ones."""

    def write(self, record: VolumeRecord) -> None:
        """Write a volume's record, durable."""


class DeviceMounts(Mounts):
    """Stages and publishes volumes that are block devices on this node."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._down = shutdown.ShutDowns()

    def check_unused(self, name: str) -> None:
        if self._devices.is_used(name):
            raise PreconditionError(f"volume {name} is in use (mounted or attached): unpublish and unstage it first")

    def stage(self, record: VolumeRecord, path: Path, options: Sequence[str]) -> None:
        """Format a volume once and mount it at path; attach raw block.

        Raises: AlreadyExistsError, PreconditionError.
        """
        device = self._devices.bring_up(record)
        is_there = mount.is_mount(path)
        if is_there and (record.block or not block_device.is_mounted(device, path)):
            raise AlreadyExistsError(f"{path} is a mount of something else: unmount it first")
        if not is_there or self._down.release(record.name, path):
            mounts.make_directory(path)
            if record.state == "new":
                self._devices.make_content(record, device)
                record = replace(record, state="formatted", pending=False)
                self._devices.write(record)  # before anybody can see it
            if record.block:
                mounts.publish(Path(device), path / NODE, block=True, readonly=False)
                self.grown(record)
                return
            block_device.mount_at(device, record, path, self._devices.mount_options(record, options))
            self._down.staged(record.name, path)
        else:
            mounts.check_context(record.name, path, options)
        if record.pending and "ro" not in options:
            self._grow(record, device)

    def writes_record(self, record: VolumeRecord) -> bool:
        return record.state == "new"

    def grow_used(self, record: VolumeRecord) -> VolumeRecord:
        """Grow the file system of a mounted volume; return its record.

        Raises: NotFoundError, PreconditionError, HostError.
        """
        if record.pending and not record.block:
            online.grow(record, block_device.roots(self._devices.bring_up(record), record))
        return self.grown(record)

    def _grow(self, record: VolumeRecord, device: str) -> None:
        """Grow the mounted file system to its device. ext4 never grows unmounted: killing resize2fs damages it."""
        if record.fstype == "ext4" and not filesystem.may_grow_ext4():
            log.warning("ext4 cannot grow without CAP_SYS_RESOURCE, it stays as it is volume=%s", record.name)
            return
        online.grow(record, block_device.roots(device, record))
        self.grown(record)

    def grown(self, record: VolumeRecord) -> VolumeRecord:
        """Record that the file system has its size."""
        if record.pending:
            record = replace(record, pending=False)
            self._devices.write(record)
        return record

    def unstage(self, name: str, path: Path) -> None:
        """Undo stage. Idempotent."""
        self._down.unstaged(name, path)
        unstage(path)

    def unpublish(self, name: str, target: Path) -> None:
        """Undo publish. Idempotent."""
        block_device.unpublish(target)

    def device(self, record: VolumeRecord) -> tuple[int, int] | None:
        return block_device.number_of(self._devices.device_of(record))

    def publish(self, record: VolumeRecord, staging: Path, target: Path, *, readonly: bool) -> None:
        """Publish a staged volume. Raises: PreconditionError, AlreadyExistsError, UnsupportedError."""
        name = record.name
        source = staging / NODE if record.block else staging
        if not mount.is_mount(source):
            raise PreconditionError(f"volume {name} is not staged at {staging}: stage it first")
        device = self._devices.device_of(record)
        shows = block_device.is_shown if record.block else block_device.is_mounted
        if device is None or not shows(device, source):
            raise PreconditionError(f"{staging} shows something else than volume {name}")
        self.revive(record, staging)
        if record.block and mount.is_mount(target):
            if not block_device.is_published(device, target, readonly=readonly):
                raise AlreadyExistsError(
                    f"{target} shows something else, or not with readonly={readonly}: unpublish it first"
                )
        elif record.block and readonly:
            block_device.publish_readonly(device, target)
        else:
            mounts.publish(source, target, block=record.block, readonly=readonly)

    def stats(self, record: VolumeRecord, path: Path) -> Stats:
        """Usage of a volume at path. Raises: NotFoundError."""
        if not self._is_at(record, path):
            raise NotFoundError(f"volume {record.name} is not at {path}")
        if record.block:
            return Stats(total=record.size, used=record.size, available=0)
        return mounts.stats(path)

    def _is_at(self, record: VolumeRecord, path: Path) -> bool:
        """Whether a volume is mounted, published or staged at path."""
        device = self._devices.device_of(record)
        node = path / NODE if record.block and path.is_dir() else path
        if device is None or not mount.is_mount(node):
            return False
        if not record.block:
            return block_device.is_mounted(device, path)
        return any(block_device.is_published(device, node, readonly=readonly) for readonly in (False, True))

    def places(self, records: Sequence[VolumeRecord]) -> Mapping[str, Path]:
        table, found = block_device.places(), dict[str, Path]()
        for record in records:
            if not record.block and (device := self._devices.device_of(record)) is not None:
                number = os.makedev(*(block_device.number_of(device) or (0, 0)))
                if number in table:
                    found[record.name] = table[number]
        return found

    def fault_at(self, record: VolumeRecord, path: Path) -> str:
        """The problem of a volume where it should be mounted, "" for none."""
        if not record.block:
            return online.mount_fault(path)
        return "" if self._is_at(record, path) else f"its device is not at {path}"


def unstage(path: Path) -> None:
    """Unmount a volume at a staging path, and remove its device node. Idempotent."""
    if not mount.is_mount(path) and mount.is_mount(path / NODE):
        mounts.unpublish(path / NODE)
    mounts.unstage(path)
