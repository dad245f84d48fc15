"""Trash: deleted volumes that stay for a while, count as free, and are evicted as soon as their bytes are needed.

The mark is in the volume's own record, so a kill leaves either a volume or trash. The oldest trash of the pool is
evicted first, then that of pools on the same disk. When its time is over, as its class says, a timer deletes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import ParamSpec, TypeVar

from msgspec import structs

from tonnage.base.aio.tasks import Background
from tonnage.base.errors import DoesNotFitError, ExhaustedError, InvalidError, TonnageError
from tonnage.base.observe import metrics
from tonnage.storage.pools.base import reservation
from tonnage.storage.pools.base.contract import PoolVolume
from tonnage.storage.pools.base.parameters import erase_of
from tonnage.storage.pools.base.record import STAGED, TRASHED, UNDELETE, VolumeRecord
from tonnage.storage.pools.base.reservation import SharedDisk
from tonnage.storage.pools.core.deletion import Deletion
from tonnage.storage.pools.core.work import PoolWork, uses_disk

log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")
EPHEMERAL = "tonnage.dev/ephemeral"
"""Key of a volume's owner record that a restored volume loses: no pod ends it."""
_LONGEST, _RETRY = 86400.0, 60.0  # seconds


class PoolTrash:
    """The trash of one pool. restored: called when a volume has taken its bytes back."""

    def __init__(self, work: PoolWork, deletion: Deletion, restored: Callable[[], None]) -> None:
        self.work = work
        self.name, self.kind = work.backend.name, work.backend.features.kind
        self.restoring: Counter[str] = Counter()
        """What is being restored; nothing else is restored at its cost."""
        self._backend, self._deletion, self._restored = work.backend, deletion, restored
        self._expiry = Expiry(work, self.evict)
        self._disk: SharedDisk | None = None

    def start(self) -> None:
        """Offer the trash to pools on the same disk, and wait for its end, where there is any.

        Idempotent; called for each new trash.
        """
        if not self._backend.records.trash():
            return
        self._disk = self._backend.disk
        if self._disk is not None:
            self._disk.trash.add(self)
        self._expiry.start()

    async def close(self) -> None:
        """Stop both; the trash stays. Idempotent."""
        if self._disk is not None:
            self._disk.trash.discard(self)
        await self._expiry.close()

    def fault(self) -> str:
        """Why deleted volumes cannot stay as trash, "" where they can."""
        return self._backend.trash_fault()

    def check_undelete(self, owner: Mapping[str, str], parameters: Mapping[str, str]) -> None:
        """Raises: InvalidError where a volume is to stay after its deletion, and cannot."""
        if not owner.get(UNDELETE):
            return
        if fault := self.fault():
            raise InvalidError(
                f"parameter {UNDELETE}: pool {self.name!r} ({self.kind}) cannot have it:"
                f" {fault}; name another pool with parameter pool, or remove the parameter"
            )
        if (method := erase_of(parameters)) != "none":
            raise InvalidError(f"parameter {UNDELETE} retains what is deleted, erase={method} erases it: choose one")

    async def list(self) -> Sequence[PoolVolume]:
        """Deleted volumes that can be restored, the oldest first."""
        self._backend.check_open()
        return [self._backend.volume(record) for record in self._backend.records.trash()]

    @uses_disk
    async def discard(self, name: str) -> bool:
        """Let a volume become trash where its class says so and its disk has space for the mark. Idempotent.

        Returns whether it is trash now.

        Raises: PreconditionError while it is in use.
        """
        async with self.work.locks.hold(name):
            record = self._backend.records.volumes.get(name)
            if record is None or record.is_trash or not record.undelete:
                return record is not None and record.is_trash
            if not await self.work.run(self._stays, record):
                return False
            await self.work.run(self._backend.mounts.check_unused, name)
            try:
                await self.work.run_and_commit(self._mark, record, str(self.work.clock.time()))
            except ExhaustedError:  # a full disk must not keep volumes from being deleted
                log.warning(
                    "deleted volume does not stay as trash: its disk is full pool=%s volume=%s", self.name, name
                )
                return False
            self.start()
            return True

    def _stays(self, record: VolumeRecord) -> bool:
        """Return whether a volume can become trash: its content is not to be erased, and its bytes would be free."""
        is_restorable = erase_of(record.volume().effective) == "none" and not self.fault()
        return is_restorable and self._backend.frees(record)

    def _mark(self, record: VolumeRecord, when: str) -> None:
        marked = structs.replace(record, owner={**record.owner, TRASHED: when})
        self._backend.write(marked)
        self._backend.discount(marked)
        self._backend.prepare_eviction(marked)

    async def restore(self, name: str) -> PoolVolume:
        """Make a volume of trash; durable when this returns. One that is no trash is returned as it is.

        It is no longer ephemeral. Raises: NotFoundError, ExhaustedError when its capacity is reserved already.
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
                    part = self._backend.part_of(self._backend.records.get(name))
                    if not await self.evict_oldest(part, spare=True):
                        raise
        finally:
            self.restoring -= Counter((name,))  # also forgets the name

    @uses_disk
    async def _restore_now(self, name: str) -> PoolVolume:
        async with self.work.locks.hold(name):
            self._backend.check_open()
            record = self._backend.records.get(name)
            if record.is_trash:
                record = await self.work.run_and_commit(self._restore, record)
                self._restored()
            return self._backend.volume(record)

    def _restore(self, record: VolumeRecord) -> VolumeRecord:
        capacity = reservation.left(self._backend.restorable(record), self._backend.reserve({}))
        if record.size > capacity.free:
            left = f"pool {self.name!r} has {capacity.free} free bytes"
            raise DoesNotFitError(f"volume {record.name} cannot be restored: {left}")
        restored = structs.replace(
            record, owner={k: v for k, v in record.owner.items() if k not in (TRASHED, EPHEMERAL)}
        )
        if restored.owner.get(STAGED) == "":  # somebody wants it: no sweep may delete it
            restored.owner[STAGED] = str(self.work.clock.time())
        self._backend.restore(record)
        try:
            self._backend.write(restored)
        except BaseException:
            self._backend.discount(record)
            raise
        return restored

    def part_of(self, name: str) -> Callable[[], str]:
        """What returns the part of the pool that a volume has its bytes from, for evicting()."""
        return lambda: self._backend.part_of(self._backend.record(name))

    async def evicting(self, part: Callable[[], str], work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the back end and commit; while trash has the capacity that lacks, delete the oldest and repeat.

        part: returns the part of the pool whose bytes it needs.
        """
        while True:
            try:
                return await self.work.run_and_commit(work, *args, **kwargs)
            except DoesNotFitError:
                raise
            except ExhaustedError:
                if not await self.evict_oldest(part()):
                    raise

    async def evict_oldest(self, part: str, *, spare: bool = False) -> bool:
        """Delete the oldest trash of the pool, else of one that shares its disk; whether there was any.

        part: of the pool, whose bytes are needed (Backend.part): trash that has others goes only when no more of these
        is left. spare: what is being restored stays. One that cannot be deleted is passed over. Raises: as Pool.delete,
        when none can be deleted.
        """
        disk = self._backend.disk
        others = [other for other in (disk.trash if disk is not None else ()) if other is not self]
        found = [(False, r.trashed, r.name, other) for other in others for r in other.evictable(spare=spare)]
        own = [(self._backend.part_of(r) != part, r.trashed, r.name, self) for r in self.evictable(spare=spare)]
        failed: TonnageError | None = None
        for *_, name, victim in [*sorted(own, key=lambda one: one[:3]), *sorted(found, key=lambda one: one[:3])]:
            try:
                await victim.evict(name)
            except TonnageError as failure:
                log.warning("trash not evicted pool=%s volume=%s error=%s", victim.name, name, failure)
                failed = failure
            else:
                metrics.TRASH_EVICTED.labels(victim.name, victim.kind).inc()
                proof = f"pool {self.name} needs its bytes"
                log.info("deleted what=trash name=%s pool=%s proof=%s", name, victim.name, proof)
                return True
        if failed is not None:
            raise failed
        return False

    def evictable(self, *, spare: bool) -> Sequence[VolumeRecord]:
        """What may be evicted. spare: what is being restored stays."""
        return [record for record in self._backend.records.trash() if not (spare and self.restoring[record.name])]

    @uses_disk
    async def evict(self, name: str) -> None:
        """Delete trash for good; one that was restored or is unknown stays as it is."""
        async with self.work.locks.hold(name):
            record = self._backend.records.volumes.get(name)
            if record is not None and record.is_trash:
                await self._deletion.delete(name)


class Expiry:
    """Evicts the trash of one pool when its time is over."""

    def __init__(self, work: PoolWork, evict: Callable[[str], Awaitable[None]]) -> None:
        self._work, self._evict = work, evict
        self._background = Background(f"trash {work.backend.name}")
        self._task: asyncio.Task[None] | None = None
        self._more = asyncio.Event()

    def start(self) -> None:
        """Wait for the next end. Idempotent; called for each new trash."""
        self._more.set()
        if self._task is None or self._task.done():
            self._task = self._background.start(self._run())

    async def close(self) -> None:
        """Stop waiting; the trash stays. Idempotent."""
        await self._background.close()

    async def _run(self) -> None:
        pool, records = self._work.backend.name, self._work.backend.records
        while trash := records.trash():
            now = self._work.clock.time()
            left = {record.name: record.trashed + record.undelete - now for record in trash}
            failed = False
            for name in [name for name, seconds in left.items() if seconds <= 0]:
                try:
                    await self._evict(name)
                except TonnageError as failure:
                    failed = True
                    log.warning("trash not deleted volume=%s retry=%.0fs error=%s", name, _RETRY, failure)
                else:
                    log.info("deleted what=trash name=%s pool=%s proof=its time is over", name, pool)
            waiting = [seconds for seconds in left.values() if seconds > 0]
            with suppress(TimeoutError):  # the time may also be that of new trash
                async with asyncio.timeout(min([*waiting, _RETRY if failed else _LONGEST])):
                    await self._more.wait()
            self._more.clear()
