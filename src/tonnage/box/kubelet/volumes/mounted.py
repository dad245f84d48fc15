"""A mounted volume, as containers see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mounted:
    """A mounted volume of a pod. path: a folder of this machine, or a device when block.

    has_statfs: the numbers of its file system are those of the volume.
    """

    path: str
    block: bool = False
    read_only: bool = False
    claim: str = ""
    driver: str = ""
    has_statfs: bool = False
