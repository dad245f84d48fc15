"""The quota pool: each volume is a directory with a project quota, on an xfs or ext4 that is mounted with `prjquota`.

A write past the limit fails (xfs: ENOSPC, ext4: EDQUOT), `df` in a pod shows the volume's own size. On ext4 processes
with CAP_SYS_RESOURCE, so privileged pods, are not held to any limit: a class must say `allowUnenforced: "true"` to have
volumes there. File systems only, no raw block. Needs root and Linux 5.14, no program.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tonnage.aio.clock import Clock, RealClock
from tonnage.aio.tasks import KeyedLocks
from tonnage.errors import Invalid, Unsupported
from tonnage.pools import disks as accounts
from tonnage.pools import request as requests
from tonnage.pools.base import Capacity, Pool, Stats, Volume, VolumeRequest
from tonnage.pools.directory import Record
from tonnage.pools.formats import BLOCK
from tonnage.pools.imagestore import Bounds
from tonnage.pools.quotastore import FSTYPES, LEAST, QuotaStore
from tonnage.pools.threads import Threads


class QuotaPool(Pool):
    """Directories with project quotas in directory. fstypes is the one that is there, once the pool is open."""

    kind = "quota"
    fstypes: tuple[str, ...] = FSTYPES
    blocks = False
    parameters = frozenset({"allowUnenforced"})

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
        self._store = QuotaStore(directory, self.bounds, disks=disks or accounts.SHARED, clock=clock or RealClock())
        self._locks = KeyedLocks()
        self._threads = Threads(name)

    async def open(self) -> None:
        """See Pool."""
        await self._threads.run(self._store.open)
        self.fstypes = (self._store.fstype,)

    async def close(self) -> None:
        """See Pool."""
        await self._threads.run(self._store.close)
        self._threads.close()

    async def create(self, request: VolumeRequest) -> Volume:
        """See Pool. Raises Unsupported for ext4 without `allowUnenforced`."""
        want = requests.check(self, request, least=LEAST, step=BLOCK)
        allowed = request.parameters.get("allowUnenforced", "false")
        if allowed not in ("true", "false"):
            raise Invalid(f"parameter allowUnenforced={allowed[:40]!r}: want true or false")
        self._store.check_open()
        if self._store.fstype == "ext4" and allowed != "true":
            raise Unsupported(
                f"pool {self.name!r} is on ext4, which holds no process with CAP_SYS_RESOURCE (no privileged pod) to a"
                ' quota: say allowUnenforced: "true" in the class, or use xfs'
            )
        async with self._locks.hold(request.name):
            if found := self._store.records.get(request.name):
                return requests.existing(found.volume(), request, want)
            return (await self._threads.run(self._create, request, want)).volume()

    def _create(self, request: VolumeRequest, want: requests.Want) -> Record:
        requests.check_room(self, request.name, want.size, self._store.room())
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
