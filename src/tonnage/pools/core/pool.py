"""Pool: the async half of a pool over a Backend, the same for all kinds.

It checks requests, holds a lock for each name, reserves capacity, runs the back end in threads of its own and shares
commits. All methods except `close` are idempotent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from msgspec import structs

from tonnage.aio.clock import Clock, RealClock
from tonnage.aio.tasks import KeyedLocks
from tonnage.errors import (
    AlreadyExistsError,
    DoesNotFitError,
    ExhaustedError,
    HostError,
    InUseError,
    InvalidError,
    NotFoundError,
    OutOfRangeError,
    PreconditionError,
    TonnageError,
)
from tonnage.host import mount
from tonnage.pools.base import reservation
from tonnage.pools.base.contract import (
    WELL,
    Capacity,
    Erasure,
    Features,
    PoolLimits,
    PoolVolume,
    Snapshot,
    SnapshotRequest,
    Stats,
    VolumeCondition,
    VolumeRequest,
    check_name,
    is_inline,
    unsupported,
)
from tonnage.pools.base.parameters import IOPS, changed, check_modifiable, erase_of, reserve_of, source_of
from tonnage.pools.base.record import STAGED, TRASHED, UNDELETE, VolumeRecord
from tonnage.pools.base.threads import SharedCommit, Threads
from tonnage.pools.core import trash
from tonnage.pools.core.backend import Backend, RequestedVolume, check_content, fstype_of
from tonnage.pools.core.probe import EVERY, DiskHangsError, PoolFault, WriteProbe

if TYPE_CHECKING:
    from tonnage.pools.core.eraser import Eraser  # loaded with the first job: most pools never erase

log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")
SLOW = 5.0
"""Seconds after which work that has not ended makes the pool try to write, and close() no longer waits for it."""
_STUCK = 3
"""Calls that have given up and still hang, after which no more are tried: one less than the pool's threads."""
_RELEASES = 2  # threads
NO_CAPACITY = Capacity(0, 0, 0, 0, 0)
_OLDER = "its content was used, though its record says that it never was: the record may be of an earlier moment"
_PAUSES = (0.01, 0.05, 0.2)  # seconds: the kernel may free a loop device a moment after its last umount


def _nothing() -> None:
    """Default listener."""


Call = Callable[Concatenate["Pool", P], Coroutine[Any, Any, R]]


def uses_disk(method: Call[P, R]) -> Call[P, R]:
    """Decorator of a method whose work may hang with the pool's disk.

    The call gives up then. While the disk hangs, calls of other volumes are tried as long as a few are stuck only:
    repeated calls must not fill the pool's threads. Raises DiskHangsError.
    """

    @wraps(method)
    async def call(pool: Pool, /, *args: P.args, **kwargs: P.kwargs) -> R:
        pool.check_stuck()
        return await pool._watched(method(pool, *args, **kwargs))

    return call


def gives_up(method: Call[P, R]) -> Call[P, R]:
    """As uses_disk(), for calls by which pods end: they are always tried."""

    @wraps(method)
    async def call(pool: Pool, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await pool._watched(method(pool, *args, **kwargs))

    return call


class Pool:
    """The volumes of a back end. All methods raise UnavailableError, HostError."""

    def __init__(
        self, name: str, backend: Backend, *, erase_rate: int | None = None, clock: Clock | None = None
    ) -> None:
        """erase_rate: bytes of deleted volumes to overwrite per second, 0 for unlimited, None for the default."""
        self.name = name
        self.inline = 0
        """Inline capacity: bytes that only inline volumes can use. Set from the pool's description."""
        self.on_capacity: Callable[[], None] = _nothing
        """Called when bytes become free without a call (content has been erased). Set by the capacity publisher."""
        self.backend = backend
        backend.name = name
        self._clock = clock or RealClock()
        self._locks = KeyedLocks()
        self._threads = Threads(name)
        self._commit = SharedCommit(backend.commit, self._threads) if backend.shares_commit else None
        self._eraser: Eraser | None = None
        self._erase_rate = erase_rate
        self._expiry = trash.Expiry(self, self._clock)
        self._probe_thread = Threads(f"{name}-probe", 1)
        """Of its own: long copies in all others are no fault of the disk."""
        self._release_threads = Threads(f"{name}-release", _RELEASES)
        """Of their own: pods end although all others are stuck."""
        self.probe = WriteProbe(name, self._probe_write, self._clock)
        self.probe.changed = self._writable_changed
        self._under_way: set[asyncio.Task[Any]] = set()
        """Work that uses the disk, also that whose caller has given up."""
        self._stuck: set[asyncio.Task[Any]] = set()
        """Work whose caller has given up."""
        self._unwanted: set[str] = set()
        """Volumes that may still be made, and whose callers know that they are not."""
        self.on_fault: PoolFault = lambda pool, why: None
        """Called when the pool cannot write, and when it can again. Set by the node."""
        self.restoring: Counter[str] = Counter()
        """Trash that is being restored; no other is restored at its cost."""
        self._unfinished: dict[str, str] = {}  # volume -> why its file system could not grow while mounted

    @property
    def features(self) -> Features:
        """What its kind offers."""
        return self.backend.features

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return self.backend.features.kind

    async def _run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the back end in a thread, or here where it never blocks."""
        if self.backend.is_instant:
            return work(*args, **kwargs)
        return await self._threads.run(work, *args, **kwargs)

    async def _release(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As _run(), for work of pods that end and of those that look."""
        if self.backend.is_instant:
            return work(*args, **kwargs)
        return await self._release_threads.run(work, *args, **kwargs)

    async def _probe_write(self) -> None:
        if self.backend.is_instant:
            await self._run(self.backend.probe)
        else:
            await self._probe_thread.run(self.backend.probe)

    def check_stuck(self) -> None:
        """Raises DiskHangsError while as many calls hang as may."""
        if len(self._stuck) >= _STUCK:
            raise self.probe.hang()

    async def _watched(self, work: Coroutine[Any, Any, R]) -> R:
        """Do work of the pool and return its result. A caller that is cancelled still waits for the end.

        But for none on a pool that cannot write: the work may hang with its disk. It goes on then, with its locks and
        without a caller. Raises DiskHangsError then.
        """
        if self.backend.is_instant:
            return await work
        task, pause = asyncio.ensure_future(work), SLOW
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        stopped: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task], timeout=pause)
                if not task.done():
                    await self.probe.run()
                    pause = EVERY
            except asyncio.CancelledError as stop:
                stopped = stop
                task.cancel()
            if self.probe.fault and not task.done():
                self._leave(task)
                break
        if task.done() and not task.cancelled():
            task.exception()  # known, also when it ended while we are cancelled
        if stopped is not None:
            raise stopped
        if not task.done():
            raise self.probe.hang()
        return task.result()

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self._stuck.add(task)
        task.cancel()  # what is begun in a thread ends there; what waits for a lock ends now
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._stuck.discard(task)
        if not task.cancelled():
            task.exception()
        log.warning("a call that was given up has ended pool=%s", self.name)

    async def _run_and_commit(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._commit is None:
            return await self._run(work, *args, **kwargs)
        return await self._commit.after(work, *args, **kwargs)

    async def open(self) -> None:
        """Check the pool and find its volumes; finish or undo what a kill interrupted."""
        try:
            await self._run_and_commit(self.backend.open)
        except TonnageError as failure:
            self.backend.records.problem = str(failure)
            await self._run(self.backend.close)  # it may be open, and what it found not durable
            raise
        self.backend.records.problem = ""
        for record in self.backend.records.trash():
            self.backend.discount(record)
        self._expiry.start()
        self._erase()

    async def close(self) -> None:
        """Release the resources of the process. Volumes and mounts stay.

        Work that hangs is not awaited, and no other process may open the pool before it has ended.
        """
        closing = asyncio.ensure_future(self._close())
        await asyncio.wait([closing], timeout=SLOW if self.probe.hangs or self._under_way else None)
        if closing.done():
            closing.result()

    async def _close(self) -> None:
        await self._expiry.close()
        await self.probe.close()
        if self._eraser is not None:
            await self._eraser.close()
        if self._under_way:
            await asyncio.wait(self._under_way)
        await self._run(self.backend.close)
        self._threads.close()
        self._release_threads.close()
        self._probe_thread.close()

    def _writable_changed(self) -> None:
        self.on_capacity()
        self.on_fault(self.name, self.probe.fault)

    def rebound(self, bounds: PoolLimits, *, erase_rate: int | None = None) -> None:
        """Set new limits. Volumes stay, also those above the limits.

        erase_rate: bytes per second, 0 for unlimited, None for the default. Raises UnsupportedError for limits that can
        only be set at the start.
        """
        self.backend.rebound(bounds)
        self._erase_rate = erase_rate
        if self._eraser is not None:
            self._eraser.change_rate(erase_rate)

    async def create(self, request: VolumeRequest) -> PoolVolume:
        """Create a volume; it is durable when this returns.

        A size below the least is rounded up to it, unless that passes the limit. An existing volume of that name that
        fits the request is returned. Raises ExhaustedError (not enough capacity now), OutOfRangeError (can never fit,
        or size > limit), AlreadyExistsError (the name is taken by a volume that does not fit the request),
        InvalidError, UnsupportedError. With a source: NotFound when there is none, OutOfRange when the size is below
        the source's, Precondition when it cannot be copied while in use. Raises ExhaustedError as well while the pool
        cannot write.
        """
        self.backend.check_open()
        check_modifiable(self, request.mutable)
        if self.probe.fault and request.name not in self.backend.records.volumes:
            await self.probe.retry()  # it may have been for a moment, as without a free descriptor
            self.probe.check()
        self.check_stuck()
        self._unwanted.discard(request.name)
        try:
            return await self._watched(self._create_wanted(request))
        except DiskHangsError:
            self._unwanted.add(request.name)
            self.probe.check()
            raise
        except HostError:
            if request.name not in self.backend.records.damaged:
                await self.probe.run()
                self.probe.check()
            raise

    async def _create_wanted(self, request: VolumeRequest) -> PoolVolume:
        """Create a volume, and delete it again if its caller has given up meanwhile and has not repeated it."""
        async with self._locks.hold_all(request.name, *locks_of_source(request)):
            was_there = request.name in self.backend.records.volumes
            try:
                return await self._create_locked(request)
            finally:
                if request.name in self._unwanted:
                    self._unwanted.discard(request.name)
                    if not was_there:
                        await self._undo(request.name)

    async def _undo(self, name: str) -> None:
        record = self.backend.records.volumes.get(name)
        if record is None or record.use:
            return
        try:
            await self._delete_locked(name)
        except TonnageError as failure:  # a sweep finds it
            log.warning("volume of a call that was given up stays pool=%s volume=%s error=%s", self.name, name, failure)
        else:
            log.info("deleted what=volume name=%s pool=%s proof=its call was given up, never staged", name, self.name)
            self.on_capacity()

    async def _create_locked(self, request: VolumeRequest) -> PoolVolume:
        try:
            if (old := self.backend.records.volumes.get(request.name)) is not None and old.is_trash:
                await self._run(self._check_new, request)
                await self._delete_locked(request.name)
            record = await self._evicting(lambda: self.backend.part(request.parameters), self._create, request)
        finally:
            if request.source:
                self._erase()  # a copy may have left something
        return self.backend.volume(record)

    def _create(self, request: VolumeRequest) -> VolumeRecord:
        backend = self.backend
        if (found := backend.records.volumes.get(request.name)) is not None:
            if request.source and not request.fstype:
                request = replace(request, fstype=found.fstype)  # "" meant the source's
            check_existing(found.volume(), request, self._want(request))
            return found  # committed again: its maker may have been cancelled before that
        request, want, origin = self._completed(request)
        try:
            return self._make(request, want, origin)
        except (ExhaustedError, OutOfRangeError):
            if not backend.reread():
                raise
        return self._make(request, want, origin)

    def _want(self, request: VolumeRequest) -> RequestedVolume:
        given = {key: value for key, value in request.mutable.items() if value}
        self.backend.check({**request.parameters, **given}, request.fstype, block=request.block)
        return self.backend.want(request)

    def _completed(self, request: VolumeRequest) -> tuple[VolumeRequest, RequestedVolume, VolumeRecord | None]:
        """Check the request for a new volume; return it completed, its size, and the source that is to be copied."""
        origin = None
        if request.source and self.features.clones:
            origin = self.backend.origin(request.source)
            request = completed_request(request, origin.volume())
        want = self._want(request)
        check_content(request.parameters, want.fstype, origin, block=request.block)
        return request, want, origin

    def _check_new(self, request: VolumeRequest) -> None:
        """Check whether a volume can be made once trash has made way. Raises as create()."""
        self._check_make(*self._completed(request))

    def _make(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None) -> VolumeRecord:
        """Create a volume. Trash makes way at last, when nothing else is against it: _evicting() repeats the call."""
        free, reserve = self._check_make(request, want, origin)
        self._check_evicted(want.size, free, reserve)
        return self.backend.create(request, want, origin)

    def _check_make(
        self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None
    ) -> tuple[Capacity, reservation.Reserve]:
        """Check all that a new volume needs but for trash; return the capacity and what it leaves of that."""
        free, reserve = NO_CAPACITY, reservation.NO_RESERVE
        if not self.features.whole_disks:
            reserve = self._reserve(request.parameters, inline=is_inline(request.owner))
            free = self._left(want.fstype, request.parameters, reserve, block=request.block)
            reservation.check_fits(self.name, request.name, want.size, free, reserve)
        self.backend.records.check_damaged(request.name)
        if origin is None and (folder := source_of(request.parameters)):
            from tonnage.pools.fs import populate

            populate.check(folder, want.size)
        self.backend.check_create(request, want, origin)
        return free, reserve

    def _reserve(self, parameters: Mapping[str, str], *, inline: bool = False) -> reservation.Reserve:
        records = list(self.backend.records.volumes.values())  # at once: other threads make volumes meanwhile
        return reservation.reserve(self.inline, records, of_class=reserve_of(parameters), inline=inline)

    async def delete(self, name: str, *, wait: bool = True) -> None:
        """Delete a volume and its record; an unknown one is success.

        wait: wait a moment for a volume whose use may be ending (InUse). Raises PreconditionError while it is in use.
        """
        for pause in _PAUSES if wait else ():
            try:
                await self._delete_now(name)
            except InUseError:
                await asyncio.sleep(pause)
            else:
                return
        await self._delete_now(name)

    @uses_disk
    async def delete_unused(self, name: str, *, copies: bool, ask: bool = False) -> str:
        """Delete a volume that no pod ever had, by its record and content; an unknown one is success.

        copies: also one that was made with content. ask: delete nothing, only say why not. Returns why it stays, "" for
        a volume that is gone, or would be. Raises PreconditionError while it is in use.
        """
        async with self._locks.hold(name):
            self.backend.check_open()
            record = self.backend.records.volumes.get(name)
            if record is None:
                self.backend.records.check_damaged(name)
                return ""
            why = record.use or ("" if copies else record.content)
            if why or (not record.content and await self._run(self.backend.shows_use, record)):
                return f"volume {name} stays: {why or _OLDER}"
            if not ask:
                await self._delete_locked(name)
            return ""

    @uses_disk
    async def _delete_now(self, name: str) -> None:
        async with self._locks.hold(name):
            await self._delete_locked(name)

    async def _delete_locked(self, name: str) -> None:
        gone = list[VolumeRecord]()
        try:
            await self._run_and_commit(self._delete, name, gone)
            self._unfinished.pop(name, None)
        except TonnageError:
            for record in gone:  # not for good: it must stay visible until the call is repeated
                self.backend.records.put_back(record)
                if record.is_trash:
                    self.backend.discount(record)
            raise
        finally:
            self._erase()  # also after a call that was cancelled, or failed when it was almost done

    def _delete(self, name: str, gone: list[VolumeRecord]) -> None:
        record = self.backend.records.volumes.get(name)
        if record is None or not record.is_trash:
            self.backend.delete(name)
        else:
            self.backend.recount(record)  # what its deletion releases
            try:
                self.backend.delete(name)
            except BaseException:
                if name in self.backend.records.volumes:
                    self.backend.discount(record)
                raise
        if record is not None:
            gone.append(record)

    # Trash

    def trash_fault(self) -> str:
        """Why deleted volumes cannot stay as trash, "" where they can."""
        return self.backend.trash_fault()

    async def trash(self) -> Sequence[PoolVolume]:
        """Deleted volumes that can be restored, the oldest first."""
        self.backend.check_open()
        return [self.backend.volume(record) for record in self.backend.records.trash()]

    @uses_disk
    async def discard(self, name: str) -> bool:
        """Let a volume become trash where its class says so and its disk has space for the mark. Idempotent.

        Returns whether it is trash now.

        Raises PreconditionError while it is in use.
        """
        async with self._locks.hold(name):
            record = self.backend.records.volumes.get(name)
            if record is None or record.is_trash or not record.undelete:
                return record is not None and record.is_trash
            if not await self._run(self._stays, record):
                return False
            await self._run(self.backend.mounts.check_unused, name)
            try:
                await self._run_and_commit(self._mark, record, str(self._clock.time()))
            except ExhaustedError:  # a full disk must not keep volumes from being deleted
                log.warning(
                    "deleted volume does not stay as trash: its disk is full pool=%s volume=%s", self.name, name
                )
                return False
            self._expiry.start()
            return True

    def _stays(self, record: VolumeRecord) -> bool:
        """Return whether a volume can become trash: its content is not to be erased, and its bytes would be free."""
        is_restorable = erase_of(record.volume().effective) == "none" and not self.trash_fault()
        return is_restorable and self.backend.frees(record)

    def _mark(self, record: VolumeRecord, when: str) -> None:
        marked = structs.replace(record, owner={**record.owner, TRASHED: when})
        self.backend.write(marked)
        self.backend.discount(marked)
        self.backend.prepare_eviction(marked)

    async def restore(self, name: str) -> PoolVolume:
        """Make a volume of trash; durable when this returns. One that is no trash is returned as it is.

        It is no longer ephemeral. Raises NotFoundError, ExhaustedError when its capacity is reserved already.
        """
        self.restoring[name] += 1
        try:
            while True:
                try:
                    return await self._restore_now(name)
                except DoesNotFitError:
                    raise
                except ExhaustedError:
                    # Without its lock: two that are restored at once may each be what the other needs.
                    if not await trash.evict_oldest(
                        self, self.backend.part_of(self.backend.records.get(name)), spare=True
                    ):
                        raise
        finally:
            self.restoring -= Counter((name,))  # also forgets the name

    @uses_disk
    async def _restore_now(self, name: str) -> PoolVolume:
        async with self._locks.hold(name):
            self.backend.check_open()
            record = self.backend.records.get(name)
            if record.is_trash:
                record = await self._run_and_commit(self._restore, record)
                self.on_capacity()
            return self.backend.volume(record)

    def _restore(self, record: VolumeRecord) -> VolumeRecord:
        capacity = reservation.left(self.backend.restorable(record), self._reserve({}))
        if record.size > capacity.free:
            left = f"pool {self.name!r} has {capacity.free} free bytes"
            raise DoesNotFitError(f"volume {record.name} cannot be restored: {left}")
        restored = structs.replace(
            record, owner={k: v for k, v in record.owner.items() if k not in (TRASHED, trash.EPHEMERAL)}
        )
        if restored.owner.get(STAGED) == "":  # somebody wants it: no sweep may delete it
            restored.owner[STAGED] = str(self._clock.time())
        self.backend.restore(record)
        try:
            self.backend.write(restored)
        except BaseException:
            self.backend.discount(record)
            raise
        return restored

    def _check_evicted(self, size: int, capacity: Capacity, reserve: reservation.Reserve) -> None:
        """Raises ExhaustedError while trash has bytes that a new volume needs."""
        if capacity.trash and size > capacity.free + reserve.now - capacity.trash:
            raise ExhaustedError(f"pool {self.name!r}: trash has the bytes")

    def _part_of(self, name: str) -> Callable[[], str]:
        return lambda: self.backend.part_of(self.backend.record(name))

    async def _evicting(self, part: Callable[[], str], work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the back end and commit; while trash has the capacity that lacks, delete the oldest and repeat.

        part: returns the part of the pool whose bytes it needs.
        """
        while True:
            try:
                return await self._run_and_commit(work, *args, **kwargs)
            except DoesNotFitError:
                raise
            except ExhaustedError:
                if not await trash.evict_oldest(self, part()):
                    raise

    @uses_disk
    async def evict(self, name: str) -> None:
        """Delete trash for good; one that was restored or is unknown stays as it is."""
        async with self._locks.hold(name):
            record = self.backend.records.volumes.get(name)
            if record is not None and record.is_trash:
                await self._delete_locked(name)

    def _erase(self) -> None:
        """Start the eraser, if there are jobs."""
        records = self.backend.erasures
        if records is None or not records.jobs():
            return
        if self._eraser is None:
            from tonnage.pools.core.eraser import RATE, Eraser

            rate = RATE if self._erase_rate is None else self._erase_rate
            self._eraser = Eraser(
                self.name, self.kind, records, self._threads, self._clock, rate=rate, freed=lambda: self.on_capacity()
            )
        self._eraser.wake()

    async def erasing(self) -> Sequence[Erasure]:
        """Contents that are being erased, sorted by volume name."""
        self.backend.check_open()
        return self._eraser.erasing() if self._eraser is not None else []

    async def get(self, name: str) -> PoolVolume:
        """Read one record. Raises NotFoundError."""
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
        return [*fault, *await self._watched(self._run(self.backend.problems, await self.erasing()))]

    async def capacity(self, *, fstype: str = "", block: bool = False) -> Capacity:
        """Capacity for volumes of that kind."""
        return await self.capacity_for({}, fstype=fstype, block=block)

    async def overall(self) -> Capacity:
        """Capacity of the whole pool, for any kind of volume; for people."""
        self.backend.check_open()
        try:
            return NO_CAPACITY if self.probe.hangs else await self._watched(self._run(self.backend.overall))
        except DiskHangsError:
            return NO_CAPACITY

    async def capacity_for(
        self, parameters: Mapping[str, str], *, fstype: str = "", block: bool = False, inline: bool = False
    ) -> Capacity:
        """Capacity for volumes of a class.

        inline: for inline volumes, which may use the inline capacity. Raises InvalidError, UnsupportedError for
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
            return await self._watched(self._run(self._capacity, fstype, parameters, block=block, inline=inline))
        except DiskHangsError:
            return NO_CAPACITY
        except HostError:
            await self.probe.run()
            if not self.probe.fault:
                raise
            return NO_CAPACITY

    def _capacity(self, fstype: str, parameters: Mapping[str, str], *, block: bool, inline: bool) -> Capacity:
        return self._left(fstype, parameters, self._reserve(parameters, inline=inline), block=block)

    def _left(
        self, fstype: str, parameters: Mapping[str, str], reserve: reservation.Reserve, *, block: bool
    ) -> Capacity:
        capacity = self.backend.capacity(fstype, parameters, block=block)
        return reservation.left(capacity, reserve, step=self.features.step)

    @uses_disk
    async def stage(self, name: str, path: Path, *, options: Sequence[str] = (), fills: bool = False) -> None:
        """Stage a volume at the directory path, as Mounts.stage. options: mount options, checked by the caller.

        fills: the driver itself fills it there; else the first stage is recorded, durable before anything is mounted.
        """
        async with self._locks.hold(name):
            record = self.backend.record(name)
            if record.owner.get(STAGED) == "" and not fills and not is_inline(record.owner):
                record = await self._mark_staged(record)
            await self._run(self.backend.mounts.stage, record, path, options)

    async def _mark_staged(self, record: VolumeRecord) -> VolumeRecord:
        """Record the first stage, in the write of stage() itself where that writes the record."""
        marked = structs.replace(record, owner={**record.owner, STAGED: str(self._clock.time())})
        if not self.backend.mounts.writes_record(record):
            await self._run_and_commit(self.backend.write, marked)
        return marked

    @uses_disk
    async def in_use(self, name: str) -> bool:
        """Whether a volume is mounted or attached, if only for a moment. Raises NotFoundError."""
        async with self._locks.hold(name):
            self.backend.record(name)
            try:
                await self._run(self.backend.mounts.check_unused, name)
            except PreconditionError:
                return True
            return False

    @gives_up
    async def unstage(self, name: str, path: Path) -> None:
        """Undo stage; success when nothing is there, also for an unknown volume."""
        async with self._locks.hold(name):
            await self._release(self.backend.mounts.unstage, name, path)

    @uses_disk
    async def publish(self, name: str, staging: Path, target: Path, *, readonly: bool = False) -> None:
        """Publish a staged volume at target, as Mounts.publish. The parent of target exists."""
        async with self._locks.hold(name):
            record = self.backend.record(name)
            await self._run(self.backend.mounts.publish, record, staging, target, readonly=readonly)

    @gives_up
    async def unpublish(self, name: str, target: Path) -> None:
        """Undo publish and remove target; success when nothing is there, also for an unknown volume."""
        async with self._locks.hold(name):
            await self._release(self.backend.mounts.unpublish, name, target)

    @uses_disk
    async def stats(self, name: str, path: Path) -> Stats:
        """Usage of the volume as mounted at path. Raises NotFoundError when the volume or path is not there."""
        return await self._release(self.backend.mounts.stats, self.backend.record(name), path)

    @uses_disk
    async def create_snapshot(self, name: str, volume: str, *, owner: Mapping[str, str] | None = None) -> Snapshot:
        """Create a snapshot; it is durable when this returns.

        It has the content of one moment, also while the volume is in use, and outlives the volume. An existing snapshot
        of that name and volume is returned.

        Raises NotFoundError (no such volume), AlreadyExistsError (the name is taken by a snapshot of another volume),
        ExhaustedError, PreconditionError (the volume is in use in a way that allows no consistent copy), InvalidError,
        UnsupportedError.
        """
        self._check_snapshots()
        check_name(name)
        async with self._locks.hold_all(f"{name}@", volume):
            self.backend.check_open()
            wanted = SnapshotRequest(name, volume, owner or {})
            return (await self._evicting(self._part_of(volume), self._snapshot, wanted)).snapshot()

    def _check_snapshots(self) -> None:
        if not self.features.snapshots:
            raise unsupported(self, "snapshots")

    def _snapshot(self, wanted: SnapshotRequest) -> VolumeRecord:
        if found := self.backend.find_snapshot(wanted.name):
            check_snapshot(found.snapshot(), wanted.volume)
            return found
        self.check_snapshots([wanted])
        return self.backend.snapshot(wanted)

    def check_snapshots(self, wanted: Sequence[SnapshotRequest]) -> None:
        """Check the capacity for new snapshots, all together. Blocking. Raises NotFoundError, ExhaustedError.

        Trash has to be gone whose bytes they need.
        """
        needs = [self.backend.snapshot_capacity(self.backend.record(one.volume)) for one in wanted]
        size, capacity = sum(size for size, _ in needs), min((left for _, left in needs), key=lambda left: left.free)
        reserve = self._reserve({})
        free = reservation.left(capacity, reserve)
        more = f" and {len(wanted) - 1} more" if wanted[1:] else ""
        reservation.check_fits(self.name, wanted[0].name + more, size, replace(free, largest=free.free), reserve)
        self.backend.check_snapshots([self.backend.record(one.volume) for one in wanted])
        self._check_evicted(size, capacity, reservation.NO_RESERVE)

    @asynccontextmanager
    async def hold(self, wanted: Sequence[SnapshotRequest]) -> AsyncIterator[None]:
        """Hold the locks of these snapshots and their volumes, for which trash makes way.

        Raises UnavailableError, UnsupportedError, NotFoundError, ExhaustedError.
        """
        self._check_snapshots()
        for one in wanted:
            check_name(one.name)
        async with self._locks.hold_all(*(key for one in wanted for key in (f"{one.name}@", one.volume))):
            await self._evicting(self._part_of(wanted[0].volume), self.check_snapshots, wanted)
            yield

    async def commit(self) -> None:
        """Make durable what was done to the back end without a method of this class."""
        if self._commit is not None:
            await self._commit.wait()

    @uses_disk
    async def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot; an unknown one is success. Volumes made from it stay."""
        self._check_snapshots()
        async with self._locks.hold(f"{name}@"):
            self.backend.check_open()
            try:
                await self._run_and_commit(self.backend.delete_snapshot, name)
            finally:
                self._erase()

    async def get_snapshot(self, name: str) -> Snapshot:
        """Read one snapshot's record. Raises NotFoundError, also where there are no snapshots."""
        if not self.features.snapshots:
            raise NotFoundError(f"pool {self.name!r} has no snapshot {name[:128]!r}")
        self.backend.check_open()
        return self.backend.snapshot_record(name).snapshot()

    async def list_snapshots(self) -> Sequence[Snapshot]:
        """All snapshots, sorted by name."""
        if not self.features.snapshots:
            return []
        self.backend.check_open()
        return [record.snapshot() for record in self.backend.all_snapshots()]

    @uses_disk
    async def expand(self, name: str, size: int, *, limit: int = 0) -> PoolVolume:
        """Expand a volume to at least `size` bytes; durable when this returns.

        The file system of a volume in use grows too. Where it cannot grow while mounted, the volume is `pending` and
        unfinished() says why. A volume that is not in use grows when it is staged. A volume that is large enough is
        returned unchanged. limit: maximum bytes, 0 for none. Raises NotFoundError, ExhaustedError, OutOfRangeError (can
        never fit, or the volume is larger than limit: no volume ever shrinks), InvalidError, UnsupportedError.
        """
        async with self._locks.hold(name):
            self.backend.check_open()
            record = await self._evicting(self._part_of(name), self._expand, name, size, limit)
            self._unfinished.pop(name, None)
            if record.pending:
                record = await self._run(self._grow_used, record)
            return self.backend.volume(record)

    def unfinished(self, name: str) -> str:
        """Why the file system of an expanded volume could not grow while mounted, "" if it could or is not in use."""
        return self._unfinished.get(name, "")

    def _grow_used(self, record: VolumeRecord) -> VolumeRecord:
        try:
            return self.backend.mounts.grow_used(record)
        except NotFoundError:
            return record  # not in use: stage() grows it
        except PreconditionError as why:
            self._unfinished[record.name] = str(why)
            return record

    def _expand(self, name: str, size: int, limit: int) -> VolumeRecord:
        record = self.backend.record(name)
        wanted = expanded_size(self, record.volume(), size, limit, step=self.backend.step_of(record))
        if wanted <= record.size:
            return record
        reserve = self._reserve(record.parameters)
        free = self._left(record.fstype, record.parameters, reserve, block=record.block)
        reservation.check_more(self.name, record.volume(), wanted, free, reserve)
        self.backend.check_expand(record, wanted)
        self._check_evicted(wanted - record.size, free, reserve)
        return self.backend.expand(name, wanted)

    @uses_disk
    async def grow(self, name: str, path: Path) -> PoolVolume:
        """Grow the file system at path (or the raw block device) to the expanded size, the node's part.

        Raises NotFoundError when the volume or path is not there, PreconditionError when it cannot grow while mounted
        (the next stage() grows it), UnsupportedError.
        """
        if not self.features.expansion:
            raise unsupported(self, "larger volumes")
        async with self._locks.hold(name):
            record = await self._run(self.backend.mounts.grow, self.backend.record(name), path)
            self._unfinished.pop(name, None)
            return self.backend.volume(record)

    @uses_disk
    async def modify(self, name: str, parameters: Mapping[str, str]) -> PoolVolume:
        """Change parameters of a volume; durable when this returns. An empty value restores the class's.

        The caller applies the change to a volume in use (I/O limits of its pods). Raises NotFoundError, InvalidError
        for a parameter that is not in `modifiable` or has a bad value.
        """
        async with self._locks.hold(name):
            self.backend.check_open()
            return self.backend.volume(await self._run_and_commit(self._modify, name, parameters))

    def _modify(self, name: str, parameters: Mapping[str, str]) -> VolumeRecord:
        record = self.backend.record(name)
        mutable = changed(self, record.volume(), parameters)
        check_undelete(self, record.owner, {**record.parameters, **mutable})
        self.backend.check({**record.parameters, **mutable}, record.fstype, block=record.block)
        return self.backend.modify(name, mutable) if mutable != record.mutable else record

    @uses_disk
    async def annotate(self, name: str, owner: Mapping[str, str]) -> PoolVolume:
        """Set keys of a volume's owner record; durable when this returns. Raises NotFoundError."""
        async with self._locks.hold(name):
            self.backend.check_open()
            return self.backend.volume(await self._run_and_commit(self._annotate, name, owner))

    def _annotate(self, name: str, owner: Mapping[str, str]) -> VolumeRecord:
        record = self.backend.record(name)
        changed = structs.replace(record, owner={**record.owner, **owner})
        if changed != record:
            self.backend.write(changed)
        return changed

    @uses_disk
    async def device(self, name: str) -> tuple[int, int] | None:
        """Major and minor number of the volume's own block device, None while it has none.

        Raises NotFoundError, and UnsupportedError where volumes have no device of their own.
        """
        record = self.backend.record(name)
        if IOPS in self.features.refused:  # limits need a device
            raise unsupported(self, "block devices of its volumes")
        return await self._run(self.backend.mounts.device, record)

    def home(self, volume: PoolVolume) -> Path | None:
        """Where the pool keeps a volume mounted independent of its use, None for nowhere."""
        return self.backend.home(volume)

    @uses_disk
    async def volume_limit(self) -> int:
        """Maximum number of volumes in this pool (loop, mapper or namespace limits), 0 for unlimited."""
        return await self._run(self.backend.limit)

    async def places(self) -> Mapping[str, Path]:
        """Where the volumes in use are mounted, one path each, for condition_in()."""
        return await self._release(self.backend.mounts.places, list(self.backend.records.volumes.values()))

    async def condition(self, name: str, path: Path | None = None) -> VolumeCondition:
        """Condition of a volume, and of its mount at path if one is given.

        Raises NotFoundError for an unknown volume. Problems of a known one are returned, not raised.
        """
        try:
            return await self._condition_of(name, path)
        except DiskHangsError as why:
            return VolumeCondition(abnormal=True, message=f"volume {name}: {why}")

    @uses_disk
    async def _condition_of(self, name: str, path: Path | None) -> VolumeCondition:
        return await self._release(self._condition, name, path)

    async def condition_in(self, places: Mapping[str, Path], name: str) -> VolumeCondition:
        """As condition(), with the mount that places() found; one that was unmounted since then is no problem."""
        place = places.get(name)
        found = await self.condition(name, place)
        if place is not None and found.abnormal and not await self._release(mount.is_mount, place):
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
            why = self.unfinished(name) or "the volume is well; its file system is still to be grown"
            return VolumeCondition(abnormal=False, message=why)
        return WELL


def check_undelete(pool: Pool, owner: Mapping[str, str], parameters: Mapping[str, str]) -> None:
    """Raises InvalidError where a volume is to stay after its deletion, and cannot."""
    if not owner.get(UNDELETE):
        return
    if fault := pool.trash_fault():
        raise InvalidError(
            f"parameter {UNDELETE}: pool {pool.name!r} ({pool.kind}) cannot have it: {fault}; "
            "name another pool with parameter pool, or remove the parameter"
        )
    if (method := erase_of(parameters)) != "none":
        raise InvalidError(f"parameter {UNDELETE} retains what is deleted, erase={method} erases it: choose one")


def check_existing(volume: PoolVolume, request: VolumeRequest, want: RequestedVolume) -> None:
    """Check that an existing volume fits the request. Raises AlreadyExistsError with the difference.

    A volume larger than requested fits up to the limit (CSI, CreateVolume). The owner is not compared.
    """
    differs = []
    if volume.size < request.size or (request.limit and volume.size > request.limit):
        differs.append(f"its size is {volume.size}, requested {request.size} to {request.limit or 'any'} bytes")
    if volume.block != request.block:
        differs.append("it is raw block" if volume.block else "it is a file system")
    elif want.fstype and volume.fstype != want.fstype:
        differs.append(f"its file system is {volume.fstype}, requested {want.fstype}")
    if dict(volume.parameters) != dict(request.parameters):
        differs.append(f"its parameters are {dict(volume.parameters)}, requested {dict(request.parameters)}")
    if volume.source != request.source:
        differs.append(f"it was made from {volume.source or 'nothing'}, requested {request.source or 'an empty one'}")
    if differs:
        raise AlreadyExistsError(f"volume {request.name} exists and {'; '.join(differs)}")


def completed_request(request: VolumeRequest, origin: PoolVolume | Snapshot) -> VolumeRequest:
    """The request for a copy of origin, completed by origin's properties.

    Raises InvalidError when it is of another kind, OutOfRangeError when the size is below origin's.
    """
    if request.block != origin.block:
        is_ = "raw block" if origin.block else "a file system"
        raise InvalidError(f"volume {request.name}: its source, {request.source}, is {is_}: ask for the same")
    if request.fstype not in ("", origin.fstype):
        raise InvalidError(
            f"volume {request.name}: its source, {request.source}, has the file system {origin.fstype}, asked is"
            f" {request.fstype[:40]}: content is copied as it is, ask for {origin.fstype}"
        )
    if request.size < origin.size:
        raise OutOfRangeError(
            f"volume {request.name}: size {request.size} is less than that of its source, {request.source}:"
            f" ask for {origin.size} bytes or more"
        )
    return replace(request, fstype=origin.fstype)


def check_snapshot(snapshot: Snapshot, volume: str) -> None:
    """Raises AlreadyExistsError unless an existing snapshot is of that volume."""
    if snapshot.volume != volume:
        raise AlreadyExistsError(
            f"snapshot {snapshot.name} exists and is of volume {snapshot.volume}, requested {volume}"
        )


def expanded_size(pool: Pool, volume: PoolVolume, size: int, limit: int, *, step: int = 1) -> int:
    """The size of a volume after expand(), its present size when that is large enough.

    Raises InvalidError, UnsupportedError, and OutOfRangeError when it is or would be larger than limit: no volume
    shrinks.
    """
    if not pool.features.expansion:
        raise unsupported(pool, "larger volumes")
    if not 0 <= size <= reservation.LARGEST or not 0 <= limit <= reservation.LARGEST:
        raise InvalidError(f"volume {volume.name}: size {size}, limit {limit}: want 0 to {reservation.LARGEST} bytes")
    if limit and volume.size > limit:
        raise OutOfRangeError(
            f"volume {volume.name} has {volume.size} bytes, requested at most {limit}: a volume is never made smaller,"
            " its content could be cut off; make a new one and copy"
        )
    wanted = max(volume.size, -(-size // step) * step)
    if limit and wanted > limit:
        raise OutOfRangeError(f"volume {volume.name}: {wanted} bytes (whole blocks) are more than the limit {limit}")
    return wanted


def locks_of_source(request: VolumeRequest) -> tuple[str, ...]:
    """The name to lock for the source of a copy; a snapshot's has a character that no volume name has."""
    if request.source is None:
        return ()
    return (f"{request.source.snapshot}@",) if request.source.snapshot else (request.source.volume,)
