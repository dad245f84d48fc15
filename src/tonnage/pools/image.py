"""The image pool: each volume is a file in a directory, shown through a loop device. Any disk will do.

Thick by default (space is allocated when the volume is made); sparse ones are counted against the pool's size and
against what the disk has free, together with all pools of this process on that disk. The image is longer than the
volume by what its file system needs for itself, so the size asked can be used in full; the pool's size counts what
was asked. Raw block volumes are exactly as long as asked. Needs root, e2fsprogs for ext4, xfsprogs for xfs,
btrfs-progs for btrfs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tonnage.aio.clock import Clock, RealClock
from tonnage.aio.tasks import KeyedLocks
from tonnage.errors import Invalid
from tonnage.pools import disks as accounts
from tonnage.pools import request as requests
from tonnage.pools.base import Capacity, Pool, Stats, Volume, VolumeRequest
from tonnage.pools.directory import Record
from tonnage.pools.formats import BLOCK, FORMATS
from tonnage.pools.imagestore import Bounds, ImageStore
from tonnage.pools.threads import Threads


class ImagePool(Pool):
    """Image files in directory. `erase: zero` of a class overwrites a volume's content when it is deleted (a new
    volume never shows old content in any case)."""

    kind = "image"
    fstypes = tuple(FORMATS)
    parameters = frozenset({"erase"})

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
        self._store = ImageStore(directory, self.bounds, disks=disks or accounts.SHARED, clock=clock or RealClock())
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
        fstype = requests.fstype_of(self, request.fstype, block=request.block)
        least = FORMATS[fstype].least if fstype else BLOCK
        want = requests.check(self, request, least=least, step=BLOCK)
        if (erase := request.parameters.get("erase", "none")) not in ("none", "zero"):
            raise Invalid(f"parameter erase={erase[:40]!r}: want none or zero")
        self._store.check_open()
        async with self._locks.hold(request.name):
            if found := self._store.records.get(request.name):
                return requests.existing(found.volume(), request, want)
            return (await self._threads.run(self._create, request, want)).volume()

    def _create(self, request: VolumeRequest, want: requests.Want) -> Record:
        requests.check_room(self, request.name, want.size, self._store.room(want.fstype))
        return self._store.create(request, want)

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
