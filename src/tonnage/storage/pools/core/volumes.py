"""Volumes: makes, changes and deletes the volumes of a pool.

A creation checks all that is against it before trash makes way. Where its caller has given up on a disk that hangs,
what it makes later is deleted, unless the caller repeats it; by the next process where this one was killed before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from msgspec import structs

from tonnage.base.errors import (
    AlreadyExistsError,
    ExhaustedError,
    HostError,
    InUseError,
    InvalidError,
    OutOfRangeError,
    TonnageError,
    UnavailableError,
)
from tonnage.storage.pools.base import reservation
from tonnage.storage.pools.base.contract import Capacity, PoolVolume, Snapshot, VolumeRequest, is_inline
from tonnage.storage.pools.base.given_up import GivenUp
from tonnage.storage.pools.base.parameters import changed, check_modifiable, source_of
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.backend import NO_CAPACITY, RequestedVolume, check_content
from tonnage.storage.pools.core.deletion import Deletion
from tonnage.storage.pools.core.probe import DiskHangsError
from tonnage.storage.pools.core.trash import PoolTrash
from tonnage.storage.pools.core.work import PoolWork, uses_disk

log = logging.getLogger(__name__)
_OLDER = "its content was used, though its record says that it never was: the record may be of an earlier moment"
_PAUSES = (0.01, 0.05, 0.2)  # seconds: the kernel may free a loop device a moment after its last umount


class Volumes:
    """The volumes of one pool. freed: called when bytes become free without a call."""

    def __init__(self, work: PoolWork, deletion: Deletion, trash: PoolTrash, freed: Callable[[], None]) -> None:
        self.work = work
        self._backend, self._deletion, self._trash, self._freed = work.backend, deletion, trash, freed
        self._unwanted: set[str] = set()
        """Volumes that may still be made, and whose callers know that they are not."""
        self.given_up = GivenUp(work.backend.name)
        """The same for the next process, in files."""

    async def create(self, request: VolumeRequest) -> PoolVolume:
        """As Pool.create()."""
        self._backend.check_open()
        check_modifiable(self._backend, request.mutable)
        if self.work.probe.fault and request.name not in self._backend.records.volumes:
            await self.work.probe.retry()  # it may have been for a moment, as without a free descriptor
            self.work.probe.check()
        self._unwanted.discard(request.name)
        was_there = self._may_be_there(request.name)
        try:
            self.work.check_stuck()
            volume = await self.work.watched(self._create_wanted(request))
        except DiskHangsError as why:
            self._unwanted.add(request.name)
            if not was_there:
                await self.given_up.add(request.name)
            self.work.probe.check()
            raise ExhaustedError(f"volume {request.name} is not made: {why}") from None  # another node may have one
        except HostError:
            if request.name not in self._backend.records.damaged:
                await self.work.probe.run()
                self.work.probe.check()
            raise
        if request.name in self.given_up.noted:
            await self.given_up.remove(request.name)  # before the answer: from then on somebody has it
        return volume

    def _may_be_there(self, name: str) -> bool:
        """Whether a volume may be one that was handed over before."""
        return name in self._backend.records.volumes or name in self._backend.records.damaged

    async def _create_wanted(self, request: VolumeRequest) -> PoolVolume:
        """Create a volume, and delete it again if its caller has given up meanwhile and has not repeated it."""
        async with self.work.locks.hold_all(request.name, *locks_of_source(request)):
            was_there = request.name in self._backend.records.volumes
            try:
                return await self._create_locked(request)
            finally:
                if request.name in self._unwanted:
                    self._unwanted.discard(request.name)
                    if not was_there:
                        await self._undo(request.name)
                        await self._forget(request.name)

    async def _undo(self, name: str) -> None:
        pool, record = self._backend.name, self._backend.records.volumes.get(name)
        if record is None or record.use:
            return
        try:
            await self._deletion.delete(name)
        except TonnageError as failure:  # a sweep finds it
            log.warning("volume of a call that was given up stays pool=%s volume=%s error=%s", pool, name, failure)
        else:
            log.info("deleted what=volume name=%s pool=%s proof=its call was given up, never staged", name, pool)
            self._freed()

    async def _forget(self, name: str) -> None:
        """Remove the note of a volume that is gone, or stays for a person to decide."""
        try:
            await self.given_up.remove(name)
        except (HostError, UnavailableError) as failure:
            log.warning(
                "note of a call that gave up stays pool=%s volume=%s error=%s", self._backend.name, name, failure
            )

    async def delete_given_up(self) -> None:
        """Delete what calls of an earlier process made after they had given up, where it did not come to that.

        The notes are the proof that no one ever got these volumes. Idempotent.
        """
        pool = self._backend.name
        try:
            names = await self.given_up.names()
        except (HostError, UnavailableError) as failure:
            log.warning("notes of calls that gave up are not read pool=%s error=%s", pool, failure)
            return
        for name in names:
            is_there = name in self._backend.records.volumes
            try:
                stays = await self.delete_unused(name, copies=False)
            except TonnageError as failure:
                log.warning("volume of a call that was given up stays pool=%s volume=%s error=%s", pool, name, failure)
                continue
            if stays:
                log.warning("volume of a call that was given up stays pool=%s volume=%s reason=%s", pool, name, stays)
            elif is_there:
                log.info("deleted what=volume name=%s pool=%s proof=its call was given up, never staged", name, pool)
            await self._forget(name)

    async def _create_locked(self, request: VolumeRequest) -> PoolVolume:
        try:
            if (old := self._backend.records.volumes.get(request.name)) is not None and old.is_trash:
                await self.work.run(self._check_new, request)
                await self._deletion.delete(request.name)
            record = await self._trash.evicting(lambda: self._backend.part(request.parameters), self._create, request)
        finally:
            if request.source:
                self._deletion.erase()  # a copy may have left something
        return self._backend.volume(record)

    def _create(self, request: VolumeRequest) -> VolumeRecord:
        backend = self._backend
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
        self._backend.check({**request.parameters, **given}, request.fstype, block=request.block)
        return self._backend.want(request)

    def _completed(self, request: VolumeRequest) -> tuple[VolumeRequest, RequestedVolume, VolumeRecord | None]:
        """Check the request for a new volume; return it completed, its size, and the source that is to be copied."""
        origin = None
        if request.source and self._backend.features.clones:
            origin = self._backend.origin(request.source)
            request = completed_request(request, origin.volume())
        want = self._want(request)
        check_content(request.parameters, want.fstype, origin, block=request.block)
        return request, want, origin

    def _check_new(self, request: VolumeRequest) -> None:
        """Check whether a volume can be made once trash has made way. Raises: as create()."""
        self._check_make(*self._completed(request))

    def _make(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None) -> VolumeRecord:
        """Create a volume. Trash makes way at last, when nothing else is against it: the call is repeated then."""
        free, reserve = self._check_make(request, want, origin)
        self._backend.check_evicted(want.size, free, reserve)
        return self._backend.create(request, want, origin)

    def _check_make(
        self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None
    ) -> tuple[Capacity, reservation.Reserve]:
        """Check all that a new volume needs but for trash; return the capacity and what it leaves of that."""
        free, reserve = NO_CAPACITY, reservation.NO_RESERVE
        if not self._backend.features.whole_disks:
            reserve = self._backend.reserve(request.parameters, inline=is_inline(request.owner))
            free = self._backend.left(reserve, want.fstype, request.parameters, block=request.block)
            reservation.check_fits(self._backend.name, request.name, want.size, free, reserve)
        self._backend.records.check_damaged(request.name)
        if origin is None and (folder := source_of(request.parameters)):
            from tonnage.storage.pools.fs import populate

            populate.check(folder, want.size)
        self._backend.check_create(request, want, origin)
        return free, reserve

    async def delete(self, name: str, *, wait: bool = True) -> None:
        """As Pool.delete()."""
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
        """As Pool.delete_unused()."""
        async with self.work.locks.hold(name):
            self._backend.check_open()
            record = self._backend.records.volumes.get(name)
            if record is None:
                self._backend.records.check_damaged(name)
                return ""
            why = record.use or ("" if copies else record.content)
            if why or (not record.content and await self.work.run(self._backend.shows_use, record)):
                return f"volume {name} stays: {why or _OLDER}"
            if not ask:
                await self._deletion.delete(name)
            return ""

    @uses_disk
    async def _delete_now(self, name: str) -> None:
        async with self.work.locks.hold(name):
            await self._deletion.delete(name)

    @uses_disk
    async def modify(self, name: str, parameters: Mapping[str, str]) -> PoolVolume:
        """As Pool.modify()."""
        async with self.work.locks.hold(name):
            self._backend.check_open()
            return self._backend.volume(await self.work.run_and_commit(self._modify, name, parameters))

    def _modify(self, name: str, parameters: Mapping[str, str]) -> VolumeRecord:
        record = self._backend.record(name)
        mutable = changed(self._backend, record.volume(), parameters)
        self._trash.check_undelete(record.owner, {**record.parameters, **mutable})
        self._backend.check({**record.parameters, **mutable}, record.fstype, block=record.block)
        return self._backend.modify(name, mutable) if mutable != record.mutable else record

    @uses_disk
    async def annotate(self, name: str, owner: Mapping[str, str]) -> PoolVolume:
        """As Pool.annotate()."""
        async with self.work.locks.hold(name):
            self._backend.check_open()
            return self._backend.volume(await self.work.run_and_commit(self._annotate, name, owner))

    def _annotate(self, name: str, owner: Mapping[str, str]) -> VolumeRecord:
        record = self._backend.record(name)
        changed = structs.replace(record, owner={**record.owner, **owner})
        if changed != record:
            self._backend.write(changed)
        return changed


def check_existing(volume: PoolVolume, request: VolumeRequest, want: RequestedVolume) -> None:
    """Check that an existing volume fits the request. Raises: AlreadyExistsError with the difference.

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

    Raises: InvalidError when it is of another kind, OutOfRangeError when the size is below origin's.
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


def locks_of_source(request: VolumeRequest) -> tuple[str, ...]:
    """The name to lock for the source of a copy; a snapshot's has a character that no volume name has."""
    if request.source is None:
        return ()
    return (f"{request.source.snapshot}@",) if request.source.snapshot else (request.source.volume,)
