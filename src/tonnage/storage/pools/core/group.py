"""Snapshots of several volumes, of one or more pools, at one moment: all or none.

Mounted file systems are frozen one after the other, and thawed when all snapshots are made. A write that was
acknowledged before the first is frozen is in its volume's snapshot, one that began after the last is in none. A writer
that waits for one volume before it writes to the next, as a database for its log, finds them as after a power cut.

What cannot be frozen is still only at the moment of its own snapshot. One such volume may be among frozen ones, and
the subvolumes of one btrfs count as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass

from tonnage.base.errors import (
    AlreadyExistsError,
    DoesNotFitError,
    ExhaustedError,
    NotFoundError,
    PreconditionError,
    TonnageError,
)
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.pools.base.contract import Snapshot, SnapshotRequest, Stillness
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.base.threads import Threads
from tonnage.storage.pools.core.moment import Moment
from tonnage.storage.pools.core.pool import Pool

SECONDS = 10.0
"""For which file systems are frozen at most."""
MOST_COPIED = 2**30
"""Bytes that a group copies while writers wait, of volumes whose snapshots share no blocks with them."""


@dataclass(frozen=True)
class MemberRequest:
    """A snapshot to take in a pool."""

    pool: Pool
    wanted: SnapshotRequest

    @property
    def id(self) -> str:
        """The volume's id."""
        return f"{self.pool.name}/{self.wanted.volume}"

    @property
    def record(self) -> VolumeRecord:
        """The volume's record. Raises: NotFoundError."""
        return self.pool.backend.record(self.wanted.volume)


async def take(
    members: Sequence[MemberRequest], *, completed: Mapping[str, str] | None = None, seconds: float = SECONDS
) -> list[Snapshot]:
    """Take all snapshots, or none; they are durable when this returns. File systems are frozen in this order.

    completed: what the owner record of the first gets when all were taken in time. Without it the snapshots are no
    group: a kill may leave some, or some that were taken too late.

    Raises: as PoolSnapshots.create, AlreadyExistsError when one of them exists, PreconditionError for volumes that
    cannot be held still together, HostError when they had to be frozen for longer than `seconds`.
    """
    for member in members:
        await _check_new(member)
    while True:
        try:
            await _take(members, completed or {}, seconds)
            break
        except DoesNotFitError:
            raise
        except ExhaustedError:  # a snapshot may take more than it reserves
            if not await _make_way(members):
                raise
    return [await member.pool.snapshots.get(member.wanted.name) for member in members]


async def _make_way(members: Sequence[MemberRequest]) -> bool:
    """Delete the oldest trash of one of the pools; whether there was any."""
    for member in {member.pool.name: member for member in members}.values():
        backend = member.pool.backend
        if await member.pool.trash.evict_oldest(backend.part_of(backend.record(member.wanted.volume))):
            return True
    return False


async def _check_new(member: MemberRequest) -> None:
    with suppress(NotFoundError):
        found = await member.pool.snapshots.get(member.wanted.name)
        raise AlreadyExistsError(f"snapshot {found.name} exists and is of volume {found.volume}")


async def _take(members: Sequence[MemberRequest], completed: Mapping[str, str], seconds: float) -> None:
    pools = [pool for _, pool in sorted({member.pool.name: member.pool for member in members}.items())]
    for pool in pools:
        pool.work.check_stuck()
    work = _take_held(pools, members, completed, seconds)
    for pool in pools:  # the disk of any may hang
        work = pool.work.watched(work)
    await work


async def _take_held(
    pools: Sequence[Pool], members: Sequence[MemberRequest], completed: Mapping[str, str], seconds: float
) -> None:
    async with AsyncExitStack() as held:
        for pool in pools:
            await held.enter_async_context(pool.snapshots.hold(_of(pool, members)))
        for member in members:
            await _check_new(member)
        try:
            await _take_and_commit(pools, members, completed, seconds)
        except BaseException:
            for member in members:  # still held: a caller that has given up may have repeated the call
                with suppress(TonnageError):  # the caller finds and deletes what stays
                    await member.pool.snapshots.delete_held(member.wanted.name)
            raise


async def _take_and_commit(
    pools: Sequence[Pool], members: Sequence[MemberRequest], completed: Mapping[str, str], seconds: float
) -> None:
    if all(pool.backend.is_instant for pool in pools):
        _take_now(members, completed, seconds)
    else:
        threads = Threads("group", 1)
        try:
            await threads.run(_take_now, members, completed, seconds)
        finally:
            threads.close()
    for pool in pools:
        await pool.work.commit()


def _of(pool: Pool, members: Sequence[MemberRequest]) -> list[SnapshotRequest]:
    return [member.wanted for member in members if member.pool is pool]


def _take_now(members: Sequence[MemberRequest], completed: Mapping[str, str], seconds: float) -> None:
    """Take all snapshots in this thread, which nothing else delays, and record that they are complete."""
    for pool in {member.pool.name: member.pool for member in members}.values():
        pool.snapshots.check(_of(pool, members))
    by_kind: dict[Stillness, list[MemberRequest]] = {kind: [] for kind in Stillness}
    for member in members:
        by_kind[member.pool.backend.stillness(member.record)].append(member)
    _check_together(by_kind)
    _check_copied([*by_kind[Stillness.FROZEN], *by_kind[Stillness.ALONE]])
    for member in by_kind[Stillness.UNUSED]:
        member.pool.backend.snapshot(member.wanted)
    moment = Moment(seconds)
    with ExitStack() as opened:
        freezes = []
        for member in by_kind[Stillness.FROZEN]:
            freezes.append(member.pool.backend.freeze(member.record))
            opened.callback(freezes[-1].end)
        for freeze in freezes:
            freeze.sync()
        moment.begin()
        try:
            for freeze in freezes:
                moment.freeze(freeze)
            _take_still(by_kind, moment)
        finally:
            moment.end()
    moment.reach("")  # raises if it thawed before the last was made
    if completed:
        first = members[0]
        first.pool.backend.own_snapshot(first.wanted.name, {**first.wanted.owner, **completed})


def _take_still(by_kind: dict[Stillness, list[MemberRequest]], moment: Moment) -> None:
    """Take snapshots of the volumes in use, while those that can be are frozen."""
    if together := by_kind[Stillness.TOGETHER]:
        moment.reach(together[0].wanted.volume)
        together[0].pool.backend.snapshot_together([member.wanted for member in together], lambda: moment.is_late)
    for kind in (Stillness.ALONE, Stillness.FROZEN):
        for member in by_kind[kind]:
            moment.reach(member.wanted.volume)
            member.pool.backend.snapshot(member.wanted, is_frozen=kind is Stillness.FROZEN)


def _check_together(by_kind: dict[Stillness, list[MemberRequest]]) -> None:
    """Raises: PreconditionError when two of them are still only at the moment of their own snapshots."""
    first_of_pool = {member.pool.name: member for member in reversed(by_kind[Stillness.TOGETHER])}
    whys = {member.id: _why(member.record) for member in by_kind[Stillness.ALONE]}
    whys |= {member.id: "is a subvolume, which cannot be frozen" for member in first_of_pool.values()}
    if len(whys) < 2:
        return
    parts = "; ".join(f"{name} {why}" for name, why in whys.items())
    raise PreconditionError(
        f"volumes in use that cannot be held still together: {parts}. One such volume is possible in a group, and"
        " several of one btrfs pool: take separate snapshots, or stop a pod"
    )


def _check_copied(members: Sequence[MemberRequest]) -> None:
    """Raises: PreconditionError when writers would wait until more than MOST_COPIED is copied."""
    copied = {member.id: member.pool.backend.copied_bytes(member.record) for member in members}
    if sum(copied.values()) > MOST_COPIED:
        listed = ", ".join(f"{name} {from_bytes(count)}" for name, count in sorted(copied.items()) if count)
        raise PreconditionError(
            f"volumes in use whose snapshots share no blocks with them: {listed}. Their writers would wait until all is"
            f" copied, and a group copies {from_bytes(MOST_COPIED)} at most: stop a pod, or put the pool on xfs or"
            " btrfs and use no class that overwrites content"
        )


def _why(record: VolumeRecord) -> str:
    if record.block:
        return "is raw block"
    return f"has {record.fstype} that this kernel suspends only unfrozen, before Linux 6.8"
