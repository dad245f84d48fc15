"""What volumes that are directories have in common: limits, parameters, and their first content."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tonnage.errors import InvalidError
from tonnage.host import nofollow
from tonnage.pools.base.parameters import BANDWIDTH, IOPS, MKFS_OPTIONS, SOURCE, erase_of, source_of
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.fs.formats import MI

LEAST = MI
"""Minimum bytes of a volume: less would be the directory itself."""
_SHARED = "volumes share the pool's disk, and the kernel limits what a pod does to a disk, not to a folder of it"
_MADE = "its volumes are folders of a file system that is there already, none is made for them"
REFUSED = {IOPS: _SHARED, BANDWIDTH: _SHARED, MKFS_OPTIONS: _MADE}
"""Class parameters that a volume in a directory cannot support, with the reason."""


def check_no_erasure(parameters: Mapping[str, str]) -> None:
    """Check `erase` where the blocks of a volume cannot be located. Raises InvalidError."""
    if (method := erase_of(parameters)) != "none":
        raise InvalidError(
            f"parameter erase: {method}: want none: a volume here has no device of its own, and what overwrites its"
            " files need not reach the blocks they were in; use an image or lvm pool"
        )


def limit_for(size: int) -> int:
    """The limit that the kernel enforces: the requested size plus its overhead for directories and trees."""
    return size + MI + size // 512


def seed(record: VolumeRecord, content: Path) -> None:
    """Populate a new volume from its class's source, before its record is written.

    Raises ExhaustedError, OutOfRangeError, PreconditionError, InvalidError, HostError.
    """
    if (folder := source_of({SOURCE: record.from_folder})) is None:
        return
    from tonnage.pools.fs import populate

    with nofollow.opened(content, os.O_RDONLY | os.O_DIRECTORY) as at:
        populate.fill(folder, at, record.size)
