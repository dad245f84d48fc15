"""The static pool: prepared mount points and block devices in a directory, each one volume of its size.

A claim gets a whole disk, the smallest that is large enough. A cleaner erases the disk before it is used again. There
is no expansion, clone or snapshot. Needs root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tonnage.aio.clock import Clock, RealClock
from tonnage.errors import Unsupported
from tonnage.pools.base.contract import Capacity, PoolVolume, VolumeRequest
from tonnage.pools.base.parameters import BANDWIDTH, ERASE, IOPS, MKFS_OPTIONS, RESERVE, SOURCE
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.core import request as requests
from tonnage.pools.core.pool import StoredPool
from tonnage.pools.core.wipe import OVERWRITES
from tonnage.pools.static.cleaner import CLEANER, cleaner_of
from tonnage.pools.static.store import StaticStore

_ALONE = "a volume is a whole disk and shares it with no other volume"
REFUSED = {
    ERASE: "the parameter cleaner says how a disk is erased",
    RESERVE: _ALONE,
    IOPS: _ALONE,
    BANDWIDTH: _ALONE,
    SOURCE: "a disk is used with the content that it was prepared with",
    MKFS_OPTIONS: "make the file system beforehand, it is used as it is",
}


class StaticPool(StoredPool[StaticStore]):
    """The disks of a discovery directory.

    rate: bytes per second that cleaners overwrite, 0 for unlimited, None for the default.
    """

    kind = "static"
    fstypes: tuple[str, ...] = ("ext4", "xfs", "btrfs")
    parameters = frozenset({CLEANER})
    refused = REFUSED
    step = least = 1

    def __init__(self, name: str, directory: Path, *, clock: Clock | None = None, rate: int | None = None) -> None:
        super().__init__(name, StaticStore(directory, clock=clock or RealClock()), erase_rate=rate)

    async def create(self, request: VolumeRequest) -> PoolVolume:
        """Create a volume of the smallest free disk that fits the request; it has the disk's size."""
        return self._placed(await super().create(request))

    async def get(self, name: str) -> PoolVolume:
        return self._placed(await super().get(name))

    async def list(self) -> Sequence[PoolVolume]:
        return [self._placed(volume) for volume in await super().list()]

    def _placed(self, volume: PoolVolume) -> PoolVolume:
        return replace(volume, place=self._store.place(volume.name))

    async def want(self, request: VolumeRequest) -> requests.RequestedVolume:
        """Check a request. Without a file system, any mounted one fits."""
        want = requests.check(self, request)
        _check_cleaner(request.parameters, request.fstype, block=request.block)
        found = self._store.records.get(request.name)
        if request.block or request.fstype:
            return want
        return requests.RequestedVolume(want.size, found.fstype if found is not None and not found.block else "")

    def _create(
        self, request: VolumeRequest, want: requests.RequestedVolume, origin: VolumeRecord | None
    ) -> VolumeRecord:
        return self._store.create(request, want, origin)  # which also says whether there is room

    async def capacity_for(
        self, parameters: Mapping[str, str], *, fstype: str = "", block: bool = False, inline: bool = False
    ) -> Capacity:
        """Capacity for a class. free: the sum of all free disks; largest: the size of the largest of them."""
        requests.fstype_of(self, fstype, block=block)
        _check_cleaner(parameters, fstype, block=block)
        return await self._threads.run(self._store.room_for, fstype, parameters, block=block)

    async def overall(self) -> Capacity:
        """Capacity of all disks, mounts and devices."""
        return await self._threads.run(self._store.overall)

    def home(self, volume: PoolVolume) -> Path | None:
        """The entry of the volume, a mount."""
        return self._store.directory / volume.place

    async def problems(self) -> Sequence[str]:
        """Entries that are not volumes, missing disks, and failing cleaners."""
        self._store.check_open()
        failing = [f"volume {e.name} is not cleaned: {e.problem}" for e in await self.erasing() if e.problem]
        return [*await self._threads.run(self._store.problems), *failing]


def _check_cleaner(parameters: Mapping[str, str], fstype: str, *, block: bool) -> None:
    cleaner = cleaner_of(parameters)
    if cleaner in OVERWRITES and not block and not fstype:
        raise Unsupported(
            f"cleaner {cleaner} overwrites a whole device, which a file system that is mounted already does not allow:"
            " use quick or discard, raw block volumes, or name a file system with csi.storage.k8s.io/fstype"
        )
