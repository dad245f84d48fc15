"""The btrfs pool: each volume is a subvolume with a limit, made by one ioctl. The fastest kind.

WHERE is a directory on a mounted btrfs. On any other file system, a btrfs image of `size` is made there and mounted.
`df` in a pod shows the whole pool, stats() has the volume's own usage. A write past the limit fails with EDQUOT. File
systems only, no raw block. Needs root, and btrfs-progs for an image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ParamSpec, TypeVar

from tonnage.aio.clock import Clock, RealClock
from tonnage.pools.base import overcommit as accounts
from tonnage.pools.base.contract import PoolLimits, PoolVolume
from tonnage.pools.base.group_commit import SharedCommit
from tonnage.pools.base.parameters import ERASE, RESERVE, SOURCE
from tonnage.pools.btrfs.store import BtrfsStore
from tonnage.pools.core.pool import StoredPool
from tonnage.pools.directory.bind_store import LEAST, REFUSED, check_no_erasure

P = ParamSpec("P")
R = TypeVar("R")


class BtrfsPool(StoredPool[BtrfsStore]):
    """Subvolumes in a directory. bounds.sparse: whether an image, where one is needed, is sparse.

    A snapshot leaves out subvolumes that a pod made inside the volume. Expansion takes effect at once, without growth
    on the node.
    """

    kind = "btrfs"
    fstypes = ("btrfs",)
    blocks = False
    snapshots = clones = expansion = True
    parameters = frozenset({ERASE, RESERVE, SOURCE})
    refused = REFUSED
    least = LEAST

    def __init__(
        self,
        name: str,
        directory: Path,
        bounds: PoolLimits | None = None,
        *,
        disks: accounts.Disks | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.directory = directory
        self.bounds = bounds or PoolLimits()
        store = BtrfsStore(directory, self.bounds, disks=disks or accounts.SHARED, clock=clock or RealClock())
        super().__init__(name, store)
        self._commit = SharedCommit(store.commit, self._threads)

    def check(self, parameters: Mapping[str, str]) -> None:
        check_no_erasure(parameters)

    async def settle(self) -> None:
        """A commit, which concurrent calls share."""
        await self._commit.wait()

    async def durably(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._commit.after(work, *args, **kwargs)

    async def grow(self, name: str, path: Path) -> PoolVolume:
        await self.stats(name, path)  # raises NotFound
        return await self.get(name)
