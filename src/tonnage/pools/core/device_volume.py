"""Volumes that are devices of their own, such as logical volumes and namespaces of persistent memory, on their node:
formatted once, mounted, shown. The part of such a store between making and removing them. Blocking.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from tonnage.errors import AlreadyExists, NotFound, Precondition
from tonnage.host import mount, superblock
from tonnage.pools.base.contract import Stats
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.core.backend import RecordStore
from tonnage.pools.fs import block_device, mounts, online

log = logging.getLogger(__name__)
NODE = "device"
"""Name of the device node inside the staging directory of a raw block volume."""


class DeviceNode(RecordStore):
    """Devices that are shown to pods."""

    @abstractmethod
    def bring_up(self, record: VolumeRecord) -> str:
        """The device of a volume, which is made to appear where it is not there. May be repeated. Raises HostError."""

    @abstractmethod
    def device_of(self, record: VolumeRecord) -> str | None:
        """The device of a volume, None while it is not there. Raises HostError."""

    @abstractmethod
    def make_content(self, record: VolumeRecord, device: str) -> str:
        """Make the content of a volume in state new, durably; its device after that. May be repeated.

        Raises Precondition when something foreign is on it, Busy, HostError.
        """

    def mount_options(self, record: VolumeRecord, options: Sequence[str]) -> Sequence[str]:
        """The options that a volume is mounted with, beside those of its file system. options: what was asked for."""
        return options

    def show_readonly(self, device: str, target: Path) -> None:
        """Show the device of a raw block volume so that nobody can write to it. Raises Unsupported, HostError."""
        block_device.publish_readonly(device, target)

    def stage(self, name: str, path: Path, options: Sequence[str]) -> None:
        record = self.record(name)
        device = self.bring_up(record)
        if mount.is_mount(path):
            if record.block or not block_device.is_mounted(device, path):
                raise AlreadyExists(f"{path} is a mount of something else: unmount it first")
        else:
            mounts.make_directory(path)
            if record.state == "new":
                device = self.make_content(record, device)
                record = replace(record, state="formatted", pending=False)
                self.write(record)  # before anybody can see it
            if record.block:
                mounts.publish(Path(device), path / NODE, block=True, readonly=False)
                self.grown(record)
                return
            block_device.mount_at(device, record, path, self.mount_options(record, options))
        if record.pending and "ro" not in options:
            self._grow(record, device)

    def _grow(self, record: VolumeRecord, device: str) -> None:
        """Let the mounted file system take the room it was given. ext4 is never grown unmounted: resize2fs cannot be
        killed without damage."""
        if record.fstype == "ext4" and not superblock.may_grow_ext4():
            log.warning("ext4 cannot grow without CAP_SYS_RESOURCE, it stays as it is volume=%s", record.name)
            return
        online.grow(record, block_device.roots(device))
        self.grown(record)

    def grown(self, record: VolumeRecord) -> VolumeRecord:
        """Write down that the file system has its size."""
        if record.pending:
            record = replace(record, pending=False)
            self.write(record)
        return record

    def unstage(self, name: str, path: Path) -> None:
        if not mount.is_mount(path) and mount.is_mount(path / NODE):
            mounts.unpublish(path / NODE)
        mounts.unstage(path)

    def publish(self, name: str, staging: Path, target: Path, *, readonly: bool) -> None:
        record = self.record(name)
        source = staging / NODE if record.block else staging
        if not mount.is_mount(source):
            raise Precondition(f"volume {name} is not staged at {staging}: stage it first")
        device = self.device_of(record)
        shows = block_device.is_shown if record.block else block_device.is_mounted
        if device is None or not shows(device, source):
            raise Precondition(f"{staging} shows something else than volume {name}")
        if record.block and mount.is_mount(target):
            if not block_device.is_published(device, target, readonly=readonly):
                raise AlreadyExists(
                    f"{target} shows something else, or not with readonly={readonly}: unpublish it first"
                )
        elif record.block and readonly:
            self.show_readonly(device, target)
        else:
            mounts.publish(source, target, block=record.block, readonly=readonly)

    def unpublish(self, name: str, target: Path) -> None:
        block_device.unpublish(target)

    def stats(self, name: str, path: Path) -> Stats:
        record = self.record(name)
        if not self._is_at(record, path):
            raise NotFound(f"volume {name} is not at {path}")
        if record.block:
            return Stats(total=record.size, used=record.size, available=0)
        return mounts.stats(path)

    def _is_at(self, record: VolumeRecord, path: Path) -> bool:
        """Whether a volume is mounted or shown at path, or staged there."""
        device = self.device_of(record)
        node = path / NODE if record.block and path.is_dir() else path
        if device is None or not mount.is_mount(node):
            return False
        if not record.block:
            return block_device.is_mounted(device, path)
        return any(block_device.is_published(device, node, readonly=readonly) for readonly in (False, True))

    def shown_fault(self, record: VolumeRecord, path: Path) -> str:
        """What is wrong with a volume where it should be seen, "" for nothing."""
        if not record.block:
            return online.fault(path)
        return "" if self._is_at(record, path) else f"its device is not at {path}"
