"""The image pool: each volume is a file in a directory, shown through a loop device. Any disk will do.

Thick by default (space is allocated when the volume is made); sparse ones are counted against the pool's size and
against what the disk has free, together with all pools of this process on that disk. The image is longer than the
volume by what its file system needs for itself, so the size asked can be used in full; the pool's size counts what
was asked. Raw block volumes are exactly as long as asked. Needs root, e2fsprogs for ext4, xfsprogs for xfs,
btrfs-progs for btrfs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tonnage.aio.clock import Clock, RealClock
from tonnage.aio.tasks import KeyedLocks
from tonnage.errors import Invalid
from tonnage.pools import disks as accounts
from tonnage.pools import request as requests
from tonnage.pools.base import Capacity, Condition, Pool, Snapshot, Stats, Volume, VolumeRequest, check_name
from tonnage.pools.directory import Record
from tonnage.pools.formats import BLOCK, FORMATS
from tonnage.pools.imagedepot import ImageDepot
from tonnage.pools.imagestore import Bounds
from tonnage.pools.snapshots import source_of
from tonnage.pools.threads import Threads


class ImagePool(Pool):
    """Image files in directory. `erase: zero` of a class overwrites a volume's content when it is deleted (a new
    volume never shows old content in any case)."""

    kind = "image"
    fstypes = tuple(FORMATS)
    parameters = frozenset({"erase"})
    snapshots = clones = expansion = True

    def __init__(
        self,
        name: str,
        directory: Path,
        bounds: Bounds | None = None,
        *,
        disks: accounts.Disks | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.directory = directory
        self.bounds = bounds or Bounds()
        self._store = ImageDepot(directory, self.bounds, disks=disks or accounts.SHARED, clock=clock or RealClock())
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
        """See Pool. A size below the file system's least is rounded up to it, unless that passes the limit."""
        if (erase := request.parameters.get("erase", "none")) not in ("none", "zero"):
            raise Invalid(f"parameter erase={erase[:40]!r}: want none or zero")
        self._store.check_open()
        async with self._locks.hold_all(request.name, *source_of(request)):
            found, origin = self._store.records.get(request.name), None
            if found is not None:
                request = requests.again(found.volume(), request)
            elif request.source:
                origin = self._store.origin(request.source)
                request = requests.filled(self, request, origin.volume())
            want = self._want(request)
            if found is not None:
                return requests.existing(found.volume(), request, want)
            return (await self._threads.run(self._create, request, want, origin)).volume()

    def _want(self, request: VolumeRequest) -> requests.Want:
        fstype = requests.fstype_of(self, request.fstype, block=request.block)
        return requests.check(self, request, least=FORMATS[fstype].least if fstype else BLOCK, step=BLOCK)

    def _create(self, request: VolumeRequest, want: requests.Want, origin: Record | None) -> Record:
        requests.check_room(self, request.name, want.size, self._store.room(want.fstype))
        return self._store.create(request, want, origin)

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
        fstype = requests.fstype_of(self, fstype, block=block)
        return await self._threads.run(self._store.room, fstype)

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
            await self._threads.run(self._store.unpublish, name, target)

    async def stats(self, name: str, path: Path) -> Stats:
        """See Pool."""
        return await self._threads.run(self._store.stats, name, path)

    async def create_snapshot(self, name: str, volume: str, *, owner: Mapping[str, str] | None = None) -> Snapshot:
        """See Pool. A mounted file system is frozen while it is copied: a moment where the disk can share blocks
        between files (xfs, btrfs), else as long as copying its data takes. A raw block volume in use can be copied only
        where it can."""
        check_name(name)
        async with self._locks.hold_all(f"{name}@", volume):
            self._store.check_open()
            if found := self._store.snapshots.find(name):
                return requests.existing_snapshot(found.snapshot(), volume)
            record = self._store.record(volume)
            room = await self._threads.run(self._store.room, record.fstype)
            requests.check_room(self, name, record.size, replace(room, largest=room.free))
            return (await self._threads.run(self._store.snapshot, name, volume, owner or {})).snapshot()

    async def delete_snapshot(self, name: str) -> None:
        """See Pool."""
        async with self._locks.hold(f"{name}@"):
            await self._threads.run(self._store.delete_snapshot, name)

    async def get_snapshot(self, name: str) -> Snapshot:
        """See Pool."""
        self._store.check_open()
        return self._store.snapshots.record(name).snapshot()

    async def list_snapshots(self) -> Sequence[Snapshot]:
        """See Pool."""
        self._store.check_open()
        return [record.snapshot() for record in self._store.snapshots.all()]

    async def expand(self, name: str, size: int, *, limit: int = 0) -> Volume:
        """See Pool."""
        async with self._locks.hold(name):
            volume = self._store.record(name).volume()
            wanted = requests.larger(self, volume, size, limit, step=BLOCK)
            if wanted == volume.size:
                return volume
            requests.check_more(self, volume, wanted, await self._threads.run(self._store.room, volume.fstype))
            return (await self._threads.run(self._store.expand, name, wanted)).volume()

    async def grow(self, name: str, path: Path) -> Volume:
        """See Pool. xfs and btrfs grow while they are mounted, ext4 only with CAP_SYS_RESOURCE."""
        async with self._locks.hold(name):
            return (await self._threads.run(self._store.grow, name, path)).volume()

    async def condition(self, name: str, path: Path | None = None) -> Condition:
        """See Pool."""
        return await self._threads.run(self._store.condition, name, path)
