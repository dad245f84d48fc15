"""Volumes of an LVM pool on their node: formatted once, mounted, shown, grown. The part of the store between making
and removing them. Blocking.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from tonnage.errors import AlreadyExists, NotFound, Precondition
from tonnage.host import mount, superblock
from tonnage.pools import filesystem, lvmdevice, mounted
from tonnage.pools.base import Stats
from tonnage.pools.directory import Record
from tonnage.pools.lvmstore import LvmStore

log = logging.getLogger(__name__)
NODE = "device"
"""Name of the device node inside the staging directory of a raw block volume."""


class LvmNode(LvmStore):
    """Logical volumes that are shown to pods."""

    def stage(self, name: str, path: Path, options: Sequence[str]) -> None:
        """See Pool.stage."""
        record = self.record(name)
        device = self.activate(self.lv(name))
        if mount.is_mount(path):
            if not lvmdevice.is_mounted(device, path):
                raise AlreadyExists(f"{path} is a mount of something else: unmount it first")
        else:
            filesystem.make_directory(path)
            if record.state == "new":
                record = self._prepare(record, device)
            if record.block:
                self._stage_block(record, device, path / NODE)
                return
            lvmdevice.mount_at(device, record, path, options, discard=self.layout_of(self.lv(name), record).thin)
        if record.pending and "ro" not in options:
            self._grow(record, device)

    def _stage_block(self, record: Record, device: str, node: Path) -> None:
        filesystem.publish(Path(device), node, block=True, readonly=False)
        self.grown(record)

    def _prepare(self, record: Record, device: str) -> Record:
        """Make the content and leave state new, before anybody can see it."""
        layout = self.layout_of(self.lv(record.name), record)
        if layout.thin:
            self.empty(self.lv(record.name))
        with lvmdevice.locked(device) as fd:
            lvmdevice.prepare(fd, device, record, zeroed=layout.thin)
        ready = replace(record, state="formatted", pending=False)
        self.write(ready)
        return ready

    def _grow(self, record: Record, device: str) -> None:
        """Let the mounted file system take the room it was given. ext4 is never grown unmounted: resize2fs cannot be
        killed without damage."""
        if record.fstype == "ext4" and not superblock.may_grow_ext4():
            log.warning("ext4 cannot grow without CAP_SYS_RESOURCE, it stays as it is volume=%s", record.name)
            return
        mounted.grow(record, lvmdevice.roots(device))
        self.grown(record)

    def grown(self, record: Record) -> Record:
        """Write down that the file system has its size."""
        if record.pending:
            record = replace(record, pending=False)
            self.write(record)
        return record

    def unstage(self, name: str, path: Path) -> None:
        """See Pool.unstage."""
        if not mount.is_mount(path) and mount.is_mount(path / NODE):
            filesystem.unpublish(path / NODE)
        filesystem.unstage(path)

    def publish(self, name: str, staging: Path, target: Path, *, readonly: bool) -> None:
        """See Pool.publish."""
        record = self.record(name)
        source = staging / NODE if record.block else staging
        if not mount.is_mount(source):
            raise Precondition(f"volume {name} is not staged at {staging}: stage it first")
        device = self.device_of(record)
        shows = lvmdevice.is_shown if record.block else lvmdevice.is_mounted
        if device is None or not shows(device, source):
            raise Precondition(f"{staging} shows something else than volume {name}")
        if record.block and mount.is_mount(target):
            if not lvmdevice.is_published(device, target, readonly=readonly):
                raise AlreadyExists(
                    f"{target} shows something else, or not with readonly={readonly}: unpublish it first"
                )
        elif record.block and readonly:
            lvmdevice.publish_readonly(device, target)
        else:
            filesystem.publish(source, target, block=record.block, readonly=readonly)

    def unpublish(self, name: str, target: Path) -> None:
        """See Pool.unpublish."""
        lvmdevice.unpublish(target)

    def stats(self, name: str, path: Path) -> Stats:
        """See Pool.stats."""
        record = self.record(name)
        device = self.device_of(record)
        if record.block:
            if not self.is_at(record, path):
                raise NotFound(f"volume {name} is not at {path}")
            return Stats(total=record.size, used=record.size, available=0)
        if device is None or not mount.is_mount(path) or not lvmdevice.is_mounted(device, path):
            raise NotFound(f"volume {name} is not mounted at {path}")
        return filesystem.stats(path)

    def is_at(self, record: Record, path: Path) -> bool:
        """Whether a raw block volume is shown at path, or staged there."""
        device, node = self.device_of(record), path / NODE if path.is_dir() else path
        return device is not None and any(
            lvmdevice.is_published(device, node, readonly=readonly) for readonly in (False, True)
        )

    def grow(self, name: str, path: Path) -> Record:
        """See Pool.grow."""
        record = self.record(name)
        self.stats(name, path)  # raises NotFound
        if record.pending and not record.block:
            mounted.grow(record, lvmdevice.roots(self.activate(self.lv(name))))
        return self.grown(record)

    def device(self, name: str) -> tuple[int, int] | None:
        """See Pool.device."""
        path = self.device_of(self.record(name))
        if path is None:
            return None
        number = os.stat(path).st_rdev
        return os.major(number), os.minor(number)
