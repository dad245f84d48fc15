"""The status of a pool at one moment, for metrics, `tonnage pools` and `tonnage volumes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tonnage.base.errors import TonnageError
from tonnage.storage.pools.base.contract import Capacity, Erasure, PoolVolume, Snapshot, is_inline
from tonnage.storage.pools.core.pool import Pool


class PoolStatus(msgspec.Struct, frozen=True, omit_defaults=True, rename={"capacity": "room"}):
    """Status of a pool, in JSON under former names: a running driver may be older than the command line.

    problem: why the pool cannot be read, "" when it can; the rest is empty then. abnormal: conditions of unhealthy
    volumes, by name. lacks: problems of a pool that can be read. inline: bytes of the inline capacity, those of
    existing inline volumes included. unwritable: why the pool cannot write, and so offers no capacity.
    """

    pool: str
    kind: str
    problem: str = ""
    capacity: Capacity | None = None
    volumes: Sequence[PoolVolume] = ()
    snapshots: Sequence[Snapshot] = ()
    erasing: Sequence[Erasure] = ()
    abnormal: Mapping[str, str] = {}
    lacks: Sequence[str] = ()
    inline: int = 0
    trash: Sequence[PoolVolume] = ()
    unwritable: str = ""

    @property
    def inline_reserved(self) -> int:
        """Bytes that inline volumes have reserved."""
        return sum(volume.size for volume in self.volumes if is_inline(volume.owner))

    @property
    def reserved(self) -> int:
        """Bytes that volumes and snapshots have reserved."""
        return sum(volume.size for volume in self.volumes) + sum(snapshot.size for snapshot in self.snapshots)

    @property
    def erasing_bytes(self) -> int:
        """Bytes that become free when all is erased."""
        return sum(erasure.reserved for erasure in self.erasing)


async def read(pool: Pool) -> PoolStatus:
    """Read the status of a pool and each of its volumes. Problems are returned, not raised."""
    try:
        volumes = await pool.list()
        return PoolStatus(
            pool.name,
            pool.kind,
            capacity=await pool.overall(),
            volumes=volumes,
            snapshots=await pool.snapshots.list(),
            erasing=await pool.erasing(),
            abnormal=await _abnormal(pool, volumes),
            lacks=await pool.problems(),
            inline=pool.backend.inline,
            trash=await pool.trash.list(),
            unwritable=pool.probe.fault,
        )
    except TonnageError as failure:
        return PoolStatus(pool.name, pool.kind, problem=str(failure))


async def _abnormal(pool: Pool, volumes: Sequence[PoolVolume]) -> dict[str, str]:
    found = {name: f"its record is damaged: {fault}" for name, fault in (await pool.damaged()).items()}
    places = await pool.places()
    for volume in volumes:
        try:
            condition = await pool.condition_in(places, volume.name)
        except TonnageError as failure:  # deleted meanwhile, or the pool went
            found[volume.name] = str(failure)
            continue
        if condition.abnormal:
            found[volume.name] = condition.message
    return found
