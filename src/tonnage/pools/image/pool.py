"""The image pool: each volume is a file in a directory, attached as a loop device. It works on any disk.

Images are thick by default (allocated when the volume is made). Sparse ones count against the pool's size and the
disk's free bytes, together with all pools of this process on that disk. The image is longer than the volume by the
overhead of its file system, so the requested size is usable in full. The pool's size counts requested sizes. Raw block
volumes are exactly as long as requested. Needs root, e2fsprogs for ext4, xfsprogs for xfs, btrfs-progs for btrfs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tonnage.aio.clock import Clock, RealClock
from tonnage.host import loop
from tonnage.pools.base import overcommit as accounts
from tonnage.pools.base.contract import PoolLimits, VolumeRequest
from tonnage.pools.base.parameters import ERASE, LIMITS, MKFS_OPTIONS, RESERVE, SOURCE, erase_of
from tonnage.pools.core import request as requests
from tonnage.pools.core.pool import StoredPool
from tonnage.pools.core.wipe import OVERWRITES, check_overwrites
from tonnage.pools.fs.formats import BLOCK, FORMATS, form_of
from tonnage.pools.image.snapshots import ImageDepot


class ImagePool(StoredPool[ImageDepot]):
    """Image files in a directory.

    The class parameter `erase` says how a volume's content is erased when it is deleted (a new volume never shows old
    content in any case). erase_rate: bytes per second to overwrite then.

    A mounted file system is frozen while it is copied for a snapshot or clone: for a moment where the disk can share
    blocks between files (xfs, btrfs), else as long as copying its data takes. A raw block volume in use can be copied
    only where blocks can be shared. xfs and btrfs grow while they are mounted, ext4 only with CAP_SYS_RESOURCE.
    """

    kind = "image"
    fstypes = tuple(FORMATS)
    parameters = frozenset({ERASE, RESERVE, MKFS_OPTIONS, SOURCE}) | LIMITS
    modifiable = LIMITS | {ERASE}
    snapshots = clones = expansion = shares_limit = True

    def __init__(
        self,
        name: str,
        directory: Path,
        bounds: PoolLimits | None = None,
        *,
        disks: accounts.Disks | None = None,
        clock: Clock | None = None,
        erase_rate: int | None = None,
    ) -> None:
        self.directory = directory
        self.bounds = bounds or PoolLimits()
        store = ImageDepot(directory, self.bounds, disks=disks or accounts.SHARED, clock=clock or RealClock())
        super().__init__(name, store, erase_rate=erase_rate)

    def check(self, parameters: Mapping[str, str]) -> None:
        if erase_of(parameters) in OVERWRITES:
            check_overwrites(self.directory, self._store.medium)

    async def volume_limit(self) -> int:
        """Each volume in use takes a loop device."""
        return loop.most()

    async def want(self, request: VolumeRequest) -> requests.RequestedVolume:
        fstype = requests.fstype_of(self, request.fstype, block=request.block)
        requests.check_content(request.parameters, fstype)
        least = form_of(fstype, request.parameters.get(MKFS_OPTIONS, "")).least if fstype else BLOCK
        return requests.check(self, request, least=least, step=BLOCK)
