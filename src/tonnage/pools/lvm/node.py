"""Logical volumes on their node: activated, formatted once, mounted, grown. Blocking."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.core.device_volume import DeviceNode
from tonnage.pools.fs import block_device, online
from tonnage.pools.lvm.store import LvmStore


class LvmNode(LvmStore, DeviceNode):
    """Logical volumes that are staged and published."""

    def bring_up(self, record: VolumeRecord) -> str:
        return self.activate(self.lv(record.name))

    def make_content(self, record: VolumeRecord, device: str) -> str:
        with block_device.locked(device) as fd:
            block_device.prepare(fd, device, record, zeroed=self._is_thin(record))
        return device

    def mount_options(self, record: VolumeRecord, options: Sequence[str]) -> Sequence[str]:
        """Mount options, with discard for a thin volume: deleted blocks return to its thin pool."""
        return ("discard", *options) if self._is_thin(record) else options

    def _is_thin(self, record: VolumeRecord) -> bool:
        return self.layout_of(self.lv(record.name), record).thin

    def grow(self, name: str, path: Path) -> VolumeRecord:
        record = self.record(name)
        self.stats(name, path)  # raises NotFound
        if record.pending and not record.block:
            online.grow(record, block_device.roots(self.bring_up(record)))
        return self.grown(record)

    def device(self, name: str) -> tuple[int, int] | None:
        path = self.device_of(self.record(name))
        if path is None:
            return None
        number = os.stat(path).st_rdev
        return os.major(number), os.minor(number)
