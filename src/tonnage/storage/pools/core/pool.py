"""Pool: the async half of a pool over a Backend, the same for all kinds.

It checks requests, holds a lock for each name, reserves capacity, runs the back end in threads of its own and shares
commits. All methods except `close` are idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import structs

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.errors import HostError, PreconditionError, TonnageError
from tonnage.host import mount
from tonnage.storage.pools.base.contract import (
    WELL,
    Capacity,
    Erasure,
    Features,
    PoolLimits,
    PoolVolume,
    Stats,
    VolumeCondition,
    VolumeRequest,
    is_inline,
    unsupported,
)
from tonnage.storage.pools.base.parameters import IOPS
from tonnage.storage.pools.base.record import STAGED, VolumeRecord
from tonnage.storage.pools.core.backend import NO_CAPACITY, Backend, check_content, fstype_of
from tonnage.storage.pools.core.deletion import Deletion
from tonnage.storage.pools.core.growth import PoolGrowth
from tonnage.storage.pools.core.probe import DiskHangsError, PoolFault, WriteProbe
from tonnage.storage.pools.core.snapshots import PoolSnapshots
from tonnage.storage.pools.core.trash import PoolTrash
from tonnage.storage.pools.core.volumes import Volumes
from tonnage.storage.pools.core.work import SLOW, PoolWork, gives_up, uses_disk


def _nothing() -> None:
    """Default listener."""


class Pool:
    """The volumes of a back end. All methods raise UnavailableError, HostError."""

    def __init__(
        self, name: str, backend: Backend, *, erase_rate: int | None = None, clock: Clock | None = None
    ) -> None:
        """erase_rate: bytes of deleted volumes to overwrite per second, 0 for unlimited, None for the default."""
        self.name = backend.name = name
        self.backend = backend
        self.on_capacity: Callable[[], None] = _nothing
        """Called when bytes become free without a call (content has been erased). Set by the capacity publisher."""
        self.on_fault: PoolFault = lambda pool, why: None
        """Called when the pool cannot write, and when it can again. Set by the node."""
        self.work = PoolWork(backend, clock or RealClock())
        self.work.probe.changed = self.writable_changed

        def freed() -> None:
            self.on_capacity()

        self._deletion = Deletion(self.work, erase_rate, lambda volume: self.growth.forget(volume), freed)
        self.trash = PoolTrash(self.work, self._deletion, freed)
        self.volumes = Volumes(self.work, self._deletion, self.trash, freed)
        self.snapshots = PoolSnapshots(self.work, self._deletion, self.trash)
        self.growth = PoolGrowth(self.work, self.trash)

    @property
    def features(self) -> Features:
        """What its kind offers."""
        return self.backend.features

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return self.backend.features.kind

    @property
    def probe(self) -> WriteProbe:
        """Whether it can write."""
        return self.work.probe

    async def open(self) -> None:
        """Check the pool and find its volumes; finish or undo what a kill interrupted."""
        try:
            await self.work.run_and_commit(self.backend.open)
        except TonnageError as failure:
            self.backend.records.problem = str(failure)
            await self.work.run(self.backend.close)  # it may be open, and what it found not durable
            raise
        self.backend.records.problem = ""
        for record in self.backend.records.trash():
            self.backend.discount(record)
        self.trash.start()
        self._deletion.erase()
        await self.volumes.delete_given_up()

    async def close(self) -> None:
        """Release the resources of the process. Volumes and mounts stay.

        Work that hangs is not awaited, and no other process may open the pool before it has ended.
        """
        closing = asyncio.ensure_future(self._close())
        await asyncio.wait([closing], timeout=SLOW if self.work.may_hang else None)
        if closing.done():
            closing.result()

    async def _close(self) -> None:
        for part in (self.trash, self.probe, self.work.disks, self._deletion, self.volumes.given_up, self.work):
            await part.close()

    def writable_changed(self) -> None:
        """Tell the listeners that it cannot write, or can again."""
        self.on_capacity()
        self.on_fault(self.name, self.probe.fault)

    def rebound(self, bounds: PoolLimits, *, erase_rate: int | None = None) -> None:
        """Set new limits. Volumes stay, also those above the limits.

        erase_rate: bytes per second, 0 for unlimited, None for the default. Raises: UnsupportedError for limits that
        can only be set at the start.
        """
        self.backend.rebound(bounds)
        self._deletion.change_rate(erase_rate)

    async def create(self, request: VolumeRequest) -> PoolVolume:
        """Create a volume; it is durable when this returns.

        A size below the least is rounded up to it, unless that passes the limit. An existing volume of that name that
        fits the request is returned. Raises: ExhaustedError (not enough capacity now), OutOfRangeError (can never fit,
        or size > limit), AlreadyExistsError (the name is taken by a volume that does not fit the request),
        InvalidError, UnsupportedError. With a source: NotFound when there is none, OutOfRange when the size is below
        the source's, Precondition when it cannot be copied while in use. Raises: ExhaustedError as well while the pool
        cannot write.
        """
        return await self.volumes.create(request)

    async def delete(self, name: str, *, wait: bool = True) -> None:
        """Delete a volume and its record; an unknown one is success.

        wait: wait a moment for a volume whose use may be ending (InUse). Raises: PreconditionError while it is in use.
        """
        await self.volumes.delete(name, wait=wait)

    async def delete_unused(self, name: str, *, copies: bool, ask: bool = False) -> str:
        """Delete a volume that no pod ever had, by its record and content; an unknown one is success.

        copies: also one that was made with content. ask: delete nothing, only say why not. Returns why it stays, "" for
        a volume that is gone, or would be. Raises: PreconditionError while it is in use.
        """
        return await self.volumes.delete_unused(name, copies=copies, ask=ask)

    async def modify(self, name: str, parameters: Mapping[str, str]) -> PoolVolume:
        """Change parameters of a volume; durable when this returns. An empty value restores the class's.

        The caller applies the change to a volume in use (I/O limits of its pods). Raises: NotFoundError, InvalidError
        for a parameter that is not in `modifiable` or has a bad value.
        """
        return await self.volumes.modify(name, parameters)

    async def annotate(self, name: str, owner: Mapping[str, str]) -> PoolVolume:
        """Set keys of a volume's owner record; durable when this returns. Raises: NotFoundError."""
        return await self.volumes.annotate(name, owner)

    async def get(self, name: str) -> PoolVolume:
        """Read one record. Raises: NotFoundError."""
        return self.backend.volume(self.backend.record(name))

    async def list(self) -> Sequence[PoolVolume]:
        """All records, sorted by name."""
        self.backend.check_open()
        return [self.backend.volume(record) for record in self.backend.records.all() if not record.is_trash]

    async def damaged(self) -> Mapping[str, str]:
        """Volumes with damaged records, and the damage, by name.

        They are not listed and never changed. get() and delete() raise HostError, condition() describes the damage.
        """
        self.backend.check_open()
        records = self.backend.records
        found = sorted(records.damaged.items())
        return {name.encode(errors="backslashreplace").decode(): f"{fault}; {records.remedy}" for name, fault in found}

    async def problems(self) -> Sequence[str]:
        """Problems of the pool itself and what to do about each, one line each."""
        self.backend.check_open()
        fault = [f"it cannot write, and offers no capacity: {self.probe.fault}"] if self.probe.fault else []
        if self.probe.hangs:
            return fault
        return [*fault, *await self.work.watched(self.work.run(self.backend.problems, await self.erasing()))]

    async def capacity(self, *, fstype: str = "", block: bool = False) -> Capacity:
        """Capacity for volumes of that kind."""
        return await self.capacity_for({}, fstype=fstype, block=block)

    async def overall(self) -> Capacity:
        """Capacity of the whole pool, for any kind of volume; for people."""
        self.backend.check_open()
        try:
            return NO_CAPACITY if self.probe.hangs else await self.work.watched(self.work.run(self.backend.overall))
        except DiskHangsError:
            return NO_CAPACITY

    async def capacity_for(
        self, parameters: Mapping[str, str], *, fstype: str = "", block: bool = False, inline: bool = False
    ) -> Capacity:
        """Capacity for volumes of a class.

        inline: for inline volumes, which may use the inline capacity. Raises: InvalidError, UnsupportedError for
        parameters that create() would reject.
        """
        fstype = fstype_of(self, fstype, block=block)
        self.backend.check(parameters, fstype, block=block)
        check_content(parameters, fstype, block=block)
        if self.probe.fault:
            await self.probe.retry()
        if self.probe.fault:
            return NO_CAPACITY
        if self.backend.knows_capacity:
            return self._capacity(fstype, parameters, block=block, inline=inline)
        try:
            asked = self.work.run(self._capacity, fstype, parameters, block=block, inline=inline)
            return await self.work.watched(asked)
        except DiskHangsError:
            return NO_CAPACITY
        except HostError:
            await self.probe.run()
            if not self.probe.fault:
                raise
            return NO_CAPACITY

    def _capacity(self, fstype: str, parameters: Mapping[str, str], *, block: bool, inline: bool) -> Capacity:
        return self.backend.left(self.backend.reserve(parameters, inline=inline), fstype, parameters, block=block)

    async def erasing(self) -> Sequence[Erasure]:
        """Contents that are being erased, sorted by volume name."""
        self.backend.check_open()
        return self._deletion.erasing()

    @uses_disk
    async def stage(self, name: str, path: Path, *, options: Sequence[str] = (), fills: bool = False) -> None:
        """Stage a volume at the directory path, as Mounts.stage. options: mount options, checked by the caller.

        fills: the driver itself fills it there; else the first stage is recorded, durable before anything is mounted.
        """
        async with self.work.locks.hold(name):
            record = self.backend.record(name)
            if record.owner.get(STAGED) == "" and not fills and not is_inline(record.owner):
                record = await self._mark_staged(record)
            await self.work.run(self.backend.mounts.stage, record, path, options)

    async def _mark_staged(self, record: VolumeRecord) -> VolumeRecord:
        """Record the first stage, in the write of stage() itself where that writes the record."""
        marked = structs.replace(record, owner={**record.owner, STAGED: str(self.work.clock.time())})
        if not self.backend.mounts.writes_record(record):
            await self.work.run_and_commit(self.backend.write, marked)
        return marked

    @uses_disk
    async def in_use(self, name: str) -> bool:
        """Whether a volume is mounted or attached, if only for a moment. Raises: NotFoundError."""
        async with self.work.locks.hold(name):
            self.backend.record(name)
            try:
                await self.work.run(self.backend.mounts.check_unused, name)
            except PreconditionError:
                return True
            return False

    @gives_up
    async def unstage(self, name: str, path: Path) -> None:
        """Undo stage; success when nothing is there, also for an unknown volume."""
        async with self.work.locks.hold(name):
            await self.work.release(self.backend.mounts.unstage, name, path)

    @uses_disk
    async def publish(self, name: str, staging: Path, target: Path, *, readonly: bool = False) -> None:
        """Publish a staged volume at target, as Mounts.publish. The parent of target exists."""
        async with self.work.locks.hold(name):
            record = self.backend.record(name)
            await self.work.run(self.backend.mounts.publish, record, staging, target, readonly=readonly)

    @gives_up
    async def unpublish(self, name: str, target: Path) -> None:
        """Undo publish and remove target; success when nothing is there, also for an unknown volume."""
        async with self.work.locks.hold(name):
            await self.work.release(self.backend.mounts.unpublish, name, target)

    @uses_disk
    async def stats(self, name: str, path: Path) -> Stats:
        """Usage of the volume as mounted at path. Raises: NotFoundError when the volume or path is not there."""
        return await self.work.release(self.backend.mounts.stats, self.backend.record(name), path)

    @uses_disk
    async def device(self, name: str) -> tuple[int, int] | None:
        """Major and minor number of the volume's own block device, None while it has none.

        Raises: NotFoundError, and UnsupportedError where volumes have no device of their own.
        """
        record = self.backend.record(name)
        if IOPS in self.features.rejected:  # limits need a device
            raise unsupported(self, "block devices of its volumes")
        return await self.work.run(self.backend.mounts.device, record)

    def home(self, volume: PoolVolume) -> Path | None:
        """Where the pool keeps a volume mounted independent of its use, None for nowhere."""
        return self.backend.home(volume)

    @uses_disk
    async def volume_limit(self) -> int:
        """Maximum number of volumes in this pool (loop, mapper or namespace limits), 0 for unlimited."""
        return await self.work.run(self.backend.limit)

    async def places(self) -> Mapping[str, Path]:
        """Where the volumes in use are mounted, one path each, for condition_in()."""
        return await self.work.release(self.backend.mounts.places, list(self.backend.records.volumes.values()))

    async def condition(self, name: str, path: Path | None = None) -> VolumeCondition:
        """Condition of a volume, and of its mount at path if one is given.

        Raises: NotFoundError for an unknown volume. Problems of a known one are returned, not raised.
        """
        try:
            return await self._condition_of(name, path)
        except DiskHangsError as why:
            return VolumeCondition(abnormal=True, message=f"volume {name}: {why}")

    @uses_disk
    async def _condition_of(self, name: str, path: Path | None) -> VolumeCondition:
        return await self.work.release(self._condition, name, path)

    async def condition_in(self, places: Mapping[str, Path], name: str) -> VolumeCondition:
        """As condition(), with the mount that places() found; one that was unmounted since then is no problem."""
        place = places.get(name)
        found = await self.condition(name, place)
        if place is not None and found.abnormal and not await self.work.release(mount.is_mount, place):
            return await self.condition(name)
        return found

    def _condition(self, name: str, path: Path | None) -> VolumeCondition:
        try:
            record = self.backend.record(name)
        except HostError as failure:
            return VolumeCondition(abnormal=True, message=str(failure))
        if fault := self.backend.fault(record) or (self.backend.mounts.fault_at(record, path) if path else ""):
            return VolumeCondition(abnormal=True, message=f"volume {name}: {fault}")
        if record.pending:
            why = self.growth.unfinished(name) or "the volume is well; its file system is still to be grown"
            return VolumeCondition(abnormal=False, message=why)
        return WELL
