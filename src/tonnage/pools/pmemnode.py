"""Volumes of persistent memory on their node: formatted once, mounted with DAX, shown. Blocking."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from tonnage.errors import AlreadyExists, HostError, NotFound, Precondition, Unsupported
from tonnage.host import device as devices
from tonnage.host import mount, ndctl
from tonnage.host.ndctl import Namespace, Ndctl
from tonnage.host.run import run
from tonnage.pools import filesystem, lvmdevice, mounted
from tonnage.pools.base import Stats
from tonnage.pools.directory import Record
from tonnage.pools.formats import form_of
from tonnage.pools.parameters import BANDWIDTH, IOPS, SOURCE, source_of
from tonnage.pools.pmemstore import PmemStore, is_bound, is_character

NODE = "device"
"""Name of the device node inside the staging directory of a raw block volume."""
_MKFS_TIMEOUT = 600.0
_DAX = "dax"
_UNHELD = "pods reach the memory without the kernel's block layer, which could hold them back"
MAPPED: Mapping[str, str] = {IOPS: _UNHELD, BANDWIDTH: _UNHELD}
"""Parameters that no volume in memory can have, and why. For the same reason device() is not offered."""


class PmemNode(PmemStore):
    """Namespaces that are shown to pods."""

    def stage(self, name: str, path: Path, options: Sequence[str]) -> None:
        """See Pool.stage. What is in a namespace of mode fsdax is mapped into programs without a copy (`-o dax`)."""
        record = self.record(name)
        namespace = self.namespace(record)
        if mount.is_mount(path):
            if record.block or not lvmdevice.is_mounted(namespace.device, path):
                raise AlreadyExists(f"{path} is a mount of something else: unmount it first")
            return
        filesystem.make_directory(path)
        if record.state == "new":
            namespace = self._prepare(record, namespace)
        if record.block:
            _show(namespace.device, path / NODE)
        else:
            lvmdevice.mount_at(namespace.device, record, path, with_dax(namespace.mode, options), discard=False)

    def _prepare(self, record: Record, namespace: Namespace) -> Namespace:
        """Make the content and leave state new, before anybody can see it."""
        if namespace.mode == "devdax":
            namespace = _zero_mapped(self.homes[record.name].tool, namespace)
        else:
            with lvmdevice.locked(namespace.device) as fd:
                _make_content(fd, namespace, record)
                if folder := source_of({SOURCE: record.from_folder}):
                    _fill(namespace, record, folder)
        self.write(replace(record, state="formatted"))
        return namespace

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
        device = self.namespace(record).device
        if not _shows(device, source, block=record.block):
            raise Precondition(f"{staging} shows something else than volume {name}")
        if record.block and readonly:
            if is_character(device):
                raise Unsupported(f"volume {name}: memory of mode devdax cannot be shown read-only")
            if not mount.is_mount(target):
                lvmdevice.publish_readonly(device, target)
            elif not lvmdevice.is_published(device, target, readonly=True):
                raise AlreadyExists(f"{target} shows something else, or not read-only: unpublish it first")
            return
        if record.block and mount.is_mount(target) and not _shows(device, target, block=True):
            raise AlreadyExists(f"{target} shows something else, or not with readonly=False: unpublish it first")
        filesystem.publish(source, target, block=record.block, readonly=readonly)

    def unpublish(self, name: str, target: Path) -> None:
        """See Pool.unpublish."""
        lvmdevice.unpublish(target)

    def stats(self, name: str, path: Path) -> Stats:
        """See Pool.stats."""
        record = self.record(name)
        device = self.namespace(record).device
        node = path / NODE if record.block and path.is_dir() else path
        shown = mount.is_mount(node) and _shows(device, node, block=record.block)
        if not shown and not (record.block and lvmdevice.is_published(device, node, readonly=True)):
            raise NotFound(f"volume {name} is not at {path}")
        if record.block:
            return Stats(total=record.size, used=record.size, available=0)
        return filesystem.stats(path)

    def fault(self, record: Record, path: Path | None) -> str:
        """See RecordStore."""
        try:
            namespace = self.namespace(record)
        except HostError as failure:
            return str(failure)
        if bad := ndctl.bad_blocks(namespace):
            return f"{bad} bytes of its memory cannot be read any more (ndctl list --media-errors): copy what is left"
        if path is None:
            return ""
        if record.block:
            return "" if is_bound(namespace.device) else f"its device is not shown at {path}"
        return mounted.fault(path)


def with_dax(mode: str, options: Sequence[str]) -> tuple[str, ...]:
    """Mount options of a volume: memory of mode fsdax is mapped."""
    return tuple(dict.fromkeys((_DAX, *options) if mode == "fsdax" else options))


def _make_content(fd: int, namespace: Namespace, record: Record) -> None:
    """A file system, or zeros for raw block; what an interrupted mkfs of ours left is made anew."""
    try:
        if record.block:
            lvmdevice.zero(fd)
            return
        found = devices.probe(fd)
        if found is not None and found.uuid != record.uuid:
            raise Precondition(
                f"{namespace.device} of the new volume {record.name} holds {found.kind} that we did not make:"
                " it will not be formatted; look at it, then delete the volume"
            )
        run(_mkfs(namespace, record), timeout=_MKFS_TIMEOUT, pass_fds=(fd,))
        os.fsync(fd)
    except OSError as failure:
        raise HostError(f"cannot prepare {namespace.device}: {failure.strerror}") from failure


def _mkfs(namespace: Namespace, record: Record) -> list[str]:
    form = form_of(record.fstype, record.mkfs)
    words = form.mkfs(namespace.device, record.length, record.uuid, prezeroed=False)
    if record.fstype == "xfs" and namespace.mode == "fsdax" and "reflink=" not in record.mkfs:
        words[1:1] = ["-m", "reflink=0"]  # Linux before 6.0 maps no files that may share blocks
    return words


def _fill(namespace: Namespace, record: Record, folder: Path) -> None:
    """Put what is in a folder of the node into the new file system, which nobody sees yet."""
    from tonnage.pools import fill

    with mount.unseen(namespace.device, record.fstype, ("nodev",)) as root:
        fill.fill(folder, root, record.size)


def _zero_mapped(tool: Ndctl, namespace: Namespace) -> Namespace:
    """Overwrite memory that can only be mapped: as a raw block device, whose writes reach the memory, behind what the
    mode keeps in front of it."""
    raw = tool.show_raw(namespace)
    try:
        with lvmdevice.locked(raw.device) as fd:
            lvmdevice.zero(fd, namespace.size - namespace.usable)
    except OSError as failure:
        raise HostError(f"cannot overwrite {namespace.name}: {failure.strerror}") from failure
    finally:
        namespace = tool.restore(raw)
    return namespace


def _show(device: str, node: Path) -> None:
    filesystem.publish(Path(device), node, block=True, readonly=False)


def _shows(device: str, path: Path, *, block: bool) -> bool:
    """Whether what is mounted at path is of that device: a block and a character device may have the same number."""
    if not block:
        return lvmdevice.is_mounted(device, path)
    wanted, shown = devices.find(device), devices.find(path, follow=False)
    if wanted is None or shown is None:
        return False
    return (wanted.st_rdev, wanted.st_mode >> 12) == (shown.st_rdev, shown.st_mode >> 12)
