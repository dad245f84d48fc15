"""Disk commitment: what the pools on one disk may reserve together, and what it has."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.pools.kind import PoolConfig


@dataclass(frozen=True)
class DiskCommitment:
    """The bytes that pools on one disk may reserve together.

    disk: a path on it. free: bytes that are free now or used by the pools already, less their min free. Pools without a
    size count as what is free.
    """

    disk: Path
    pools: tuple[str, ...]
    reserved: int
    free: int

    @property
    def fits(self) -> bool:
        """Whether the disk has the bytes that may be reserved."""
        return self.reserved <= self.free

    def __str__(self) -> str:
        """A line for people."""
        verdict = "" if self.fits else f", {_whole(self.reserved - self.free)} more than it has"
        counts = Counter(self.pools)
        names = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
        return f"{names}: pools of {_whole(self.reserved)} on a disk with {_whole(self.free)} free{verdict}"


def _whole(size: int) -> str:
    """For people: whole Mi where possible."""
    return from_bytes(size // 1024**2 * 1024**2 or size)


def commitments(configs: Iterable[PoolConfig]) -> list[DiskCommitment]:
    """The commitment of each disk under the pools. Blocking; makes nothing. Raises: InvalidError."""
    disks: dict[int, list[PoolConfig]] = {}
    for config in configs:
        if config.where is not None and config.has_size:
            disks.setdefault(os.stat(_existing(config.where)).st_dev, []).append(config)
    return [_commitment(pools) for pools in disks.values()]


def _commitment(pools: list[PoolConfig]) -> DiskCommitment:
    assert pools[0].where is not None
    disk = _existing(pools[0].where)
    found = os.statvfs(disk)
    free = found.f_bavail * found.f_frsize + sum(_taken(config.where) for config in pools if config.where)
    headroom = max(config.limits.keep.of(found.f_blocks * found.f_frsize) for config in pools)
    free = max(0, free - headroom)
    return DiskCommitment(
        disk, tuple(config.name for config in pools), sum(config.size or free for config in pools), free
    )


def _existing(path: Path) -> Path:
    for candidate in (path, *path.parents):
        if candidate.exists():
            return candidate
    raise InvalidError(f"{path} is not an absolute path")


def _taken(where: Path) -> int:
    """Bytes that the images of a pool have allocated."""
    if not where.is_dir():
        return 0
    return sum(os.lstat(where / entry).st_blocks * 512 for entry in os.listdir(where) if entry.endswith(".img"))
