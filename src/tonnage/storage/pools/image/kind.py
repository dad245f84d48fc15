"""The kind `image`."""

from __future__ import annotations

from tonnage.storage.pools.directory import kind as directory
from tonnage.storage.pools.directory.kind import SHARED_DISK, SPARSE, DirectoryConfig, made_of_devices
from tonnage.storage.pools.kind import ERASE_RATE, Needs, PoolKind, Tool, directory_place

KIND = PoolKind(
    name="image",
    place="directory",
    config=DirectoryConfig,
    options={**SHARED_DISK, "sparse": SPARSE, "eraserate": ERASE_RATE},
    read_place=directory_place,
    make=directory.making("tonnage.storage.pools.image.backend"),
    look=directory.looking("image"),
    looks_first=True,
    needs=lambda _config: Needs(loop=True, tools=(Tool("mkfs.ext4", "e2fsprogs"),)),
    formats=("ext4",),
    setup=made_of_devices(("xfs", "ext4", "btrfs")),
    selinux=True,
)
