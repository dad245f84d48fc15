"""The btrfs pool: each volume is a subvolume with a limit, made in one ioctl. The quickest of all.

WHERE is a directory on a mounted btrfs; on any other file system a btrfs image of `size` is made there and mounted.
`df` in a pod shows the whole pool, the volume's own figures are in stats(); a write past the limit fails with EDQUOT.
File systems only, no raw block. Needs root, and btrfs-progs for an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tonnage.aio.clock import Clock, RealClock
from tonnage.aio.tasks import KeyedLocks
from tonnage.pools import disks as accounts
from tonnage.pools import request as requests
from tonnage.pools.base import Capacity, Pool, Stats, Volume, VolumeRequest
from tonnage.pools.btrfsstore import LEAST, BtrfsStore
from tonnage.pools.commit import SharedCommit
from tonnage.pools.directory import Record
from tonnage.pools.formats import BLOCK
from tonnage.pools.imagestore import Bounds
from tonnage.pools.threads import Threads


class BtrfsPool(Pool):
    """Subvolumes in directory. bounds.sparse says whether an image, where one is needed, grows as it is written."""

    kind = "btrfs"
    fstypes = ("btrfs",)
    blocks = False

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
        self._store = BtrfsStore(directory, self.bounds, disks=disks or accounts.SHARED, clock=clock or RealClock())
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
        want = requests.check(self, request, least=LEAST, step=BLOCK)
        self._store.check_open()
        async with self._locks.hold(request.name):
            if found := self._store.records.get(request.name):
                volume = requests.existing(found.volume(), request, want)
            else:
                volume = (await self._threads.run(self._create, request, want)).volume()
            await self._commit.wait()  # also for one that exists: its maker may have been cancelled before this
            return volume

    def _create(self, request: VolumeRequest, want: requests.Want) -> Record:
        requests.check_room(self, request.name, want.size, self._store.room())
        return self._store.create(request, want)

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
