"""The LVM pool: each volume is a logical volume of one volume group, with its record in its tags.

Thick by default: linear, or striped and raid1 by class parameters; thin where the pool names a thin pool. The group may
hold volumes of others: they count and are left alone. The logical volume is longer than the volume by the overhead of
its file system, so the requested size is usable in full. Needs root and lvm2, and the tools of the file systems.
"""

from __future__ import annotations

from collections.abc import Mapping

from tonnage.aio.clock import Clock, RealClock
from tonnage.errors import Exhausted, OutOfRange
from tonnage.host.lvm import check_group
from tonnage.pools.base.contract import PoolVolume, VolumeRequest
from tonnage.pools.base.parameters import ERASE, LIMITS, MKFS_OPTIONS, RESERVE, SOURCE
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.base.reservation import LARGEST
from tonnage.pools.core import request as requests
from tonnage.pools.core.pool import StoredPool
from tonnage.pools.fs.ext4_layout import BLOCK
from tonnage.pools.fs.formats import FORMATS, form_of
from tonnage.pools.lvm import layout as lvm_layout
from tonnage.pools.lvm.snapshots import LvmDepot
from tonnage.pools.lvm.thin_pool import LvmLimits


class LvmPool(StoredPool[LvmDepot]):
    """Logical volumes of a group.

    Class parameters: `thin`, `type` (linear, striped, raid1), `stripes`, `mirrors`, `cowSize` (bytes for changes in a
    snapshot of a thick volume), `erase`, and those of all pools. Snapshots and clones of thin volumes share blocks. A
    volume made from a thick one or its snapshot is a full copy. Raw block sizes are whole extents.
    """

    kind = "lvm"
    fstypes = tuple(FORMATS)
    parameters = lvm_layout.PARAMETERS | {RESERVE, MKFS_OPTIONS, SOURCE} | LIMITS
    modifiable = LIMITS | {ERASE}
    snapshots = clones = expansion = True

    def __init__(
        self,
        name: str,
        group: str,
        bounds: LvmLimits | None = None,
        *,
        clock: Clock | None = None,
        erase_rate: int | None = None,
    ) -> None:
        self.group = check_group(group)
        self.bounds = bounds or LvmLimits()
        super().__init__(name, LvmDepot(name, group, self.bounds, clock=clock or RealClock()), erase_rate=erase_rate)

    def check(self, parameters: Mapping[str, str]) -> None:
        self._store.layout(parameters)

    async def want(self, request: VolumeRequest) -> requests.RequestedVolume:
        fstype = requests.fstype_of(self, request.fstype, block=request.block)
        requests.check_content(request.parameters, fstype)
        if fstype:
            least = form_of(fstype, request.parameters.get(MKFS_OPTIONS, "")).least
            return requests.check(self, request, least=least, step=BLOCK)
        step = await self._threads.run(self._store.extent) * self._store.layout(request.parameters).stripes
        return requests.check(self, request, least=step, step=step)

    def _create(
        self, request: VolumeRequest, want: requests.RequestedVolume, origin: VolumeRecord | None
    ) -> VolumeRecord:
        self._store.check_disks(self._store.layout(request.parameters))
        try:
            return super()._create(request, want, origin)
        except (Exhausted, OutOfRange):
            if not self._store.reread():  # the group may have been extended
                raise
        return super()._create(request, want, origin)

    async def create(self, request: VolumeRequest) -> PoolVolume:
        try:
            return await super().create(request)
        finally:
            self._erase()  # a copy that failed may have left something

    def _snapshot(self, name: str, volume: str, owner: Mapping[str, str]) -> VolumeRecord:
        self._store.check_snapshot(volume)
        return self._store.snapshot(name, volume, owner)

    async def delete_snapshot(self, name: str) -> None:
        try:
            await super().delete_snapshot(name)
        finally:
            self._erase()

    async def expand(self, name: str, size: int, *, limit: int = 0) -> PoolVolume:
        """Raw block volumes have whole extents."""
        record = self._store.record(name)
        if record.block and record.size < size <= LARGEST:
            layout = self._store.layout_of(self._store.lv(name), record)
            step = await self._threads.run(self._store.extent) * layout.stripes
            size = min(-(-size // step) * step, LARGEST)
        return await super().expand(name, size, limit=limit)

    async def volume_limit(self) -> int:
        """A group may have been given a limit (vgchange --logicalvolume)."""
        return await self._threads.run(self._store.most_volumes)
