"""How much a pool on a disk may promise."""

from __future__ import annotations

from dataclasses import dataclass

from tonnage.pools.disks import NO_KEEP, Keep


@dataclass(frozen=True)
class Bounds:
    """size: bytes, 0 for what the disk has. ratio: how often the disk's free space may be promised, inf for any
    amount. sparse: content takes space as it is written. keep: what of the disk is left free for others."""

    size: int = 0
    ratio: float = 1.0
    sparse: bool = False
    keep: Keep = NO_KEEP
