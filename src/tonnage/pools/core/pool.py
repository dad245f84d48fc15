"""StoredPool: the async half of a pool over a RecordStore.

It holds a lock for each name and runs the store in threads. All kinds with volumes of their own use it with their
RecordStore. A kind may override check() for its class parameters, want() for its sizes, and settle() and durably() for
a group commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from tonnage.aio.tasks import KeyedLocks
from tonnage.errors import InUse, TonnageError
from tonnage.pools.base import reservation
from tonnage.pools.base.contract import (
    Capacity,
    Erasure,
    Pool,
    PoolLimits,
    PoolVolume,
    Snapshot,
    Stats,
    VolumeCondition,
    VolumeRequest,
    check_name,
    is_inline,
)
from tonnage.pools.base.parameters import changed, check_modifiable, reserve_of
from tonnage.pools.base.parameters import source_of as folder_of
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.base.threads import Threads
from tonnage.pools.core import request as requests
from tonnage.pools.core.backend import RecordStore
from tonnage.pools.core.request import source_of
from tonnage.pools.fs.formats import BLOCK

if TYPE_CHECKING:
    from tonnage.pools.core.eraser import Eraser  # loaded with the first job: most pools never erase

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=RecordStore)
_PAUSES = (0.01, 0.05, 0.2)  # seconds: the kernel may free a loop device a moment after its last umount


class StoredPool(Pool, Generic[S]):
    """The volumes of a RecordStore. step: sizes are multiples of it. least: minimum size. Both in bytes."""

    step: int = BLOCK
    least: int = BLOCK

    def __init__(self, name: str, store: S, *, erase_rate: int | None = None) -> None:
        """erase_rate: bytes of deleted volumes to overwrite per second, 0 for unlimited, None for the default."""
        self.name = name
        self._store = store
        store.pool = name
        self._locks = KeyedLocks()
        self._threads = Threads(name)
        self._eraser: Eraser | None = None
        self._erase_rate = erase_rate

    def rebound(self, bounds: PoolLimits, *, erase_rate: int | None = None) -> None:
        self._store.rebound(bounds)
        self._erase_rate = erase_rate
        if self._eraser is not None:
            self._eraser.change_rate(erase_rate)

    def check(self, parameters: Mapping[str, str]) -> None:
        """Check the values of a class's parameters. Raises Invalid, Unsupported."""

    async def want(self, request: VolumeRequest) -> requests.RequestedVolume:
        """Check a request and return what to create. Raises Invalid, Unsupported, OutOfRange."""
        return requests.check(self, request, least=self.least, step=self.step)

    async def settle(self) -> None:
        """Commit what the store has done since; nothing to do where that is durable already."""

    async def durably(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the store in a thread, then commit. A kind may do both at once."""
        result = await self._threads.run(work, *args, **kwargs)
        await self.settle()
        return result

    async def open(self) -> None:
        try:
            await self._threads.run(self._store.open)
            await self.settle()
        except TonnageError as failure:
            self._store.problem = str(failure)
            await self._threads.run(self._store.close)  # it may be open, and what it found not durable
            raise
        self._store.problem = ""
        self._erase()

    async def close(self) -> None:
        if self._eraser is not None:
            await self._eraser.close()
        await self._threads.run(self._store.close)
        self._threads.close()

    async def create(self, request: VolumeRequest) -> PoolVolume:
        """A size below the least is rounded up to it, unless that passes the limit."""
        self._store.check_open()
        check_modifiable(self, request.mutable)
        self.check({**request.parameters, **_given(request.mutable)})
        async with self._locks.hold_all(request.name, *source_of(request)):
            found, origin = self._store.records.get(request.name), None
            if found is not None:
                request = requests.again(found.volume(), request)
            elif request.source and self.clones:
                origin = self._store.origin(request.source)
                request = requests.filled(self, request, origin.volume())
            want = await self.want(request)
            if found is not None:
                volume = requests.existing(found.volume(), request, want)
                await self.settle()  # its maker may have been cancelled before this
                return volume
            requests.check_content(request.parameters, want.fstype, origin)
            return (await self.durably(self._create, request, want, origin)).volume()

    def _create(
        self, request: VolumeRequest, want: requests.RequestedVolume, origin: VolumeRecord | None
    ) -> VolumeRecord:
        reserve = self._reserve(request.parameters, inline=is_inline(request.owner))
        free = reservation.left(self._store.room(want.fstype, request.parameters), reserve, step=self.step)
        reservation.check_room(self, request.name, want.size, free, reserve)
        if origin is None and (folder := folder_of(request.parameters)):
            from tonnage.pools.fs import populate

            populate.check(folder, want.size)
        return self._store.create(request, want, origin)

    def _room(self, fstype: str, parameters: Mapping[str, str], *, inline: bool) -> Capacity:
        reserve = self._reserve(parameters, inline=inline)
        return reservation.left(self._store.room(fstype, parameters), reserve, step=self.step)

    def _reserve(self, parameters: Mapping[str, str], *, inline: bool = False) -> reservation.Reserve:
        records = list(self._store.records.values())  # at once: other threads make volumes meanwhile
        return reservation.reserve(self.inline, records, of_class=reserve_of(parameters), inline=inline)

    async def delete(self, name: str, *, wait: bool = True) -> None:
        for pause in _PAUSES if wait else ():
            try:
                await self._delete_now(name)
            except InUse:
                await asyncio.sleep(pause)
            else:
                return
        await self._delete_now(name)

    async def _delete_now(self, name: str) -> None:
        async with self._locks.hold(name):
            gone = list[VolumeRecord]()
            try:
                await self.durably(self._delete, name, gone)
            except TonnageError:
                for record in gone:  # not for good: it must stay visible until the call is repeated
                    self._store.put_back(record)
                raise
            finally:
                self._erase()  # also after a call that was cancelled, or failed when it was almost done

    def _delete(self, name: str, gone: list[VolumeRecord]) -> None:
        record = self._store.records.get(name)
        self._store.delete(name)
        if record is not None:
            gone.append(record)

    def _erase(self) -> None:
        """Start the eraser, if there are jobs."""
        records = self._store.erasures
        if records is None or not records.jobs():
            return
        if self._eraser is None:
            from tonnage.pools.core.eraser import RATE, Eraser

            rate = RATE if self._erase_rate is None else self._erase_rate
            self._eraser = Eraser(
                self.name, self.kind, records, self._threads, self._store.clock, rate=rate, freed=self._freed
            )
        self._eraser.wake()

    def _freed(self) -> None:
        self.on_room()

    async def erasing(self) -> Sequence[Erasure]:
        self._store.check_open()
        return self._eraser.erasing() if self._eraser is not None else []

    async def get(self, name: str) -> PoolVolume:
        return self._store.record(name).volume()

    async def list(self) -> Sequence[PoolVolume]:
        return [record.volume() for record in self._store.all()]

    async def damaged(self) -> Mapping[str, str]:
        self._store.check_open()
        remedy, found = self._store.remedy, sorted(self._store.damaged.items())
        return {name.encode(errors="backslashreplace").decode(): f"{fault}; {remedy}" for name, fault in found}

    async def problems(self) -> Sequence[str]:
        self._store.check_open()
        return await self._threads.run(self._store.problems)

    async def capacity(self, *, fstype: str = "", block: bool = False) -> Capacity:
        return await self.capacity_for({}, fstype=fstype, block=block)

    async def capacity_for(
        self, parameters: Mapping[str, str], *, fstype: str = "", block: bool = False, inline: bool = False
    ) -> Capacity:
        fstype = requests.fstype_of(self, fstype, block=block)
        self.check(parameters)
        requests.check_content(parameters, fstype)
        if self._store.knows_room:
            return self._room(fstype, parameters, inline=inline)
        return await self._threads.run(self._room, fstype, parameters, inline=inline)

    async def stage(self, name: str, path: Path, *, options: Sequence[str] = ()) -> None:
        async with self._locks.hold(name):
            await self._threads.run(self._store.stage, name, path, options)

    async def unstage(self, name: str, path: Path) -> None:
        async with self._locks.hold(name):
            await self._threads.run(self._store.unstage, name, path)

    async def publish(self, name: str, staging: Path, target: Path, *, readonly: bool = False) -> None:
        async with self._locks.hold(name):
            await self._threads.run(self._store.publish, name, staging, target, readonly=readonly)

    async def unpublish(self, name: str, target: Path) -> None:
        async with self._locks.hold(name):
            await self._threads.run(self._store.unpublish, name, target)

    async def stats(self, name: str, path: Path) -> Stats:
        return await self._threads.run(self._store.stats, name, path)

    async def create_snapshot(self, name: str, volume: str, *, owner: Mapping[str, str] | None = None) -> Snapshot:
        if not self.snapshots:
            raise self._unsupported("snapshots")
        check_name(name)
        async with self._locks.hold_all(f"{name}@", volume):
            self._store.check_open()
            if found := self._store.find_snapshot(name):
                snapshot = requests.existing_snapshot(found.snapshot(), volume)
                await self.settle()
                return snapshot
            return (await self.durably(self._snapshot, name, volume, owner or {})).snapshot()

    def _snapshot(self, name: str, volume: str, owner: Mapping[str, str]) -> VolumeRecord:
        record = self._store.record(volume)
        reserve = self._reserve({})
        free = reservation.left(self._store.room(record.fstype, {}), reserve)
        reservation.check_room(self, name, record.size, replace(free, largest=free.free), reserve)
        return self._store.snapshot(name, volume, owner)

    async def delete_snapshot(self, name: str) -> None:
        if not self.snapshots:
            raise self._unsupported("snapshots")
        async with self._locks.hold(f"{name}@"):
            try:
                await self.durably(self._store.delete_snapshot, name)
            finally:
                self._erase()

    async def get_snapshot(self, name: str) -> Snapshot:
        if not self.snapshots:
            return await super().get_snapshot(name)
        return self._store.snapshot_record(name).snapshot()

    async def list_snapshots(self) -> Sequence[Snapshot]:
        return [record.snapshot() for record in self._store.all_snapshots()] if self.snapshots else []

    async def expand(self, name: str, size: int, *, limit: int = 0) -> PoolVolume:
        async with self._locks.hold(name):
            volume = self._store.record(name).volume()
            wanted = requests.larger(self, volume, size, limit, step=self.step)
            if wanted > volume.size:
                return (await self.durably(self._expand, volume, wanted)).volume()
            await self.settle()
            return volume

    def _expand(self, volume: PoolVolume, wanted: int) -> VolumeRecord:
        reserve = self._reserve(volume.parameters)
        free = reservation.left(self._store.room(volume.fstype, volume.parameters), reserve, step=self.step)
        reservation.check_more(self, volume, wanted, free, reserve)
        return self._store.expand(volume.name, wanted)

    async def grow(self, name: str, path: Path) -> PoolVolume:
        if not self.expansion:
            raise self._unsupported("larger volumes")
        async with self._locks.hold(name):
            return (await self._threads.run(self._store.grow, name, path)).volume()

    async def modify(self, name: str, parameters: Mapping[str, str]) -> PoolVolume:
        async with self._locks.hold(name):
            volume = self._store.record(name).volume()
            mutable = changed(self, volume, parameters)
            self.check({**volume.parameters, **mutable})
            if mutable != dict(volume.mutable):
                return (await self.durably(self._store.modify, name, mutable)).volume()
            await self.settle()
            return volume

    async def device(self, name: str) -> tuple[int, int] | None:
        return await self._threads.run(self._store.device, name)

    async def condition(self, name: str, path: Path | None = None) -> VolumeCondition:
        return await self._threads.run(self._store.condition, name, path)


def _given(parameters: Mapping[str, str]) -> dict[str, str]:
    """Parameters with a value: an empty one means the class's."""
    return {key: value for key, value in parameters.items() if value}
