"""The LVM back end: each volume is a logical volume of one volume group, with its record in its tags.

Thick by default: linear, or striped and raid1 by class parameters; thin where the pool names a thin pool. The group may
hold volumes of others: they count and are left alone. The logical volume is longer than the volume by the overhead of
its file system, so the requested size is usable in full. Needs root and lvm2, and the tools of the file systems.

Class parameters: `thin`, `type` (linear, striped, raid1), `stripes`, `mirrors`, `cowSize` (bytes for changes in a
snapshot of a thick volume), `erase`, and those of all pools. Snapshots and clones of thin volumes share blocks. A
volume made from a thick one or its snapshot is a full copy. Raw block sizes are whole extents.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.errors import OutOfRangeError, TonnageError, UnavailableError
from tonnage.host import dm, loop, lvm
from tonnage.host.lvm import check_group
from tonnage.storage.pools.base.contract import (
    Capacity,
    Erasure,
    Features,
    PoolLimits,
    SnapshotRequest,
    Stillness,
    VolumeRequest,
    looks_like_volume,
)
from tonnage.storage.pools.base.parameters import ERASE, FORMATTED, LIMITS, check_rejected
from tonnage.storage.pools.base.record import FORMAT, VolumeRecord, new_record, upgraded
from tonnage.storage.pools.base.reservation import LARGEST
from tonnage.storage.pools.core.backend import Backend, RequestedVolume
from tonnage.storage.pools.core.device_mounts import DeviceMounts
from tonnage.storage.pools.fs import block_device, online
from tonnage.storage.pools.fs.formats import BLOCK, FORMATS, Format, form_for
from tonnage.storage.pools.lvm import layout as lvm_layout
from tonnage.storage.pools.lvm import tags as lvm_tags
from tonnage.storage.pools.lvm.accounting import MAX_AGE
from tonnage.storage.pools.lvm.layout import LINEAR, THIN, Layout
from tonnage.storage.pools.lvm.snapshots import LvmSnapshots
from tonnage.storage.pools.lvm.table import LvmTable, refresh, volume_fault
from tonnage.storage.pools.lvm.tags import TagEntry, TagKind
from tonnage.storage.pools.lvm.thin_pool import LvmLimits
from tonnage.storage.pools.lvm.volumes import LogicalVolumes

log = logging.getLogger(__name__)
FEATURES = Features(
    "lvm",
    fstypes=tuple(FORMATS),
    parameters=FORMATTED | LIMITS | lvm_layout.PARAMETERS,
    modifiable=LIMITS | {ERASE},
    snapshots=True,
    clones=True,
    expansion=True,
)


class LvmBackend(Backend):
    """Logical volumes of a group.

    prepare: called at each open, before the group is locked. dax: volumes are mounted with `-o dax` (files are mapped
    without a copy), except mirrors.
    """

    def __init__(
        self,
        pool: str,
        group: str,
        bounds: LvmLimits | None = None,
        *,
        features: Features = FEATURES,
        prepare: Callable[[], None] = lambda: None,
        dax: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.features = features
        self.table = LvmTable(pool, check_group(group), bounds or LvmLimits(), clock=clock or RealClock())
        self.records = self.table.records
        self.volumes = LogicalVolumes(self.table)
        self.snapshots = LvmSnapshots(self.table, self.volumes)
        self.erasures: LogicalVolumes = self.volumes
        self.mounts = DeviceMounts(self)
        self._prepare = prepare
        self._dax = dax

    def load(self) -> None:
        self._prepare()
        self.table.lock()
        group = self.table.account.read()
        if not group.writable:
            raise UnavailableError(f"{self.records.where} is read-only or exported: lvm vgchange or vgimport it")
        recovery = LvmRecovery(self.table, self.volumes)
        recovery.thaw()
        refresh(self.table)
        recovery.thaw()  # those whose devices were suspended
        self.table.thin.open(group)
        recovery.run()

    def devices(self) -> Sequence[Path]:
        return self.table.account.devices

    def close(self) -> None:
        self.table.unlock()

    @property
    def is_open(self) -> bool:
        return self.table.held >= 0

    def rebound(self, bounds: PoolLimits) -> None:
        self.table.rebound(bounds)

    # Capacity

    def check(self, parameters: Mapping[str, str], fstype: str, *, block: bool) -> None:
        check_rejected(self, parameters)
        self.table.layout(parameters)

    def want(self, request: VolumeRequest) -> RequestedVolume:
        want = super().want(request)
        if request.name not in self.records.volumes:
            self._check_disks(self.table.layout(request.parameters))
        return want

    def grain(self, fstype: str, parameters: Mapping[str, str]) -> tuple[int, int]:
        if form := form_for(fstype, parameters):
            return form.least, BLOCK
        step = self.table.extent() * self.table.layout(parameters).stripes
        return step, step

    def _check_disks(self, layout: Layout) -> None:
        """Raises: OutOfRangeError when the group has too few disks for a layout."""
        if layout.disks > (has := len(self.table.account.fresh().disks)):
            raise OutOfRangeError(
                f"a volume with {layout.stripes} stripes and {layout.mirrors} mirrors can never fit: it needs"
                f" {layout.disks} disks, {self.records.where} has {has}"
            )

    def step_of(self, record: VolumeRecord) -> int:
        if not record.block:
            return BLOCK
        return self.table.extent() * self.table.layout_of(self.table.lv(record.name), record).stripes

    def capacity(self, fstype: str, parameters: Mapping[str, str], *, block: bool) -> Capacity:
        self.check_open()
        return self._capacity(
            form_for(fstype, parameters), self.table.layout(parameters), self.grain(fstype, parameters)
        )

    def _capacity(self, form: Format | None, layout: Layout, grain: tuple[int, int]) -> Capacity:
        """Capacity for volumes of a layout with that file system, None for raw block."""
        with self.table.account.lock:
            now, later = self._bytes(layout)
            free = self._free(form, later)
            return self.capacity_with(free, grain, trash=free - self._free(form, now, held=self.records.trash_bytes()))

    def _bytes(self, layout: Layout) -> tuple[int, int]:
        """The bytes of the largest logical volume, now and once all trash is evicted. The account's lock is held.

        Trash that fills its thin pool makes way when what others may write there leaves it below that limit.
        """
        account, thin = self.table.account, self.table.thin
        now = account.free_bytes(layout, max_age=MAX_AGE)
        trash = self.table.trash()
        later = account.free_bytes(layout, without=trash)
        if not layout.thin or not thin.is_full():
            return now, later
        return 0, later if later > now and thin.empties(account.thin_bytes(trash)) else 0

    def _free(self, form: Format | None, capacity: int, *, held: int = 0) -> int:
        """Free bytes for volumes with that file system, from those of logical volumes. held: bytes that trash has."""
        free, enough = self.needs(form)
        free = max(0, free - held)
        return min(free, form.usable(capacity) if form else capacity) if capacity < enough else free

    def reread(self) -> bool:
        with self.table.account.lock:
            before = self.table.account.reads
            self.table.account.fresh(max_age=1.0)
            return self.table.account.reads != before

    def limit(self) -> int:
        """As the group was given one (vgchange --logicalvolume), without the volumes of others."""
        with self.table.account.lock:
            group = self.table.account.fresh()
            ours = sum(lvm_tags.is_ours(found.tags) for found in group.volumes.values())
        return max(1, group.most - (group.count - ours)) if group.most else 0

    # Volumes

    def check_create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> None:
        self.volumes.check_name(request.name)
        if origin is not None and request.source is not None and origin.state != "new":
            self.snapshots.check_source(origin, request.source)

    def check_expand(self, record: VolumeRecord, size: int) -> None:
        self.volumes.check_expand(record)

    def create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> VolumeRecord:
        """Create a volume. A source that was never used has no content: its copy is a new volume."""
        created = self.table.clock.time()
        uuid = self.table.new_uuid(request.name, created)
        record = new_record(request, want.size, want.fstype, uuid=uuid, created=created, origin=origin)
        if origin is not None and request.source is not None and origin.state != "new":
            return self.snapshots.fill(record, origin, request.source)
        return self.volumes.create(record)

    def delete(self, name: str) -> None:
        self.check_open()
        self.table.account.fresh()
        record = self.records.volumes.get(name)
        if record is None:
            self.records.check_damaged(name)
            return
        self.mounts.check_unused(name)
        self.volumes.let_go(self.table.lv(name), TagEntry(TagKind.VOLUME, record))
        with self.table.account.lock:
            self.records.volumes.pop(name, None)
            self.table.recount()

    def write(self, record: VolumeRecord) -> None:
        self.table.write(record)

    # Trash: its mark is in the tags, and all is counted by the records

    def trash_fault(self) -> str:
        if self.table.bounds.ratio > 1:
            return "with overcommit= its thin pool may get full before a reservation shows it"
        return ""

    def frees(self, record: VolumeRecord) -> bool:
        """Not that of a thick volume with snapshots, which need its blocks."""
        self.check_open()
        return not self.table.account.thick_snapshots(self.table.lv(record.name))

    def part(self, parameters: Mapping[str, str]) -> str:
        return "thin" if self.table.layout(parameters).thin else ""

    def part_of(self, record: VolumeRecord) -> str:
        return "thin" if self._layout(record).thin else ""

    def restorable(self, record: VolumeRecord) -> Capacity:
        """As its blocks are there already, a full thin pool does not matter."""
        with self.table.account.lock:
            layout, extent = self._common_layout(record), self.table.extent()
            free = self._free(None, self.table.account.free_bytes(layout, without=self.table.trash()))
            return self.capacity_with(free, (extent, extent))

    def _common_layout(self, record: VolumeRecord) -> Layout:
        """The layout whose capacity a volume takes: that of its thin pool, or any extents of the group."""
        return THIN if self._layout(record).thin else LINEAR

    def expand(self, name: str, size: int) -> VolumeRecord:
        return self.volumes.expand(name, min(size, LARGEST))

    def fault(self, record: VolumeRecord) -> str:
        return volume_fault(self.table, record)

    def problems(self, erasing: Sequence[Erasure]) -> list[str]:
        """Logical volumes that may have lost their records, which are their tags. Raises: UnavailableError."""
        with self.table.account.lock:
            found = self.table.account.fresh(max_age=MAX_AGE).volumes
        return [
            f"logical volume {self.table.group}/{lv}: it has a volume's name and no tags of tonnage, so it is left"
            " alone: it may be a volume whose record is lost, then put its tags back (lvm lvchange); if it is not"
            " needed, lvm lvremove it"
            for lv, volume in sorted(found.items())
            if looks_like_volume(lv) and not lvm_tags.is_ours(volume.tags)
        ]

    # Snapshots

    def snapshot_capacity(self, origin: VolumeRecord) -> tuple[int, Capacity]:
        extent = self.table.extent()
        capacity = self._capacity(None, self._common_layout(origin), (extent, extent))
        return self.snapshots.reserved_bytes(origin), capacity

    def snapshot(self, wanted: SnapshotRequest, *, is_frozen: bool = False) -> VolumeRecord:
        return self.snapshots.take(wanted, is_frozen=is_frozen)

    def stillness(self, record: VolumeRecord) -> Stillness:
        return self.snapshots.stillness(record)

    def freeze(self, record: VolumeRecord) -> online.Freeze:
        return self.snapshots.freeze(record)

    def own_snapshot(self, name: str, owner: Mapping[str, str]) -> None:
        self.snapshots.own(self.snapshot_record(name), owner)

    def delete_snapshot(self, name: str) -> None:
        self.snapshots.delete(name)

    def find_snapshot(self, name: str) -> VolumeRecord | None:
        return self.snapshots.find(name)

    def all_snapshots(self) -> Sequence[VolumeRecord]:
        return self.snapshots.all()

    # Its devices

    def is_used(self, name: str) -> bool:
        """Whether the logical volume of a volume is open or published."""
        return self.volumes.is_used(self.table.lv(name))

    def bring_up(self, record: VolumeRecord) -> str:
        """Activate the device of a volume and return it."""
        return self.table.activate(self.table.lv(record.name))

    def device_of(self, record: VolumeRecord) -> str | None:
        """The device of a volume, None while it is not active."""
        return self.table.device_of(record)

    def make_content(self, record: VolumeRecord, device: str) -> None:
        """Make the content of a volume in state new."""
        with block_device.locked(device) as fd:
            block_device.prepare(fd, device, record, zeroed=self._layout(record).thin)

    def mount_options(self, record: VolumeRecord, options: Sequence[str]) -> Sequence[str]:
        """Mount options, with discard for a thin volume: deleted blocks return to its thin pool."""
        layout = self._layout(record)
        if self._dax and not layout.mirrors:
            return tuple(dict.fromkeys(("dax", *options)))
        return ("discard", *options) if layout.thin else options

    def _layout(self, record: VolumeRecord) -> Layout:
        return self.table.layout_of(self.table.lv(record.name), record)


class LvmRecovery:
    """What an opened pool finishes or undoes."""

    def __init__(self, table: LvmTable, volumes: LogicalVolumes) -> None:
        self._table, self._volumes = table, volumes

    def run(self) -> None:
        """Recover all that a kill interrupted, once the group and its thin pool are known. Raises: HostError."""
        for lv, entry in list(self._table.entries.items()):
            self._recover(lv, entry)
        self._upgrade()
        self._wake()
        for name in list(self._table.records.volumes):
            self._part(self._table.lv(name))
        self._complete()

    def thaw(self) -> None:
        """Thaw what a killed process left frozen, before any LVM command: those would suspend frozen devices.

        Not where the device itself is suspended: that thaw would wait for it. Idempotent. Raises: HostError.
        """
        marked = [
            record for record in self._table.records.volumes.values() if self._table.frozen_mark(record.name).exists()
        ]
        suspended = lvm.suspended(self._table.group) if marked else []
        for record in marked:
            lv, mark = self._table.lv(record.name), self._table.frozen_mark(record.name)
            if (path := self._table.device_of(record)) is None:
                online.remove_mark(mark)
            elif lvm.mapper_name(self._table.group, lv) not in suspended:
                is_used = partial(self._volumes.is_used, lv)
                online.thaw_left(block_device.roots(path, record), record, mark, is_used=is_used)

    def _upgrade(self) -> None:
        """Rewrite records of the first format, which passed all checks, with a checksum."""
        volumes = {
            self._table.lv(name): TagEntry(TagKind.VOLUME, record)
            for name, record in self._table.records.volumes.items()
        }
        for lv, entry in {**volumes, **self._table.entries}.items():
            if entry.record.version == FORMAT:
                continue
            after = dataclasses.replace(entry, record=upgraded(entry.record))
            try:
                self._table.retag(lv, entry, after)
                self._table.keep(lv, after)
            except TonnageError as failure:  # the next start does it
                log.warning("record keeps its old format volume=%s/%s error=%s", self._table.group, lv, failure)

    def _wake(self) -> None:
        """Free devices that are not published."""
        paths = map(self._table.device_of, self._table.records.volumes.values())
        ours = {os.path.realpath(path) for path in paths if path}
        block_device.free_loops(index for index, backing in loop.attached() if backing in ours)

    def _complete(self) -> None:
        """Activate new or renamed volumes that were never staged, as LVM does last: a kill may have prevented it.

        Their content stays, whatever their records say.
        """
        new = [record for record in self._table.records.volumes.values() if record.state == "new"]
        if inactive := [
            f"{self._table.group}/{self._table.lv(record.name)}"
            for record in new
            if self._table.device_of(record) is None
        ]:
            try:
                lvm.lvm("lvchange", "--quiet", "--activate", "y", *inactive)
            except TonnageError as failure:
                log.warning("cannot activate new volumes error=%s", failure)

    def _recover(self, lv: str, entry: TagEntry) -> None:
        """Finish or undo what a kill interrupted. A failure is left for the next start: the others are served."""
        try:
            if entry.kind in (TagKind.COPY, TagKind.SCRATCH):
                log.info("removing leftovers of an interrupted call volume=%s/%s", self._table.group, lv)
                self._volumes.discard(lv, entry)
            elif entry.kind is TagKind.ERASING:
                self._volumes.set_aside(lv, entry)
            elif entry.kind is TagKind.ORIGIN:
                self._volumes.let_go(self._volumes.set_aside(lv, entry), entry)
        except TonnageError as failure:
            log.warning("cannot complete an interrupted call volume=%s/%s error=%s", self._table.group, lv, failure)

    def _part(self, lv: str) -> None:
        """Remove the device of a thick snapshot that a killed lvremove had taken out of the group."""
        name = f"{lvm.mapper_name(self._table.group, lv)}-real"
        if self._table.account.thick_snapshots(lv) or dm.status(name) is None:
            return
        log.info("removing leftovers of an interrupted call device=%s", name)
        try:
            lvm.lvm("lvchange", "--refresh", f"{self._table.group}/{lv}")
        except TonnageError as failure:
            log.warning("cannot complete an interrupted call volume=%s/%s error=%s", self._table.group, lv, failure)
