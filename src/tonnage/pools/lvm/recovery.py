"""Recovery of devices that a killed LVM command left suspended or too small. Blocking.

LVM suspends a device while it changes what is under it. A kill in between leaves it suspended: all reads and writes
wait forever. A kill a little earlier leaves a device that is smaller than its logical volume.
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
    """Resume suspended devices of a group, and reload those that are smaller than LVM says. Idempotent.

    sizes: bytes of the logical volumes to check. LVM's locks make it wait for a command that still works. A failure is
    only logged, as callers continue without it.
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
    """Bytes of the device of a logical volume, 0 for none."""
    if (path := lvm.device(group, lv)) is None:
        return 0
    try:
        number = os.stat(path).st_rdev
        return int(Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/size").read_text()) * 512
    except (OSError, ValueError):
        return 0
