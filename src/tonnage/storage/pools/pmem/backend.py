"""The pmem back end: each volume is a namespace of persistent memory (NVDIMMs, persistent CXL memory).

In mode `fsdax`, programs map files of a volume directly into memory (DAX). `sector` is for programs that need atomic
writes of sectors. `devdax` gives the memory itself, as a character device, to raw block volumes. Needs root, regions
with labels, ndctl, e2fsprogs for ext4, xfsprogs for xfs. Foreign namespaces are left alone. For snapshots, growth and
small volumes use `mode=lvm`, with LVM in between.

Order of steps, so that a kill between any two loses nothing: create writes a record of length 0, makes the namespace
with the label HALF, wipes former content, writes the record, sets its label. delete sets the label HALF and writes
length 0 again (or an erase job), destroys the namespace, removes the record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from uuid import UUID, uuid4

from msgspec.structs import replace

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.errors import ExhaustedError, HostError, OutOfRangeError, TonnageError, UnsupportedError
from tonnage.host import ndctl
from tonnage.host.ndctl import SECTOR, PmemNamespace, Region
from tonnage.storage.pools.base.contract import Capacity, Erasure, Features, VolumeRequest, looks_like_volume
from tonnage.storage.pools.base.parameters import BANDWIDTH, ERASE, FORMATTED, IOPS, check_shared, erase_of
from tonnage.storage.pools.base.record import FORMAT, Records, VolumeRecord, new_record, upgraded
from tonnage.storage.pools.core.backend import Backend, RequestedVolume
from tonnage.storage.pools.core.device_mounts import DeviceMounts
from tonnage.storage.pools.fs.formats import form_for
from tonnage.storage.pools.pmem import device, overhead
from tonnage.storage.pools.pmem.erase_queue import PmemErasures
from tonnage.storage.pools.pmem.region import HALF, PmemRegion, label_of, select

log = logging.getLogger(__name__)
_UNHELD = "pods reach the memory without the kernel's block layer, which could hold them back"
MAPPED: Mapping[str, str] = {IOPS: _UNHELD, BANDWIDTH: _UNHELD}
"""Parameters that a volume in memory cannot support, and why. So it has no device() either."""
FEATURES = Features(
    "pmem",
    fstypes=("ext4", "xfs"),
    parameters=FORMATTED | {overhead.NSMODE},
    modifiable=frozenset({ERASE}),
    rejected=MAPPED,
)
_REMEDY = (
    "put a copy of the record back and restart the driver, or save its content and remove the namespace by hand"
    " (ndctl destroy-namespace)"
)


class PmemBackend(Backend):
    """Namespaces of one or all regions.

    pool: its name. wanted: a region's name or cookie, "" for all. mode: of classes without nsmode. most: maximum bytes
    to reserve, 0 for all.
    """

    features = FEATURES

    def __init__(
        self, pool: str, wanted: str = "", *, mode: str = "fsdax", most: int = 0, clock: Clock | None = None
    ) -> None:
        self.records = Records(f"pmem pool {pool!r}", most=most, remedy=_REMEDY)
        self.erasures: PmemErasures = PmemErasures(self._erased)
        self.wanted, self.mode = wanted, mode
        self.homes: dict[str, PmemRegion] = {}
        """Volume -> the region it is in."""
        self._clock = clock or RealClock()
        self._regions: list[PmemRegion] = []
        self._left: dict[str, tuple[PmemRegion, UUID]] = {}  # what a failed create() could not remove
        self._is_open = False
        self.mounts = DeviceMounts(self)

    def load(self) -> None:
        self.close()
        for found in select(self.wanted, self.records.where):
            region = PmemRegion(found.name)
            self._regions.append(region)
            region.open()
        self._read_records()
        for name in self.erasures.open(self._regions, self.records.volumes):
            self._forget(self.records.volumes[name])
        for record in list(self.records.volumes.values()):
            if not record.length:
                self._undo(record)
            else:
                self._finish(record)
        for name in self.records.damaged:
            self.records.volumes.pop(name, None)
        for record in list(self.records.volumes.values()):
            if record.version != FORMAT:
                self.write(upgraded(record))
        self.records.used = sum(record.size for record in self.records.volumes.values()) + self.erasures.used()
        self._is_open = True

    def _read_records(self) -> None:
        self.records.volumes, self.records.damaged, self.homes = {}, {}, {}
        for region in self._regions:
            region.directory.clean()
            found, damaged = region.directory.records()
            self.records.damaged |= damaged
            for name in found:
                if self.homes.setdefault(name, region) is not region:
                    log.error("two regions have a volume of that name volume=%s region=%s", name, region.name)
                    self.records.damaged[name] = f"{region.name} and {self.homes[name].name} both have it"
            self.records.volumes = found | self.records.volumes

    def problems(self, erasing: Sequence[Erasure]) -> list[str]:
        """Faults of jobs, and namespaces that may have lost their records."""
        return [*self.erasures.faults, *(line for region in self._regions for line in self._lost(region))]

    def _lost(self, region: PmemRegion) -> Iterator[str]:
        known = {str(record.uuid) for record in list(self.records.volumes.values())}
        known |= {job.key for job in self.erasures.jobs()} | {str(uuid) for _, uuid in list(self._left.values())}
        for namespace in ndctl.namespaces(region.name):
            label = namespace.label
            if looks_like_volume(label) and label not in self.records.damaged and str(namespace.uuid) not in known:
                yield (
                    f"namespace {namespace.name}: it has the label of volume {label} and no record, so it is left"
                    " alone: put a copy of its record back; if it is not needed, ndctl destroy-namespace it"
                )

    def _undo(self, record: VolumeRecord) -> None:
        """Remove a half-made or half-removed namespace."""
        log.info("removing unfinished volume volume=%s", record.name)
        try:
            found = self.homes[record.name].find(record.uuid)
            if found is not None and found.label != HALF:
                raise HostError(f"{found.name} is complete, its record is of an earlier moment")
            self.homes[record.name].destroy(record.uuid)
            self._forget(record)
        except TonnageError as failure:
            log.error("cannot remove unfinished volume volume=%s error=%s", record.name, failure)
            self.records.damaged[record.name] = f"it is half made or half removed: {failure}"

    def _finish(self, record: VolumeRecord) -> None:
        """Set the label of a namespace if a kill prevented that."""
        try:
            self.homes[record.name].relabel(record.uuid, label_of(record.name))
        except TonnageError as failure:  # nothing depends on it before the record is lost
            log.warning("namespace keeps its label volume=%s error=%s", record.name, failure)

    def _forget(self, record: VolumeRecord) -> None:
        self.homes[record.name].directory.remove(record.name)
        del self.records.volumes[record.name], self.homes[record.name]

    def close(self) -> None:
        self._is_open = False
        self.erasures.close()
        for region in self._regions:
            region.close()
        self._regions, self._left = [], {}

    @property
    def is_open(self) -> bool:
        return self._is_open

    def capacity(self, fstype: str, parameters: Mapping[str, str], *, block: bool) -> Capacity:
        """Capacity for volumes. Includes what others take of a region meanwhile."""
        self.check_open()
        mode = overhead.mode_of(parameters, self.mode)
        trash = self.records.trash()
        now = [region.region for region in self._regions]
        later = [
            region.without({t.uuid for t in trash if self.homes.get(t.name) is region}) for region in self._regions
        ]
        form = form_for(fstype, parameters)
        sizes = [overhead.largest(mode, form, found.largest, found.align) for found in later if found.slots]
        free = self._free(later)
        held = free - self._free(now, held=sum(record.size for record in trash))
        return self.capacity_with(free, self.grain(fstype, parameters), piece=max(sizes, default=0), trash=held)

    def _free(self, regions: Sequence[Region], *, held: int = 0) -> int:
        """Free bytes of these regions below the pool's limit. held: bytes that trash has of that limit."""
        free = sum(region.free for region in regions)
        return max(0, min(self.records.most - self.records.used - held, free)) if self.records.most else free

    def grain(self, fstype: str, parameters: Mapping[str, str]) -> tuple[int, int]:
        form = form_for(fstype, parameters)
        return form.least if form else SECTOR, SECTOR

    def check(self, parameters: Mapping[str, str], fstype: str, *, block: bool) -> None:
        check_shared(parameters)
        if overhead.mode_of(parameters, self.mode) == "devdax" and not block:
            raise UnsupportedError(
                f"pool {self.name!r}: memory of nsmode devdax has no file system: ask for raw block, or for fsdax"
            )

    def want(self, request: VolumeRequest) -> RequestedVolume:
        """Check a request. A raw block volume has all of its namespace, unless that is above the limit."""
        want = super().want(request)
        if want.fstype:
            return want
        self.check_open()
        mode = overhead.mode_of(request.parameters, self.mode)
        align = max(region.region.align for region in self._regions)
        size = overhead.usable(mode, overhead.raw_size(mode, want.size, align))
        if request.limit and size > request.limit:
            raise OutOfRangeError(
                f"volume {request.name}: a namespace of mode {mode} has {size} usable bytes here, which is more than"
                f" its limit {request.limit}"
            )
        return RequestedVolume(size, want.fstype)

    def limit(self) -> int:
        """As many as the labels can describe."""
        self.check_open()
        return (
            len(self.records.volumes) + len(self.erasures.jobs()) + sum(region.region.slots for region in self._regions)
        )

    def create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> VolumeRecord:
        self.records.check_damaged(request.name)
        self._clear(request.name)
        mode = overhead.mode_of(request.parameters, self.mode)
        form, now = form_for(want.fstype, request.parameters), self._clock.time()
        record = new_record(request, want.size, want.fstype, uuid=uuid4(), created=now)
        record = replace(record, made=form.length(want.size) if form else want.size)
        region = self._choose(record, mode)
        self.records.reserve(record.name, record.size)
        self.homes[record.name] = region
        try:
            region.directory.write(record)
            namespace = region.make(record, mode)
            device.clear(region.tool, namespace, block=record.block)
            record = replace(record, length=record.made)
            self.write(record)
            region.relabel(record.uuid, label_of(record.name))
        except BaseException:
            self.records.reserve(record.name, -record.size)
            self.records.volumes.pop(record.name, None)
            del self.homes[record.name]
            self._left[record.name] = region, record.uuid
            with suppress(TonnageError):
                self._clear(record.name)
            raise
        return record

    def _clear(self, name: str) -> None:
        """Remove what a failed create() has left, before the name is used for another namespace. Raises: HostError."""
        if (left := self._left.get(name)) is not None:
            region, uuid = left
            region.destroy(uuid)
            region.directory.remove(name)
            del self._left[name]

    def _choose(self, record: VolumeRecord, mode: str) -> PmemRegion:
        """The region with the smallest sufficient piece, to spare large pieces. Raises: ExhaustedError."""
        fitting = []
        for region in self._regions:
            found = region.region
            if found.slots and overhead.raw_size(mode, record.made, found.align) <= found.largest:
                fitting.append((found.largest, found.name, region))
        if not fitting:
            raise ExhaustedError(
                f"volume {record.name} of {record.size} bytes does not fit any more into one piece of"
                f" {self.records.where}"
            )
        return min(fitting)[-1]

    def write(self, record: VolumeRecord) -> None:
        self.homes[record.name].directory.write(record)
        self.records.volumes[record.name] = record

    def namespace(self, record: VolumeRecord) -> PmemNamespace:
        """A volume's namespace with its device. Raises: HostError when it is gone."""
        return self.homes[record.name].namespace(record.uuid)

    def delete(self, name: str) -> None:
        self.check_open()
        record = self.records.volumes.get(name)
        if record is None:
            self.records.check_damaged(name)
            return
        region = self.homes[name]
        self.mounts.check_unused(name)
        found = region.find(record.uuid)
        method = erase_of(record.volume().effective)
        if method != "none" and found is not None and record.state != "new":
            # Memory has nothing that could be handed back, so what may be discarded is overwritten.
            self.erasures.add(region, record, found, "zero" if method == "discard" else method)
            self._forget(record)
            return
        region.relabel(record.uuid, HALF)
        try:
            region.directory.write(replace(record, length=0))
            region.destroy(record.uuid)
        except TonnageError:
            region.directory.write(record)
            self._finish(record)
            raise
        self._forget(record)
        self.records.reserve(name, -record.size)

    def _erased(self, size: int) -> None:
        self.records.reserve("", -size)

    # Trash: its namespace stays, and its mark is in its record

    def trash_fault(self) -> str:
        return ""

    def discount(self, record: VolumeRecord) -> None:
        self.records.reserve(record.name, -record.size)

    def recount(self, record: VolumeRecord) -> None:
        self.records.recount(record)

    def fault(self, record: VolumeRecord) -> str:
        try:
            namespace = self.namespace(record)
        except HostError as failure:
            return str(failure)
        if bad := ndctl.bad_blocks(namespace):
            return f"{bad} bytes of its memory cannot be read any more (ndctl list --media-errors): copy what is left"
        return ""

    # Its devices

    def is_used(self, name: str) -> bool:
        """Whether the namespace of a volume is mounted, part of another device, or published."""
        found = self.homes[name].find(self.records.volumes[name].uuid)
        return found is not None and device.is_used(found)

    def bring_up(self, record: VolumeRecord) -> str:
        """Enable the namespace of a volume and return its device."""
        return self.namespace(record).device

    def device_of(self, record: VolumeRecord) -> str | None:
        """The device of a volume."""
        return self.namespace(record).device

    def make_content(self, record: VolumeRecord, device_path: str) -> None:
        """Make the content of a volume in state new."""
        device.make_content(self.namespace(record), record)

    def mount_options(self, record: VolumeRecord, options: Sequence[str]) -> Sequence[str]:
        """Mount options, with DAX for mode fsdax: content is mapped into programs without a copy."""
        return tuple(dict.fromkeys(("dax", *options))) if self.namespace(record).mode == "fsdax" else options
