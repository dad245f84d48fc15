"""The kind `quota`."""

from __future__ import annotations

from tonnage.storage.pools.directory import kind as directory
from tonnage.storage.pools.directory.kind import SHARED_DISK, DirectoryConfig, made_of_devices
from tonnage.storage.pools.kind import PoolKind, directory_place

_look_at_directory = directory.looking("quota")


def _look(config: DirectoryConfig) -> str:
    """Raises: UnavailableError also where the file system has no project quotas."""
    from tonnage.storage.pools.quota.backend import make_backend

    assert config.where is not None  # make() has checked it
    text = _look_at_directory(config)
    make_backend(config.where).contents.prepare()
    return text


KIND = PoolKind(
    name="quota",
    place="directory",
    config=DirectoryConfig,
    options=SHARED_DISK,
    read_place=directory_place,
    make=directory.making("tonnage.storage.pools.quota.backend"),
    look=_look,
    setup=made_of_devices(("xfs", "ext4"), quotas=True),
)
