"""Group snapshots as their members record them: the pools are the only database.

Each member's owner record has the group's id, and the number and digest of all source ids; that of one member gets the
latter last, when all were taken in time. A group exists while all its members do, and say so. What a kill left of
one is no group: the next CreateVolumeGroupSnapshot of that name deletes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tonnage.base.errors import UnavailableError
from tonnage.csi.driver.driver import MAX_VOLUME, OWNER_DRIVER, Driver, id_of, safe_name
from tonnage.storage.pools.base.contract import Snapshot
from tonnage.storage.pools.core.pool import Pool

GROUP = "group"
SOURCES = "groupSources"
"""Keys of a member's owner record: the group's id; the number of its sources and the digest of their ids."""
_DIGITS = 12


@dataclass(frozen=True)
class GroupMember:
    """A member of a group snapshot."""

    pool: Pool
    snapshot: Snapshot

    @property
    def id(self) -> str:
        """The snapshot's id."""
        return id_of(self.pool.name, self.snapshot.name)

    @property
    def sources(self) -> str:
        """The number of the group's sources and the digest of their ids."""
        return self.snapshot.owner.get(SOURCES, "")


def group_of(owner: Mapping[str, str]) -> str:
    """The id of the group that a snapshot is a member of, "" for none."""
    return owner.get(GROUP, "")


def member_owner(group: str, volume_ids: Iterable[str]) -> dict[str, str]:
    """What the owner record of each member says about its group."""
    ids = sorted(volume_ids)
    digest = hashlib.sha256("\n".join(ids).encode()).hexdigest()[:32]
    return {GROUP: group, SOURCES: f"{len(ids)}:{digest}"}


def member_name(group: str, volume_id: str) -> str:
    """The name of the snapshot of a volume in a group."""
    digest = hashlib.sha256(f"{group}\n{volume_id}".encode()).hexdigest()[:_DIGITS]
    return safe_name(f"{group[: MAX_VOLUME - _DIGITS - 1]}-{digest}")


async def members(driver: Driver, group: str) -> list[GroupMember]:
    """The members of a group that there are, sorted by id. Pools that cannot be read are left out."""
    found = []
    for pool in driver.pools.values():
        try:
            snapshots = await pool.snapshots.list()
        except UnavailableError:
            continue
        found += [
            GroupMember(pool, snapshot)
            for snapshot in snapshots
            if group_of(snapshot.owner) == group and snapshot.owner.get(OWNER_DRIVER, driver.name) == driver.name
        ]
    return sorted(found, key=lambda member: member.id)


def is_complete(found: Sequence[GroupMember]) -> bool:
    """Whether these members are all of one group, which exists then."""
    count, _, _ = found[0].sources.partition(":") if found else ("", "", "")
    return count == str(len(found)) and len({member.sources for member in found}) == 1
