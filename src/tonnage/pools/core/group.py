"""Snapshots of several volumes, of one or more pools, at one moment: all or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tonnage.errors import AlreadyExistsError, NotFoundError, TonnageError
from tonnage.pools.base.contract import Snapshot
from tonnage.pools.core.pool import Pool


@dataclass(frozen=True)
class MemberRequest:
    """A snapshot to take: its name, of which volume of which pool, and its owner record."""

    pool: Pool
    name: str
    volume: str
    owner: Mapping[str, str] = field(default_factory=dict)


async def take(members: Sequence[MemberRequest]) -> list[Snapshot]:
    """Take all snapshots, or none; they are durable when this returns.

    Raises as Pool.create_snapshot, and AlreadyExistsError when one of them exists.
    """
    for member in members:
        await _check_new(member)
    made: list[Snapshot] = []
    try:
        for member in members:
            snapshot = await member.pool.create_snapshot(member.name, member.volume, owner=member.owner)
            made.append(snapshot)
    except BaseException:
        for member in members[: len(made)]:
            with suppress(TonnageError):  # the caller finds and deletes what stays
                await member.pool.delete_snapshot(member.name)
        raise
    return made


async def _check_new(member: MemberRequest) -> None:
    with suppress(NotFoundError):
        found = await member.pool.get_snapshot(member.name)
        raise AlreadyExistsError(f"snapshot {found.name} exists and is of volume {found.volume}")
