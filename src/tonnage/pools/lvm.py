"""The LVM pool: each volume is a logical volume of one volume group, its record is in its tags.

Thick by default: linear, or striped and raid1 by class parameters; thin where the pool names a thin pool. The group may
hold other volumes too: they are counted and left alone. The volume is longer than asked by what its file system needs
for itself, so the size asked can be used in full. Needs root and lvm2, and the tools of the file systems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tonnage.aio.clock import Clock, RealClock
from tonnage.aio.tasks import KeyedLocks
from tonnage.errors import Exhausted, OutOfRange
from tonnage.host.lvm import check_group
from tonnage.pools import filesystem, lvmlayout
from tonnage.pools import request as requests
from tonnage.pools.base import Capacity, Pool, Stats, Volume, VolumeRequest
from tonnage.pools.directory import Record
from tonnage.pools.formats import BLOCK, FORMATS
from tonnage.pools.lvmlayout import Layout
from tonnage.pools.lvmstore import Bounds, LvmStore
from tonnage.pools.threads import Threads


class LvmPool(Pool):
    """Logical volumes of a group. Class parameters: `thin`, `type` (linear, striped, raid1), `stripes`, `mirrors`,
    `erase` (none, zero, discard); `cowSize` is refused until there are snapshots."""

    kind = "lvm"
    fstypes = tuple(FORMATS)
    parameters = lvmlayout.PARAMETERS

    def __init__(self, name: str, group: str, bounds: Bounds | None = None, *, clock: Clock | None = None) -> None:
        self.name = name
        self.group = check_group(group)
        self.bounds = bounds or Bounds()
        self._store = LvmStore(name, group, self.bounds, clock=clock or RealClock())
        self._locks = KeyedLocks()
        self._threads = Threads(name)

    async def open(self) -> None:
        """See Pool."""
        await self._threads.run(self._store.open)

    async def close(self) -> None:
        """See Pool."""
        await self._threads.run(self._store.close)
        self._threads.close()

    async def create(self, request: VolumeRequest) -> Volume:
        """See Pool. A raw block volume is rounded up to whole extents, unless that passes the limit."""
        self._store.check_open()
        fstype = requests.fstype_of(self, request.fstype, block=request.block)
        least, step = (FORMATS[fstype].least, BLOCK) if fstype else (1, 1)
        requests.check(self, request, least=least, step=step)
        layout = self._store.layout(request.parameters)
        async with self._locks.hold(request.name):
            if not fstype:
                least = step = await self._threads.run(self._store.extent) * layout.stripes
            want = requests.check(self, request, least=least, step=step)
            if found := self._store.records.get(request.name):
                return requests.existing(found.volume(), request, want)
            return (await self._threads.run(self._create, request, want, layout)).volume()

    def _create(self, request: VolumeRequest, want: requests.Want, layout: Layout) -> Record:
        self._store.check_disks(layout)
        try:
            requests.check_room(self, request.name, want.size, self._store.room(want.fstype, layout))
        except (Exhausted, OutOfRange):
            self._store.refresh()  # somebody may have extended the group
            requests.check_room(self, request.name, want.size, self._store.room(want.fstype, layout))
        return self._store.create(request, want, layout)

    async def delete(self, name: str) -> None:
        """See Pool."""
        async with self._locks.hold(name):
            await self._threads.run(self._store.delete, name)

    async def get(self, name: str) -> Volume:
        """See Pool."""
        return self._store.record(name).volume()

    async def list(self) -> Sequence[Volume]:
        """See Pool."""
        return [record.volume() for record in self._store.all()]

    async def capacity(self, *, fstype: str = "", block: bool = False) -> Capacity:
        """See Pool."""
        return await self.capacity_for({}, fstype=fstype, block=block)

    async def capacity_for(self, parameters: Mapping[str, str], *, fstype: str = "", block: bool = False) -> Capacity:
        """See Pool. Striped and raid1 volumes need room on several disks, thin ones in the thin pool."""
        fstype = requests.fstype_of(self, fstype, block=block)
        layout = self._store.layout(parameters)
        return await self._threads.run(self._store.room, fstype, layout)

    async def stage(self, name: str, path: Path, *, options: Sequence[str] = ()) -> None:
        """See Pool."""
        async with self._locks.hold(name):
            await self._threads.run(self._store.stage, name, path, options)

    async def unstage(self, name: str, path: Path) -> None:
        """See Pool."""
        async with self._locks.hold(name):
            await self._threads.run(self._store.unstage, name, path)

    async def publish(self, name: str, staging: Path, target: Path, *, readonly: bool = False) -> None:
        """See Pool."""
        async with self._locks.hold(name):
            await self._threads.run(self._store.publish, name, staging, target, readonly=readonly)

    async def unpublish(self, name: str, target: Path) -> None:
        """See Pool."""
        async with self._locks.hold(name):
            await self._threads.run(filesystem.unpublish, target)

    async def stats(self, name: str, path: Path) -> Stats:
        """See Pool."""
        return await self._threads.run(self._store.stats, name, path)
