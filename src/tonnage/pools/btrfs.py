"""The btrfs pool: each volume is a subvolume with a limit, made in one ioctl. The quickest of all.

WHERE is a directory on a mounted btrfs; on any other file system a btrfs image of `size` is made there and mounted.
`df` in a pod shows the whole pool, the volume's own figures are in stats(); a write past the limit fails with EDQUOT.
File systems only, no raw block. Needs root, and btrfs-progs for an image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tonnage.aio.clock import Clock, RealClock
from tonnage.aio.tasks import KeyedLocks
from tonnage.pools import disks as accounts
from tonnage.pools import request as requests
from tonnage.pools.base import Capacity, Condition, Pool, Snapshot, Stats, Volume, VolumeRequest, check_name
from tonnage.pools.btrfsdepot import BtrfsDepot
from tonnage.pools.btrfsstore import LEAST
from tonnage.pools.commit import SharedCommit
from tonnage.pools.directory import Record
from tonnage.pools.formats import BLOCK
from tonnage.pools.imagestore import Bounds
from tonnage.pools.snapshots import source_of
from tonnage.pools.threads import Threads


class BtrfsPool(Pool):
    """Subvolumes in directory. bounds.sparse says whether an image, where one is needed, grows as it is written."""

    kind = "btrfs"
    fstypes = ("btrfs",)
    blocks = False
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
        self._store = BtrfsDepot(directory, self.bounds, disks=disks or accounts.SHARED, clock=clock or RealClock())
        self._locks = KeyedLocks()
        self._threads = Threads(name)
        self._commit = SharedCommit(self._commit_now)

    async def _commit_now(self) -> None:
        await self._threads.run(self._store.commit)

    async def open(self) -> None:
        """See Pool."""
        await self._threads.run(self._store.open)
        await self._commit.wait()

    async def close(self) -> None:
        """See Pool."""
        await self._threads.run(self._store.close)
        self._threads.close()

    async def create(self, request: VolumeRequest) -> Volume:
        """See Pool."""
        self._store.check_open()
        async with self._locks.hold_all(request.name, *source_of(request)):
            found, origin = self._store.records.get(request.name), None
            if found is not None:
                request = requests.again(found.volume(), request)
            elif request.source:
                origin = self._store.origin(request.source)
                request = requests.filled(self, request, origin.volume())
            want = requests.check(self, request, least=LEAST, step=BLOCK)
            if found is not None:
                volume = requests.existing(found.volume(), request, want)
            else:
                volume = (await self._threads.run(self._create, request, want, origin)).volume()
            await self._commit.wait()  # also for one that exists: its maker may have been cancelled before this
            return volume

    def _create(self, request: VolumeRequest, want: requests.Want, origin: Record | None) -> Record:
        requests.check_room(self, request.name, want.size, self._store.room())
        return self._store.create(request, want, origin)

    async def delete(self, name: str) -> None:
        """See Pool."""
        async with self._locks.hold(name):
            await self._threads.run(self._store.delete, name)
            await self._commit.wait()

    async def get(self, name: str) -> Volume:
        """See Pool."""
        return self._store.record(name).volume()

    async def list(self) -> Sequence[Volume]:
        """See Pool."""
        return [record.volume() for record in self._store.all()]

    async def capacity(self, *, fstype: str = "", block: bool = False) -> Capacity:
        """See Pool."""
        requests.fstype_of(self, fstype, block=block)
        return await self._threads.run(self._store.room)

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
        """See Pool. Subvolumes that a pod made inside the volume are not in it."""
        check_name(name)
        async with self._locks.hold_all(f"{name}@", volume):
            self._store.check_open()
            if found := self._store.snapshots.find(name):
                snapshot = requests.existing_snapshot(found.snapshot(), volume)
            else:
                size = self._store.record(volume).size
                room = await self._threads.run(self._store.room)
                requests.check_room(self, name, size, replace(room, largest=room.free))
                snapshot = (await self._threads.run(self._store.snapshot, name, volume, owner or {})).snapshot()
            await self._commit.wait()
            return snapshot

    async def delete_snapshot(self, name: str) -> None:
        """See Pool."""
        async with self._locks.hold(f"{name}@"):
            await self._threads.run(self._store.delete_snapshot, name)
            await self._commit.wait()

    async def get_snapshot(self, name: str) -> Snapshot:
        """See Pool."""
        self._store.check_open()
        return self._store.snapshots.record(name).snapshot()

    async def list_snapshots(self) -> Sequence[Snapshot]:
        """See Pool."""
        self._store.check_open()
        return [record.snapshot() for record in self._store.snapshots.all()]

    async def expand(self, name: str, size: int, *, limit: int = 0) -> Volume:
        """See Pool. Effective at once: there is nothing to grow on the node."""
        async with self._locks.hold(name):
            volume = self._store.record(name).volume()
            wanted = requests.larger(self, volume, size, limit, step=BLOCK)
            if wanted > volume.size:
                requests.check_more(self, volume, wanted, await self._threads.run(self._store.room))
                volume = (await self._threads.run(self._store.expand, name, wanted)).volume()
            await self._commit.wait()
            return volume

    async def grow(self, name: str, path: Path) -> Volume:
        """See Pool."""
        await self.stats(name, path)  # raises NotFound
        return self._store.record(name).volume()

    async def condition(self, name: str, path: Path | None = None) -> Condition:
        """See Pool."""
        return await self._threads.run(self._store.condition, name, path)
