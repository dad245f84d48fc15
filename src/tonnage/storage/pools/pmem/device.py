"""The device of a namespace: wiped when it is made, formatted once, checked for use. Blocking."""

from __future__ import annotations

import os

from tonnage.base.errors import host_errors
from tonnage.host import mount
from tonnage.host.ndctl import SECTOR, Ndctl, PmemNamespace
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.fs import block_device
from tonnage.storage.pools.fs.formats import MI

_ENDS = MI  # bytes at both ends of a device where signatures are


def make_content(namespace: PmemNamespace, record: VolumeRecord) -> None:
    """Make the file system of a volume in state new and populate it, unless one was used already. Idempotent.

    What an interrupted mkfs of ours left is made again. Raw block was overwritten when it was made. Raises
    PreconditionError, BusyError, HostError.
    """
    if record.block:
        return
    with block_device.locked(namespace.device) as fd:
        options = mkfs_options(namespace, record)
        block_device.prepare(fd, namespace.device, record, zeroed=False, options=options)


def mkfs_options(namespace: PmemNamespace, record: VolumeRecord) -> tuple[str, ...]:
    """Options of mkfs besides those of the class."""
    if record.fstype == "xfs" and namespace.mode == "fsdax" and "reflink=" not in record.mkfs:
        return ("-m", "reflink=0")  # Linux before 6.0 maps no files that may share blocks
    return ()


def clear(tool: Ndctl, namespace: PmemNamespace, *, block: bool) -> None:
    """Wipe former content of a new namespace. Raises: BusyError, HostError.

    All of it for raw block; otherwise only the signatures of file systems.
    """
    if not block:
        wipe_ends(namespace.device)
        return
    # Memory that can only be mapped is written as a raw block device, behind what the mode keeps in front of it.
    is_mapped = namespace.mode == "devdax"
    shown = tool.show_raw(namespace) if is_mapped else namespace
    try:
        with host_errors(f"cannot overwrite {namespace.name}"), block_device.locked(shown.device) as fd:
            block_device.zero(fd, namespace.size - namespace.usable if is_mapped else 0)
    finally:
        if is_mapped:
            tool.restore(shown)


def is_used(namespace: PmemNamespace) -> bool:
    """Whether a namespace is mounted, part of another device, or published to a pod."""
    if not namespace.device:
        return False
    if _is_bound(namespace.device):
        return True
    if block_device.is_character(namespace.device):
        return False
    return block_device.stays(lambda: _is_held(namespace.device))


def _is_held(device: str) -> bool:
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def wipe_ends(device: str) -> None:
    """Wipe signatures of former content of that memory. Raises: BusyError, HostError."""
    with block_device.locked(device) as fd:
        end = os.lseek(fd, 0, os.SEEK_END)
        ends = min(_ENDS, end // 2 // SECTOR * SECTOR)
        with host_errors(f"cannot wipe {device}"):
            for start in (0, end - ends):
                block_device.zero_range(fd, start, ends)
            os.fsync(fd)


def _is_bound(device: str) -> bool:
    """Whether a device's node, also a character device's, is bind-mounted somewhere, so that a pod could open it."""
    return any(entry.fstype == "devtmpfs" and f"/dev{entry.root}" == device for entry in mount.mounts())
