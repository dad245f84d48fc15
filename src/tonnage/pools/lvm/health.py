"""Health of a logical volume, from the kernel where it knows, else from LVM's last report. Blocking."""

from __future__ import annotations

from tonnage.errors import TonnageError
from tonnage.host import dm, lvm
from tonnage.host.lvm import LogicalVolume
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.lvm.accounting import MAX_AGE
from tonnage.pools.lvm.table import LvmTable

_LOST = ("Invalid", "Overflow", "Merge failed")
"""The kernel's status of an overflowed thick snapshot (dm-snap.c, snapshot_status)."""


def fault(table: LvmTable, record: VolumeRecord) -> str:
    """The problem of a volume, "" for none. Starts no program while the last report is recent."""
    try:
        group = table.account.fresh(max_age=MAX_AGE)
        found = table.account.find(table.lv(record.name))
        if found is None:
            return "its logical volume is gone, and its content with it"
        if not group.writable:
            return f"volume group {table.group} is read-only: lvm vgchange it"
        return _of_volume(table, found) or (table.thin.fault() if found.pool else "") or _of_snapshots(table, found)
    except TonnageError as failure:
        return f"it cannot be looked at: {failure}"


def _of_volume(table: LvmTable, found: LogicalVolume) -> str:
    lv = f"{table.group}/{found.name}"
    if (state := _raid(table, found.name)) and "D" in state:
        return (
            f"only {len(state) - state.count('D')} of its {len(state)} copies are there, a disk has failed: replace it,"
            f" then lvm lvconvert --repair {lv}"
        )
    if "partial" in found.health:
        return f"a disk that it needs is missing from volume group {table.group}: bring it back (lvm pvs)"
    return f"LVM says of {lv}: {found.health}" if found.health else ""


def _raid(table: LvmTable, name: str) -> str:
    """The state of each copy of a raid1 volume: A is healthy, a is being copied to, D is dead. "" for others."""
    mapper = lvm.mapper_name(table.group, name)
    for device in (mapper, f"{mapper}-real"):  # the latter under thick snapshots
        status = dm.status(device)
        if status is not None and status[0] == "raid" and len(words := status[1].split()) > 2:
            return words[2]
    return ""


def _of_snapshots(table: LvmTable, found: LogicalVolume) -> str:
    lost = [
        entry.record.name
        for snapshot in table.account.thick_snapshots(found.name)
        if (entry := table.entries.get(snapshot.name)) is not None and is_lost(table.group, snapshot.name)
    ]
    if not lost:
        return ""
    return (
        f"its content is well, its snapshot {', '.join(sorted(lost))} is lost: more was overwritten than cowSize keeps;"
        " delete it, and make later ones of a class with a larger cowSize"
    )


def is_lost(group: str, lv: str) -> bool:
    """Whether a thick snapshot has overflowed and can no longer be read. Raises HostError."""
    status = dm.status(lvm.mapper_name(group, lv))
    return status is not None and status[0] == "snapshot" and status[1].startswith(_LOST)
