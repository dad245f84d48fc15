"""The btrfs back end: each volume is a subvolume with a limit, made by one ioctl. The fastest kind.

WHERE is a directory on a mounted btrfs. On any other file system, a btrfs image of `size` is made there and mounted.
`df` in a pod shows the whole pool, stats() has the volume's own usage. A write past the limit fails with EDQUOT. File
systems only, no raw block. Needs root, and btrfs-progs for an image.

A snapshot leaves out subvolumes that a pod made inside the volume. Expansion takes effect at once, without growth on
the node.
"""

from __future__ import annotations

from pathlib import Path

from tonnage.aio.clock import Clock
from tonnage.pools.base.contract import Features, PoolLimits
from tonnage.pools.base.parameters import ERASE, RESERVE, SOURCE
from tonnage.pools.base.reservation import Disks
from tonnage.pools.btrfs.subvolumes import Subvolumes
from tonnage.pools.directory.backend import DirectoryBackend, PoolFolder
from tonnage.pools.directory.subdirectory import LEAST, REFUSED

FEATURES = Features(
    "btrfs",
    fstypes=("btrfs",),
    blocks=False,
    parameters=frozenset({ERASE, RESERVE, SOURCE}),
    snapshots=True,
    clones=True,
    expansion=True,
    refused=REFUSED,
    least=LEAST,
)


def make_backend(
    directory: Path, bounds: PoolLimits | None = None, *, disks: Disks | None = None, clock: Clock | None = None
) -> DirectoryBackend:
    """Subvolumes in a directory. bounds.sparse: whether an image, where one is needed, is sparse."""
    folder = PoolFolder(directory, bounds, kind="btrfs", suffix=".vol", disks=disks, clock=clock)
    subvolumes = Subvolumes(folder)
    return DirectoryBackend(folder, subvolumes, subvolumes.mounts, FEATURES)
