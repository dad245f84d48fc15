"""The image back end: each volume is a file in a directory, attached as a loop device. It works on any disk.

Images are thick by default (allocated when the volume is made). Sparse ones count against the pool's size and the
disk's free bytes, together with all pools of this process on that disk. The image is longer than the volume by the
overhead of its file system, so the requested size is usable in full. The pool's size counts requested sizes. Raw block
volumes are exactly as long as requested. Needs root, e2fsprogs for ext4, xfsprogs for xfs, btrfs-progs for btrfs.

The class parameter `erase` says how a volume's content is erased when it is deleted (a new volume never shows old
content in any case).

A mounted file system is frozen while it is copied for a snapshot or clone: for a moment where the disk can share blocks
between files (xfs, btrfs), else as long as copying its data takes. A raw block volume in use can be copied only where
blocks can be shared. xfs and btrfs grow while they are mounted, ext4 only with CAP_SYS_RESOURCE.
"""

from __future__ import annotations

from pathlib import Path

from tonnage.aio.clock import Clock
from tonnage.pools.base.contract import Features, PoolLimits
from tonnage.pools.base.parameters import ERASE, LIMITS, MKFS_OPTIONS, RESERVE, SOURCE
from tonnage.pools.base.reservation import Disks
from tonnage.pools.directory.backend import DirectoryBackend, PoolFolder
from tonnage.pools.fs.formats import FORMATS
from tonnage.pools.image.content import ImageContent
from tonnage.pools.image.mounts import ImageMounts

FEATURES = Features(
    "image",
    fstypes=tuple(FORMATS),
    parameters=frozenset({ERASE, RESERVE, MKFS_OPTIONS, SOURCE}) | LIMITS,
    modifiable=LIMITS | {ERASE},
    snapshots=True,
    clones=True,
    expansion=True,
    shares_limit=True,
)


def make_backend(
    directory: Path, bounds: PoolLimits | None = None, *, disks: Disks | None = None, clock: Clock | None = None
) -> DirectoryBackend:
    """Image files in a directory."""
    folder = PoolFolder(directory, bounds, kind="image", suffix=".img", disks=disks, clock=clock)
    return DirectoryBackend(folder, ImageContent(folder), ImageMounts(folder), FEATURES)
