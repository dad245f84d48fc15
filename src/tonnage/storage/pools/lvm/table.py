"""The table of an LVM pool: its logical volumes in the group, their tags, devices and reservations.

Thread-safe; counts change under the account's lock. It makes and removes nothing by itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid5

from msgspec import structs

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import ExhaustedError, HostError, TonnageError, UnavailableError, host_errors
from tonnage.host import dm, files, lvm
from tonnage.host.lvm import LogicalVolume, VolumeGroup
from tonnage.storage.pools.base.contract import PoolLimits
from tonnage.storage.pools.base.record import Records, VolumeRecord
from tonnage.storage.pools.lvm import layout as lvm_layout
from tonnage.storage.pools.lvm import tags
from tonnage.storage.pools.lvm.accounting import MAX_AGE, Account
from tonnage.storage.pools.lvm.layout import LINEAR, THIN, Layout
from tonnage.storage.pools.lvm.tags import TagEntry, TagKind
from tonnage.storage.pools.lvm.thin_pool import LvmLimits, ThinWatch

log = logging.getLogger(__name__)


LOCKS = Path("/run/tonnage")
_REMEDY = "put its tags back as they were (lvm lvchange), or save its content and remove it by hand (lvm lvremove)"


class LvmTable:
    """Records in the tags of logical volumes.

    `records`: volumes. `entries`: ours that are not volumes, by LVM's names.
    """

    def __init__(self, pool: str, group: str, bounds: LvmLimits, *, clock: Clock) -> None:
        self.records = Records(f"volume group {group}", most=bounds.size, remedy=_REMEDY, key=self.lv)
        self.group = group
        self.bounds = bounds
        self.entries: dict[str, TagEntry] = {}
        self.pool = pool
        self.clock = clock
        self.account = Account(
            group, thin=bounds.thin, ratio=bounds.ratio, on_read=self._learn, monotonic=clock.monotonic
        )
        self.thin = ThinWatch(self.account, bounds)
        self._making: dict[str, int] = {}  # what is being made or extended -> bytes
        self.held = -1
        """Descriptor of the group's lock, -1 while the pool is not open."""

    def rebound(self, bounds: PoolLimits) -> None:
        """Set new limits."""
        self.records.most = bounds.size
        self.bounds = structs.replace(self.bounds, size=bounds.size, ratio=bounds.ratio)
        self.account.change_ratio(bounds.ratio)

    def lock(self) -> None:
        """Lock the group for this process. Idempotent. Raises: UnavailableError when another one has it, HostError."""
        if self.held >= 0:
            return
        with host_errors(f"cannot make a lock in {LOCKS}"):
            LOCKS.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(LOCKS / f"lvm-{self.group}.lock", flags, 0o600)
        if not files.try_lock(fd):
            os.close(fd)
            raise UnavailableError(
                f"volume group {self.group} is in use by another pool: name another group, or stop that one first"
            )
        self.held = fd

    def unlock(self) -> None:
        """Release the group, and forget what was read. Idempotent."""
        self.account.forget()
        if self.held >= 0:
            os.close(self.held)
        self.held = -1

    def frozen_mark(self, name: str) -> Path:
        """The mark file that exists while a volume's file system is frozen."""
        return LOCKS / f"lvm-{self.group}-{name}.frozen"

    def check_open(self) -> None:
        """Raises: UnavailableError unless the pool is open."""
        if self.held < 0:
            raise self.records.closed()

    def _learn(self, group: VolumeGroup) -> None:
        """Read the records of a report."""
        records: dict[str, VolumeRecord] = {}
        entries: dict[str, TagEntry] = {}
        damaged: dict[str, str] = {}
        for lv, volume in group.volumes.items():
            if not tags.is_ours(volume.tags):
                continue
            try:
                entry = tags.found_at(self.group, lv, tags.decode(volume.tags))
                if entry.kind is TagKind.SNAPSHOT and not (volume.origin or volume.pool or entry.record.state == "new"):
                    # lvcreate and lvremove bind and part a thick snapshot and its volume in a step of their own. One
                    # that is parted has no content any more, or not yet: what a kill left, to go at the next open.
                    entry = replace(entry, kind=TagKind.SCRATCH)
            except ValueError as failure:
                log.error("record is damaged, volume left alone volume=%s/%s error=%s", self.group, lv, failure)
                damaged[lv] = str(failure)
                continue
            if entry.kind is not TagKind.VOLUME:
                entries[lv] = entry
            else:
                records[entry.record.name] = entry.record
        self.records.volumes, self.entries, self.records.damaged = records, entries, damaged
        self.recount()
        if group.missing:
            log.error("volume group misses disks, nothing is made in it group=%s missing=%d", group.name, group.missing)

    def recount(self) -> None:
        """Count again what is reserved, which trash is not. The account's lock is held."""
        entries = sum(self._reserved(lv, entry) for lv, entry in self.entries.items())
        damaged = sum(self.account.volumes[lv].size for lv in self.records.damaged if lv in self.account.volumes)
        volumes = sum(record.size for record in self.records.volumes.values() if not record.is_trash)
        self.records.used = volumes + entries + damaged + sum(self._making.values())

    def _reserved(self, lv: str, entry: TagEntry) -> int:
        """Reserved bytes of one that is not a volume: a thick snapshot counts its bytes for changes."""
        if entry.kind is TagKind.SCRATCH or (entry.kind is TagKind.COPY and entry.record.name in self._making):
            return 0
        found = self.account.volumes.get(lv)
        return min(entry.record.size, found.size) if found and found.is_thick_snapshot else entry.record.size

    @contextmanager
    def counting(self, key: str, size: int) -> Iterator[None]:
        """Count bytes while something is made; keep() makes that permanent. Raises: ExhaustedError."""
        with self.account.lock:
            if size > 0 and self.records.most and self.records.used + size > self.records.most:
                raise ExhaustedError(f"{size} bytes for {key} do not fit any more into pool {self.pool!r}")
            self._making[key] = size
            self.recount()
        try:
            yield
        finally:
            with self.account.lock:
                self._making.pop(key, None)
                self.recount()

    def keep(self, lv: str, entry: TagEntry, *, key: str = "") -> None:
        """Record what a command has made. key: the key that it was counted by."""
        with self.account.lock:
            self._making.pop(key, None)
            self.entries.pop(lv, None)
            if entry.kind is TagKind.VOLUME:
                self.records.volumes[entry.record.name] = entry.record
            else:
                self.entries[lv] = entry
            self.recount()

    def lv(self, name: str) -> str:
        """The logical volume of a volume."""
        return tags.volume_name(self.group, name)

    def layout(self, parameters: Mapping[str, str]) -> Layout:
        """The layout for class parameters in this pool. Raises: InvalidError, UnsupportedError."""
        return lvm_layout.read(parameters, thin_pool=self.bounds.thin, pool=self.pool)

    def layout_of(self, lv: str, record: VolumeRecord) -> Layout:
        """The layout of an existing logical volume: the pool's options may have changed since it was made."""
        found = self.account.volumes.get(lv)
        if found is not None and found.pool:
            return THIN
        if found is not None and found.is_thick_snapshot:
            return LINEAR
        where = {key: value for key, value in record.parameters.items() if key in ("type", "stripes", "mirrors")}
        return lvm_layout.read(where, thin_pool="", pool=self.pool)

    def trash(self) -> dict[str, Layout]:
        """The logical volumes of trash, with their layouts."""
        return {(lv := self.lv(record.name)): self.layout_of(lv, record) for record in self.records.trash()}

    def extent(self) -> int:
        """Bytes of an extent. Raises: UnavailableError."""
        self.check_open()
        return self.account.fresh().extent

    def write(self, record: VolumeRecord) -> None:
        """One lvchange with what differs."""
        before = TagEntry(TagKind.VOLUME, self.records.volumes[record.name])
        after = TagEntry(TagKind.VOLUME, record)
        self.retag(self.lv(record.name), before, after)
        self.keep(self.lv(record.name), after)

    def retag(self, lv: str, before: TagEntry, after: TagEntry) -> None:
        """Replace the record in the tags of a logical volume. Raises: HostError."""
        found = self.account.find(lv)
        if words := tags.change(found.tags if found else tags.encode(before), after):
            lvm.lvm("lvchange", "--quiet", *words, f"{self.group}/{lv}")
            self.account.retagged(lv, tags.encode(after))

    def new_uuid(self, name: str, created: float) -> UUID:
        """A UUID for a volume's file system; it also distinguishes two volumes of one name."""
        return uuid5(NAMESPACE_URL, f"lvm:{self.group}/{name}/{created!r}")

    def size_of(self, lv: str) -> int:
        """Bytes of a logical volume, 0 for none. Raises: UnavailableError, HostError."""
        found = self.account.find(lv)
        return found.size if found else 0

    def device_of(self, record: VolumeRecord) -> str | None:
        """The device of a volume, None while it is not active."""
        return lvm.device(self.group, self.lv(record.name))

    def activate(self, lv: str) -> str:
        """Activate a logical volume if needed; return its device. Raises: HostError."""
        if (path := lvm.device(self.group, lv)) is not None:
            return path
        # --yes: after a restart of the machine, LVM asks whether the origin of a thick snapshot may be activated too.
        lvm.lvm("lvchange", "--yes", "--quiet", "--activate", "y", "--ignoreactivationskip", f"{self.group}/{lv}")
        if (path := lvm.device(self.group, lv)) is None:
            raise HostError(f"{self.group}/{lv} was activated and has no device node: is /dev the machine's own here?")
        return path

    def deactivate(self, lv: str) -> None:
        """Deactivate a logical volume. Raises: PreconditionError while it is in use, HostError."""
        lvm.lvm("lvchange", "--quiet", "--activate", "n", f"{self.group}/{lv}")


def refresh(table: LvmTable) -> None:
    """Resume suspended devices of a group, and reload those that are smaller than LVM says. Idempotent.

    LVM's locks make it wait for a command that still works. A failure is
    only logged, as callers continue without it.
    """
    group = table.group
    with table.account.lock:
        names = [table.lv(name) for name in table.records.volumes]
        sizes = {lv: table.account.volumes[lv].size for lv in names if lv in table.account.volumes}
    held = lvm.suspended(group)
    behind = [lv for lv, size in sizes.items() if 0 < _size(group, lv) < size]
    try:
        if held:
            log.warning("devices that an unfinished command left suspended, resumed group=%s devices=%s", group, held)
            lvm.lvm("vgchange", "--quiet", "--refresh", group)
        elif behind:
            log.warning("devices that are smaller than LVM says, reloaded group=%s volumes=%s", group, behind)
            lvm.lvm("lvchange", "--quiet", "--refresh", *(f"{group}/{lv}" for lv in behind))
    except TonnageError as failure:
        log.error("devices cannot be brought up to date group=%s error=%s", group, failure)


def _size(group: str, lv: str) -> int:
    """Bytes of the device of a logical volume, 0 for none."""
    if (path := lvm.device(group, lv)) is None:
        return 0
    try:
        number = os.stat(path).st_rdev
        return int(Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/size").read_text()) * 512
    except (OSError, ValueError):
        return 0


_LOST = ("Invalid", "Overflow", "Merge failed")
"""The kernel's status of an overflowed thick snapshot (dm-snap.c, snapshot_status)."""


def volume_fault(table: LvmTable, record: VolumeRecord) -> str:
    """The problem of a volume, "" for none. Starts no program while the last report is recent."""
    try:
        group = table.account.fresh(max_age=MAX_AGE)
        found = table.account.find(table.lv(record.name))
        if found is None:
            return "its logical volume is gone, and its content with it"
        if not group.writable:
            return f"volume group {table.group} is read-only: lvm vgchange it"
        return (
            _fault_of_disks(table, found)
            or (table.thin.fault() if found.pool else "")
            or _fault_of_snapshots(table, found)
        )
    except TonnageError as failure:
        return f"it cannot be looked at: {failure}"


def _fault_of_disks(table: LvmTable, found: LogicalVolume) -> str:
    lv = f"{table.group}/{found.name}"
    if (state := _raid_state(table, found.name)) and "D" in state:
        return (
            f"only {len(state) - state.count('D')} of its {len(state)} copies are there, a disk has failed: replace it,"
            f" then lvm lvconvert --repair {lv}"
        )
    if "partial" in found.health:
        return f"a disk that it needs is missing from volume group {table.group}: bring it back (lvm pvs)"
    return f"LVM says of {lv}: {found.health}" if found.health else ""


def _raid_state(table: LvmTable, name: str) -> str:
    """The state of each copy of a raid1 volume: A is healthy, a is being copied to, D is dead. "" for others."""
    mapper = lvm.mapper_name(table.group, name)
    for device in (mapper, f"{mapper}-real"):  # the latter under thick snapshots
        status = dm.status(device)
        if status is not None and status[0] == "raid" and len(words := status[1].split()) > 2:
            return words[2]
    return ""


def _fault_of_snapshots(table: LvmTable, found: LogicalVolume) -> str:
    lost = [
        entry.record.name
        for snapshot in table.account.thick_snapshots(found.name)
        if (entry := table.entries.get(snapshot.name)) is not None and is_lost_snapshot(table.group, snapshot.name)
    ]
    if not lost:
        return ""
    return (
        f"its content is well, its snapshot {', '.join(sorted(lost))} is lost: more was overwritten than cowSize keeps;"
        " delete it, and make later ones of a class with a larger cowSize"
    )


def is_lost_snapshot(group: str, lv: str) -> bool:
    """Whether a thick snapshot has overflowed and can no longer be read. Raises: HostError."""
    status = dm.status(lvm.mapper_name(group, lv))
    return status is not None and status[0] == "snapshot" and status[1].startswith(_LOST)
