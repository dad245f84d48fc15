"""PoolSnapshots: the snapshots of a pool: one by one, and what a group of them needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from tonnage.base.errors import AlreadyExistsError, NotFoundError
from tonnage.storage.pools.base import reservation
from tonnage.storage.pools.base.contract import Snapshot, SnapshotRequest, check_name, unsupported
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.deletion import Deletion
from tonnage.storage.pools.core.trash import PoolTrash
from tonnage.storage.pools.core.work import PoolWork, uses_disk


class PoolSnapshots:
    """The snapshots of one pool. All methods are idempotent, and raise UnavailableError, HostError."""

    def __init__(self, work: PoolWork, deletion: Deletion, trash: PoolTrash) -> None:
        self.work = work
        self._backend, self._deletion, self._trash = work.backend, deletion, trash

    @uses_disk
    async def create(self, name: str, volume: str, *, owner: Mapping[str, str] | None = None) -> Snapshot:
        """Create a snapshot; it is durable when this returns.

        It has the content of one moment, also while the volume is in use, and outlives the volume. An existing snapshot
        of that name and volume is returned.

        Raises: NotFoundError (no such volume), AlreadyExistsError (the name is taken by a snapshot of another volume),
        ExhaustedError, PreconditionError (the volume is in use in a way that allows no consistent copy), InvalidError,
        UnsupportedError.
        """
        self._check_offered()
        check_name(name)
        async with self.work.locks.hold_all(f"{name}@", volume):
            self._backend.check_open()
            wanted = SnapshotRequest(name, volume, owner or {})
            return (await self._trash.evicting(self._trash.part_of(volume), self._create, wanted)).snapshot()

    @uses_disk
    async def make_way(self, name: str) -> None:
        """Free the name of a snapshot that no one has, from content without a record.

        A former version that was stopped while it made the snapshot left such content. As it may be a snapshot whose
        record was lost, it stays under another name, and is reported. For callers who know that the snapshot was never
        handed over.
        """
        self._check_offered()
        async with self.work.locks.hold(f"{name}@"):
            self._backend.check_open()
            await self.work.run(self._backend.make_way, name)

    def _check_offered(self) -> None:
        if not self._backend.features.snapshots:
            raise unsupported(self._backend, "snapshots")

    def _create(self, wanted: SnapshotRequest) -> VolumeRecord:
        if found := self._backend.find_snapshot(wanted.name):
            check_snapshot(found.snapshot(), wanted.volume)
            return found
        self.check([wanted])
        return self._backend.snapshot(wanted)

    def check(self, wanted: Sequence[SnapshotRequest]) -> None:
        """Check the capacity for new snapshots, all together. Blocking. Raises: NotFoundError, ExhaustedError.

        Trash has to be gone whose bytes they need.
        """
        needs = [self._backend.snapshot_capacity(self._backend.record(one.volume)) for one in wanted]
        size, capacity = sum(size for size, _ in needs), min((left for _, left in needs), key=lambda left: left.free)
        reserve = self._backend.reserve({})
        free = reservation.left(capacity, reserve)
        more = f" and {len(wanted) - 1} more" if wanted[1:] else ""
        largest = replace(free, largest=free.free)
        reservation.check_fits(self._backend.name, wanted[0].name + more, size, largest, reserve)
        self._backend.check_snapshots([self._backend.record(one.volume) for one in wanted])
        self._backend.check_evicted(size, capacity, reservation.NO_RESERVE)

    @asynccontextmanager
    async def hold(self, wanted: Sequence[SnapshotRequest]) -> AsyncIterator[None]:
        """Hold the locks of these snapshots and their volumes, for which trash makes way.

        Raises: UnavailableError, UnsupportedError, NotFoundError, ExhaustedError.
        """
        self._check_offered()
        for one in wanted:
            check_name(one.name)
        async with self.work.locks.hold_all(*(key for one in wanted for key in (f"{one.name}@", one.volume))):
            await self._trash.evicting(self._trash.part_of(wanted[0].volume), self.check, wanted)
            yield

    @uses_disk
    async def delete(self, name: str) -> None:
        """Delete a snapshot; an unknown one is success. Volumes made from it stay."""
        self._check_offered()
        async with self.work.locks.hold(f"{name}@"):
            self._backend.check_open()
            await self.delete_held(name)

    async def delete_held(self, name: str) -> None:
        """As delete(), of a snapshot that the caller holds."""
        try:
            await self.work.run_and_commit(self._backend.delete_snapshot, name)
        finally:
            self._deletion.erase()

    async def get(self, name: str) -> Snapshot:
        """Read one snapshot's record. Raises: NotFoundError, also where there are no snapshots."""
        if not self._backend.features.snapshots:
            raise NotFoundError(f"pool {self._backend.name!r} has no snapshot {name[:128]!r}")
        self._backend.check_open()
        return self._backend.snapshot_record(name).snapshot()

    async def list(self) -> Sequence[Snapshot]:
        """All snapshots, sorted by name."""
        if not self._backend.features.snapshots:
            return []
        self._backend.check_open()
        return [record.snapshot() for record in self._backend.all_snapshots()]


def check_snapshot(snapshot: Snapshot, volume: str) -> None:
    """Raises: AlreadyExistsError unless an existing snapshot is of that volume."""
    if snapshot.volume != volume:
        raise AlreadyExistsError(
            f"snapshot {snapshot.name} exists and is of volume {snapshot.volume}, requested {volume}"
        )
