"""Pools on the node's own disk, which the kubelet needs too. Blocking.

When the disk is full, the kubelet evicts pods and removes images. It acts when less than 10 % (its own file system,
nodefs) or 15 % (imagefs) is available, its default thresholds. So a node's configuration must set `rootfs=yes` for such
a pool, and the pool has a min free. For a pool named on the command line, min free is set without `rootfs` and a
warning says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.host import mount
from tonnage.host.mount import Mount
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.pools.base.contract import Keep
from tonnage.storage.pools.directory.kind import DirectoryConfig
from tonnage.storage.pools.kind import UNLIMITED, PoolConfig

_MI = 1024**2
EVICTION = Keep(percent=15.0)
"""The kubelet's eviction threshold, the larger of its defaults."""
# Root of the machine, or in a container of the image; then a file there that the kubelet mounts from its own folder.
_NODE = (Path("/"), Path("/etc/hosts"))


def settle(config: PoolConfig, kubelet: Sequence[Path] = ()) -> PoolConfig:
    """The pool's configuration with its min free. kubelet: directories of the kubelet, when known.

    Raises: UnavailableError for a pool on the node's disk without `rootfs` (its own disk may not be mounted yet),
    InvalidError for one that could leave nothing free.
    """
    if not isinstance(config, DirectoryConfig) or not (shared := shares(config, kubelet)):
        return config
    keep = EVICTION if config.keep is None else config.keep
    if config.rootfs is False:
        raise UnavailableError(
            f"pool {config.name}: {config.where} is on the node's root file system (with {shared}): mount its disk,"
            f" give it a disk of its own or say rootfs=yes, which keeps {_amount(config, keep)} free for the kubelet's"
            " eviction threshold"
        )
    if config.rootfs and config.keep is None and config.overcommit == UNLIMITED:
        raise InvalidError(
            f"pool {config.name}: overcommit=yes on the node's root file system can keep nothing free: say"
            " overcommit=RATIO, or keep=0 if the disk may be filled"
        )
    return replace(config, keep=keep)


def check(config: PoolConfig, kubelet: Sequence[Path] = ()) -> None:
    """Raises: UnavailableError for a pool on the node's own disk without `rootfs`, as while its own is missing."""
    if isinstance(config, DirectoryConfig) and config.rootfs is False:
        settle(config, kubelet)


def remark(config: PoolConfig, kubelet: Sequence[Path] = ()) -> str:
    """A warning for a pool that was named without `rootfs`, "" for none."""
    if not isinstance(config, DirectoryConfig) or config.rootfs is not None:
        return ""
    if not (shared := shares(config, kubelet)):
        return ""
    keep = EVICTION if config.keep is None else config.keep
    detail = f"it keeps {_amount(config, keep)} free (keep=), rootfs=yes says that it is meant"
    if config.overcommit == UNLIMITED:
        detail = "with overcommit=yes it may fill that, give it a disk of its own or overcommit=RATIO"
    return f"on the node's root file system (with {shared}): {detail}"


def shares(config: PoolConfig, kubelet: Sequence[Path] = ()) -> str:
    """Which directory of the node is on the same file system as a pool, "" for none."""
    if config.where is None or not isinstance(config, DirectoryConfig):
        return ""
    table = list(mount.mounts())
    disk = _device(config.where, table)
    return next((str(path) for path in (*_NODE[:1], *kubelet, *_NODE[1:]) if _is_on(path, disk, table)), "")


def _is_on(path: Path, disk: str, table: Sequence[Mount]) -> bool:
    return path.exists() and _device(path, table) == disk


def _device(path: Path, table: Iterable[Mount]) -> str:
    """The device of the file system under a path, or under its existing part.

    All subvolumes of one btrfs have one device here, unlike in stat().
    """
    real = next(found for found in (path, *path.parents) if os.path.lexists(found)).resolve()
    covers = [entry for entry in table if real.is_relative_to(entry.target)]
    deepest = max((len(entry.target) for entry in covers), default=0)
    return next((entry.device for entry in reversed(covers) if len(entry.target) == deepest), "")


def _amount(config: PoolConfig, keep: Keep) -> str:
    assert config.where is not None
    found = os.statvfs(next(path for path in (config.where, *config.where.parents) if path.exists()))
    size = keep.of(found.f_blocks * found.f_frsize)
    return f"{keep} ({from_bytes(size // _MI * _MI)})" if keep.percent else str(keep)
