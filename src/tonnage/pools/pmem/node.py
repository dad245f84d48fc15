"""Persistent memory volumes on their node: formatted once, mounted with DAX, published. Blocking."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tonnage.errors import HostError, Unsupported
from tonnage.host import mount, ndctl
from tonnage.host.ndctl import PmemNamespace
from tonnage.host.run import run
from tonnage.pools.base.parameters import BANDWIDTH, IOPS, SOURCE, source_of
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.core.device_volume import DeviceNode
from tonnage.pools.fs import block_device
from tonnage.pools.fs.format_once import must_format
from tonnage.pools.fs.formats import form_of
from tonnage.pools.pmem.store import PmemStore, is_character

_MKFS_TIMEOUT = 600.0
_DAX = "dax"
_UNHELD = "pods reach the memory without the kernel's block layer, which could hold them back"
MAPPED: Mapping[str, str] = {IOPS: _UNHELD, BANDWIDTH: _UNHELD}
"""Parameters that a volume in memory cannot support, and why. So device() is unsupported too."""


class PmemNode(PmemStore, DeviceNode):
    """Namespaces that are staged and published."""

    def bring_up(self, record: VolumeRecord) -> str:
        return self.namespace(record).device

    def device_of(self, record: VolumeRecord) -> str | None:
        return self.namespace(record).device

    def make_content(self, record: VolumeRecord, device: str) -> str:
        if record.block:
            return device  # it was overwritten when it was made
        namespace = self.namespace(record)
        with block_device.locked(device) as fd:
            _make_content(fd, namespace, record)
            if folder := source_of({SOURCE: record.from_folder}):
                _fill(namespace, record, folder)
        return device

    def mount_options(self, record: VolumeRecord, options: Sequence[str]) -> Sequence[str]:
        """Mount options, with DAX for mode fsdax: content is mapped into programs without a copy."""
        return tuple(dict.fromkeys((_DAX, *options))) if self.namespace(record).mode == "fsdax" else options

    def show_readonly(self, device: str, target: Path) -> None:
        if is_character(device):
            raise Unsupported(f"{device}: memory of mode devdax cannot be shown read-only")
        super().show_readonly(device, target)

    def fault(self, record: VolumeRecord, path: Path | None) -> str:
        try:
            namespace = self.namespace(record)
        except HostError as failure:
            return str(failure)
        if bad := ndctl.bad_blocks(namespace):
            return f"{bad} bytes of its memory cannot be read any more (ndctl list --media-errors): copy what is left"
        return self.shown_fault(record, path) if path else ""


def _make_content(fd: int, namespace: PmemNamespace, record: VolumeRecord) -> None:
    """Make a file system unless one was used already; what an interrupted mkfs of ours left is made again."""
    try:
        if must_format(fd, namespace.device, record):
            run(_mkfs(namespace, record), timeout=_MKFS_TIMEOUT, pass_fds=(fd,))
            os.fsync(fd)
    except OSError as failure:
        raise HostError(f"cannot prepare {namespace.device}: {failure.strerror}") from failure


def _mkfs(namespace: PmemNamespace, record: VolumeRecord) -> list[str]:
    form = form_of(record.fstype, record.mkfs)
    words = form.mkfs(namespace.device, record.length, record.uuid, prezeroed=False)
    if record.fstype == "xfs" and namespace.mode == "fsdax" and "reflink=" not in record.mkfs:
        words[1:1] = ["-m", "reflink=0"]  # Linux before 6.0 maps no files that may share blocks
    return words


def _fill(namespace: PmemNamespace, record: VolumeRecord, folder: Path) -> None:
    """Populate the new file system from a directory of the node, before it is in use."""
    from tonnage.pools.fs import populate

    with mount.unseen(namespace.device, record.fstype, ("nodev",)) as root:
        populate.fill_once(folder, root, record.size)
