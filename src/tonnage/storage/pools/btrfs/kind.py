"""The kind `btrfs`."""

from __future__ import annotations

import os
from pathlib import Path

from tonnage.storage.pools.directory import kind as directory
from tonnage.storage.pools.directory.kind import SHARED_DISK, SPARSE, DirectoryConfig, made_of_devices
from tonnage.storage.pools.kind import Needs, PoolKind, Tool, directory_place


def _needs(config: DirectoryConfig) -> Needs:
    """A directory on a btrfs needs nothing; elsewhere the pool is an image."""
    if config.where is not None and is_btrfs(config.where):
        return Needs()
    return Needs(loop=True, tools=(Tool("mkfs.btrfs", "btrfs-progs"),))


def is_btrfs(where: Path) -> bool:
    """Whether a pool's directory is, or would be, on a btrfs. Blocking."""
    from tonnage.host import btrfs
    from tonnage.host.descriptor import opened

    existing = next(path for path in (where, *where.parents) if path.is_dir())
    with opened(existing, os.O_RDONLY | os.O_DIRECTORY) as at:
        return btrfs.fsid(at) is not None


KIND = PoolKind(
    name="btrfs",
    place="directory",
    config=DirectoryConfig,
    options={**SHARED_DISK, "sparse": SPARSE},
    read_place=directory_place,
    make=directory.making("tonnage.storage.pools.btrfs.backend"),
    look=directory.looking("btrfs", "btrfs-image"),
    looks_first=True,
    needs=_needs,
    formats=("btrfs",),
    setup=made_of_devices(("btrfs",)),
)
