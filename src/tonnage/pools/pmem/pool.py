"""The pmem pool: each volume is a namespace of persistent memory (NVDIMMs, persistent CXL memory).

In mode `fsdax`, programs map files of a volume directly into memory (DAX). `sector` is for programs that need atomic
writes of sectors. `devdax` gives the memory itself, as a character device, to raw block volumes. Needs root, regions
with labels, ndctl, e2fsprogs for ext4, xfsprogs for xfs. Foreign namespaces are left alone. For snapshots, growth and
small volumes use `mode=lvm`, with LVM in between.
"""

from __future__ import annotations

from collections.abc import Mapping

from tonnage.aio.clock import Clock, RealClock
from tonnage.errors import OutOfRange, Unsupported
from tonnage.host.ndctl import SECTOR
from tonnage.pools.base.contract import Capacity, VolumeRequest
from tonnage.pools.base.parameters import ERASE, MKFS_OPTIONS, RESERVE, SOURCE, check_shared
from tonnage.pools.core import request as requests
from tonnage.pools.core.pool import StoredPool
from tonnage.pools.fs.formats import form_of
from tonnage.pools.pmem import overhead
from tonnage.pools.pmem.node import MAPPED, PmemNode


class PmemPool(StoredPool[PmemNode]):
    """Namespaces of one or all regions.

    Class parameters: `nsmode` (fsdax, sector, devdax), `erase`, and those of all pools.
    """

    kind = "pmem"
    fstypes = ("ext4", "xfs")
    parameters = frozenset({overhead.NSMODE, ERASE, RESERVE, MKFS_OPTIONS, SOURCE})
    modifiable = frozenset({ERASE})
    refused: Mapping[str, str] = MAPPED

    def __init__(
        self,
        name: str,
        region: str = "",
        *,
        mode: str = "fsdax",
        size: int = 0,
        clock: Clock | None = None,
        erase_rate: int | None = None,
    ) -> None:
        """region: its name or cookie, "" for all. mode: of classes without nsmode. size: maximum bytes to reserve, 0
        for all.
        """
        self.region, self.mode = region, mode
        store = PmemNode(name, region, mode=mode, most=size, clock=clock or RealClock())
        super().__init__(name, store, erase_rate=erase_rate)

    def check(self, parameters: Mapping[str, str]) -> None:
        check_shared(parameters)
        overhead.mode_of(parameters, self.mode)

    async def want(self, request: VolumeRequest) -> requests.RequestedVolume:
        """Check a request. A raw block volume has all of its namespace, unless that is above the limit."""
        fstype = requests.fstype_of(self, request.fstype, block=request.block)
        mode = self._check_mode(request.parameters, block=request.block)
        requests.check_content(request.parameters, fstype)
        least = form_of(fstype, request.parameters.get(MKFS_OPTIONS, "")).least if fstype else SECTOR
        want = requests.check(self, request, least=least, step=SECTOR)
        if fstype:
            return want
        align = await self._threads.run(self._store.align)
        size = overhead.usable(mode, overhead.raw_size(mode, want.size, align))
        if request.limit and size > request.limit:
            raise OutOfRange(
                f"volume {request.name}: a namespace of mode {mode} has {size} usable bytes here, which is more than"
                f" its limit {request.limit}"
            )
        return requests.RequestedVolume(size, fstype)

    def _check_mode(self, parameters: Mapping[str, str], *, block: bool) -> str:
        mode = overhead.mode_of(parameters, self.mode)
        if mode == "devdax" and not block:
            raise Unsupported(
                f"pool {self.name!r}: memory of nsmode devdax has no file system: ask for raw block, or for fsdax"
            )
        return mode

    async def capacity_for(
        self, parameters: Mapping[str, str], *, fstype: str = "", block: bool = False, inline: bool = False
    ) -> Capacity:
        requests.fstype_of(self, fstype, block=block)
        self.check(parameters)
        self._check_mode(parameters, block=block)
        return await super().capacity_for(parameters, fstype=fstype, block=block, inline=inline)

    async def volume_limit(self) -> int:
        """Maximum number of volumes: as many as the labels can describe."""
        return await self._threads.run(self._store.limit)
