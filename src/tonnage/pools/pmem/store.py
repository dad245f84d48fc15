"""The blocking back end of the pmem pool: a namespace for each volume, its record in the region.

Order of steps, so that a kill between any two loses nothing: create writes a record of length 0, makes the namespace
with the label HALF, wipes former content, writes the record, sets its label. delete sets the label HALF and writes
length 0 again (or an erase job), destroys the namespace, removes the record.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from uuid import UUID, uuid4

from msgspec.structs import replace

from tonnage.aio.clock import Clock
from tonnage.errors import Exhausted, HostError, Precondition, TonnageError, Unavailable
from tonnage.host import mount, ndctl
from tonnage.host.ndctl import SECTOR, Ndctl, PmemNamespace, Region
from tonnage.pools.base.contract import Capacity, VolumeRequest
from tonnage.pools.base.parameters import MKFS_OPTIONS, SOURCE, erase_of
from tonnage.pools.base.record import VERSION, VolumeRecord, upgraded
from tonnage.pools.core.backend import RecordStore
from tonnage.pools.core.request import RequestedVolume
from tonnage.pools.directory.directory import Damage
from tonnage.pools.fs import block_device
from tonnage.pools.fs.formats import MI, Format, form_of
from tonnage.pools.pmem import overhead
from tonnage.pools.pmem.erase_queue import PmemErasures
from tonnage.pools.pmem.region import HALF, PmemRegion, label_of

log = logging.getLogger(__name__)
_ENDS = MI  # bytes at both ends of a device where signatures are


class PmemStore(RecordStore):
    """Namespaces of one or all regions.

    wanted: a region's name or cookie, "" for all. mode: of classes without one.
    """

    remedy = (
        "put a copy of the record back and restart the driver, or save its content and remove the namespace by hand"
        " (ndctl destroy-namespace)"
    )

    def __init__(self, name: str, wanted: str, *, mode: str, most: int = 0, clock: Clock) -> None:
        super().__init__(f"pmem pool {name!r}", most=most, clock=clock)
        self.wanted, self.mode = wanted, mode
        self.homes: dict[str, PmemRegion] = {}
        """Volume -> the region it is in."""
        self._regions: list[PmemRegion] = []
        self._left: dict[str, tuple[PmemRegion, UUID]] = {}  # what a failed create() could not remove
        self._is_open = False
        self.erasures: PmemErasures = PmemErasures(self._erased)

    def open(self) -> None:
        self.close()
        try:
            for found in select(self.wanted, self.where):
                region = PmemRegion(found.name)
                self._regions.append(region)
                region.open()
            self._load()
            self._is_open = True
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        self.records, self.damaged, self.homes = {}, {}, {}
        for region in self._regions:
            region.directory.clean()
            for found in region.directory.records():
                if isinstance(found, Damage):
                    self.damaged[found.name] = found.fault
                elif found.name in self.homes:
                    log.error("two regions have a volume of that name volume=%s region=%s", found.name, region.name)
                    self.damaged[found.name] = f"{region.name} and {self.homes[found.name].name} both have it"
                else:
                    self.records[found.name], self.homes[found.name] = found, region
        for name in self.erasures.open(self._regions, self.records):
            self._forget(self.records[name])
        for record in list(self.records.values()):
            if not record.length:
                self._undo(record)
            else:
                self._finish(record)
        for name in self.damaged:
            self.records.pop(name, None)
        for record in list(self.records.values()):
            if record.version != VERSION:
                self.write(upgraded(record))
        self.used = sum(record.size for record in self.records.values()) + self.erasures.used()

    def problems(self) -> list[str]:
        return list(self.erasures.faults)

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
            self.damaged[record.name] = f"it is half made or half removed: {failure}"

    def _finish(self, record: VolumeRecord) -> None:
        """Set the label of a namespace if a kill prevented that."""
        try:
            self.homes[record.name].relabel(record.uuid, label_of(record.name))
        except TonnageError as failure:  # nothing depends on it before the record is lost
            log.warning("namespace keeps its label volume=%s error=%s", record.name, failure)

    def _forget(self, record: VolumeRecord) -> None:
        self.homes[record.name].directory.remove(record.name)
        del self.records[record.name], self.homes[record.name]

    def close(self) -> None:
        self._is_open = False
        self.erasures.close()
        for region in self._regions:
            region.close()
        self._regions, self._left = [], {}

    @property
    def is_open(self) -> bool:
        return self._is_open

    def room(self, fstype: str, parameters: Mapping[str, str]) -> Capacity:
        """Capacity for volumes. Includes what others take of a region meanwhile."""
        self.check_open()
        mode = overhead.mode_of(parameters, self.mode)
        regions = [region.region for region in self._regions]
        form = _form(fstype, parameters)
        rooms = [overhead.largest(mode, form, found.largest, found.align) for found in regions if found.slots]
        most = max(rooms, default=0) // SECTOR * SECTOR
        free = sum(found.free for found in regions)
        if self.most:
            free = max(0, min(self.most - self.used, free))
        least = form.least if form else SECTOR
        largest = min(most, free) // SECTOR * SECTOR
        return Capacity(
            total=self.most or self.used + free,
            free=free,
            largest=largest if largest >= least else 0,
            smallest=least,
            used=self.used,
        )

    def align(self) -> int:
        """Sizes of namespaces are multiples of it, in bytes; the largest, where regions differ."""
        self.check_open()
        return max(region.region.align for region in self._regions)

    def limit(self) -> int:
        """Maximum number of volumes, by the regions' labels."""
        self.check_open()
        return len(self.records) + len(self.erasures.jobs()) + sum(region.region.slots for region in self._regions)

    def create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> VolumeRecord:
        self.check_damaged(request.name)
        self._clear(request.name)
        mode = overhead.mode_of(request.parameters, self.mode)
        record = self._new_record(request, want)
        region = self._choose(record, mode)
        self.book(record.name, record.size)
        self.homes[record.name] = region
        try:
            region.directory.write(record)
            namespace = region.make(record, mode)
            _clear(region.tool, namespace, block=record.block)
            record = replace(record, length=record.made)
            self.write(record)
            region.relabel(record.uuid, label_of(record.name))
        except BaseException:
            self.book(record.name, -record.size)
            self.records.pop(record.name, None)
            del self.homes[record.name]
            self._left[record.name] = region, record.uuid
            with suppress(TonnageError):
                self._clear(record.name)
            raise
        return record

    def _clear(self, name: str) -> None:
        """Remove what a failed create() has left, before the name is used for another namespace. Raises HostError."""
        if (left := self._left.get(name)) is not None:
            region, uuid = left
            region.destroy(uuid)
            region.directory.remove(name)
            del self._left[name]

    def _new_record(self, request: VolumeRequest, want: RequestedVolume) -> VolumeRecord:
        form = _form(want.fstype, request.parameters)
        return VolumeRecord(
            request.name,
            want.size,
            uuid4(),
            block=request.block,
            fstype=want.fstype,
            parameters=dict(request.parameters),
            owner=dict(request.owner),
            created=self.clock.time(),
            made=form.length(want.size) if form else want.size,
            from_folder=request.parameters.get(SOURCE, ""),
            mkfs=request.parameters.get(MKFS_OPTIONS, ""),
            mutable={key: value for key, value in request.mutable.items() if value},
        )

    def _choose(self, record: VolumeRecord, mode: str) -> PmemRegion:
        """The region with the smallest sufficient piece, to spare large pieces. Raises Exhausted."""
        fitting = []
        for region in self._regions:
            found = region.region
            if found.slots and overhead.raw_size(mode, record.made, found.align) <= found.largest:
                fitting.append((found.largest, found.name, region))
        if not fitting:
            raise Exhausted(
                f"volume {record.name} of {record.size} bytes does not fit any more into one piece of {self.where}"
            )
        return min(fitting)[-1]

    def write(self, record: VolumeRecord) -> None:
        self.homes[record.name].directory.write(record)
        self.records[record.name] = record

    def namespace(self, record: VolumeRecord) -> PmemNamespace:
        """A volume's namespace with its device. Raises HostError when it is gone."""
        return self.homes[record.name].namespace(record.uuid)

    def delete(self, name: str) -> None:
        self.check_open()
        record = self.records.get(name)
        if record is None:
            self.check_damaged(name)
            return
        region = self.homes[name]
        found = region.find(record.uuid)
        if found is not None and is_used(found):
            raise Precondition(f"volume {name} is in use (mounted or attached): unpublish and unstage it first")
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
        self.book(name, -record.size)

    def _erased(self, room: int) -> None:
        self.book("", -room)


def _clear(tool: Ndctl, namespace: PmemNamespace, *, block: bool) -> None:
    """Wipe former content of a new namespace. Raises Busy, HostError.

    All of it for raw block; otherwise only the signatures of file systems.
    """
    if not block:
        wipe_ends(namespace.device)
        return
    # Memory that can only be mapped is written as a raw block device, behind what the mode keeps in front of it.
    is_mapped = namespace.mode == "devdax"
    shown = tool.show_raw(namespace) if is_mapped else namespace
    try:
        with block_device.locked(shown.device) as fd:
            block_device.zero(fd, namespace.size - namespace.usable if is_mapped else 0)
    except OSError as failure:
        raise HostError(f"cannot overwrite {namespace.name}: {failure.strerror}") from failure
    finally:
        if is_mapped:
            tool.restore(shown)


def _form(fstype: str, parameters: Mapping[str, str]) -> Format | None:
    return form_of(fstype, parameters.get(MKFS_OPTIONS, "")) if fstype else None


def select(wanted: str, where: str) -> list[Region]:
    """The regions of a pool. Raises Unavailable, saying what to do."""
    found = ndctl.regions()
    if wanted:
        found = [region for region in found if wanted in (region.name, f"{region.cookie:#x}")]
        if not found:
            there = ", ".join(region.name for region in ndctl.regions()) or "none"
            raise Unavailable(
                f"{where}: there is no region {wanted} of persistent memory, there are: {there} (ndctl list -R): name"
                " one of these, by its iset_id where they may be numbered anew, or `pmem` for all"
            )
    usable = [region for region in found if region.labelled and not region.readonly]
    if usable:
        return usable
    if not found:
        raise Unavailable(
            f"{where}: this machine has no persistent memory, or no region of it (ndctl list -R): load the modules"
            " (modprobe nfit nd_pmem, cxl_pmem for CXL), set it up as persistent (ipmctl create -goal, cxl"
            " create-region), or do without this pool here"
        )
    name = found[0].name
    raise Unavailable(
        f"{where}: {name} is read-only or has no labels, and so it holds one namespace only. If nothing on"
        f" it is of use: ndctl disable-region {name}; ndctl init-labels --force all; ndctl enable-region {name}"
    )


def is_used(namespace: PmemNamespace) -> bool:
    """Whether a namespace is mounted, part of another device, or published to a pod."""
    if not namespace.device:
        return False
    if is_bound(namespace.device):
        return True
    if is_character(namespace.device):
        return False
    return block_device.stays(lambda: _is_held(namespace.device))


def _is_held(device: str) -> bool:
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def is_bound(device: str) -> bool:
    """Whether a device's node is bind-mounted somewhere, so that a pod could open it."""
    return any(entry.fstype == "devtmpfs" and f"/dev{entry.root}" == device for entry in mount.mounts())


def is_character(device: str) -> bool:
    """Whether a device is mapped (devdax) rather than read and written."""
    try:
        return stat.S_ISCHR(os.stat(device).st_mode)
    except OSError as failure:
        raise HostError(f"cannot look at {device}: {failure.strerror}") from failure


def wipe_ends(device: str) -> None:
    """Wipe signatures of former content of that memory. Raises Busy, HostError."""
    with block_device.locked(device) as fd:
        end = os.lseek(fd, 0, os.SEEK_END)
        ends = min(_ENDS, end // 2 // SECTOR * SECTOR)
        try:
            for start in (0, end - ends):
                block_device.zero_range(fd, start, ends)
            os.fsync(fd)
        except OSError as failure:
            raise HostError(f"cannot wipe {device}: {failure.strerror}") from failure
