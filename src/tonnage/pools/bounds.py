"""How much a pool on a disk may promise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """size: bytes, 0 for what the disk has. ratio: how often the disk's free space may be promised, inf for any
    amount. sparse: content takes space as it is written."""

    size: int = 0
    ratio: float = 1.0
    sparse: bool = False
