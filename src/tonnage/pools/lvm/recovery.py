"""Devices that an LVM command has left behind when it was killed, brought up to LVM's metadata. Blocking.

LVM suspends a device while it changes what is under it. A kill in between leaves it so: whoever reads or writes it
waits for ever. A kill a little earlier leaves a device that is smaller than its logical volume.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from tonnage.errors import TonnageError
from tonnage.host import lvm

log = logging.getLogger(__name__)


def refresh(group: str, sizes: Mapping[str, int]) -> None:
    """Let the devices of a group go on that are suspended, and those have their size that are smaller than LVM says.

    sizes: bytes of the logical volumes to be looked at. A command that is still at work is waited for, as LVM has
    locks. May be repeated; a failure is for the log, as whoever calls has other work to do.
    """
    held = lvm.suspended(group)
    behind = [lv for lv, size in sizes.items() if 0 < _size(group, lv) < size]
    try:
        if held:
            log.warning("devices that an unfinished command left suspended, resumed group=%s devices=%s", group, held)
            lvm.lvm("vgchange", "--quiet", "--refresh", group)
        elif behind:
            log.warning("devices that are smaller than LVM says, reloaded group=%s volumes=%s", group, behind)
            lvm.lvm("lvchange", "--quiet", "--refresh", *(f"{group}/{lv}" for lv in behind))
    except TonnageError as failure:
        log.error("devices cannot be brought up to date group=%s error=%s", group, failure)


def _size(group: str, lv: str) -> int:
    """Bytes that the device of a logical volume has, 0 for none."""
    if (path := lvm.device(group, lv)) is None:
        return 0
    try:
        number = os.stat(path).st_rdev
        return int(Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/size").read_text()) * 512
    except (OSError, ValueError):
        return 0
