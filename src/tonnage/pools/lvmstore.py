"""The blocking half of the LVM pool: logical volumes with their records in tags, thread-safe.

A caller holds a lock for each volume name. Order of steps, so that a kill between any two leaves nothing lost: create
is one lvcreate with all tags; content is made in state new, which is left by one lvchange before the first mount;
delete is one lvremove. A signature left by lvcreate's being interrupted is wiped at the next open.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import msgspec

from tonnage.aio.clock import Clock
from tonnage.errors import (
    AlreadyExists,
    Exhausted,
    HostError,
    NotFound,
    OutOfRange,
    Precondition,
    Unavailable,
    Unsupported,
)
from tonnage.host import dm, lvm, mount
from tonnage.host.lvm import Group
from tonnage.pools import filesystem, lvmdevice, lvmlayout, lvmrecord
from tonnage.pools.base import Capacity, State, Stats, VolumeRequest
from tonnage.pools.directory import Record
from tonnage.pools.formats import BLOCK, FORMATS
from tonnage.pools.lvmgroup import MAX_AGE, Account, Booking
from tonnage.pools.lvmlayout import Layout
from tonnage.pools.request import Want

log = logging.getLogger(__name__)
LOCKS = Path("/run/tonnage")
FULL_DATA, FULL_METADATA = 0.95, 0.9
"""Fullness of a thin pool from which on nothing more is made in it."""
_NODE = "device"  # the device node inside the staging directory of a raw block volume
_HUGE = 2**62


class Bounds(msgspec.Struct, frozen=True):
    """How much a pool may promise. size: bytes, 0 for what the group has. thin: name of its thin pool, "" for none.
    thin_size: bytes of it where it must be made, 0 when it must be there. ratio: how often its size may be promised."""

    size: int = 0
    thin: str = ""
    thin_size: int = 0
    ratio: float = 1.0


class LvmStore:
    """Logical volumes of a group."""

    def __init__(self, name: str, group: str, bounds: Bounds, *, clock: Clock) -> None:
        self.group = group
        self.bounds = bounds
        self.records: dict[str, Record] = {}
        self._pool = name
        self._damaged: dict[str, str] = {}  # logical volume -> fault
        self._damaged_size = 0
        self._making: dict[str, int] = {}  # volume -> bytes
        self._clock = clock
        self._held = -1
        self._warned = False
        self._account = Account(
            group, thin=bounds.thin, ratio=bounds.ratio, on_read=self._learn, monotonic=clock.monotonic
        )

    def open(self) -> None:
        """Take the group, read it, finish what a kill left half done. Raises Unavailable, HostError."""
        self._take()
        try:
            group = self._account.read()
            if not group.writable:
                raise Unavailable(f"volume group {self.group} is read-only or exported: lvm vgchange or vgimport it")
            if self.bounds.thin:
                self._check_thin(group)
            for record in list(self.records.values()):
                if record.state == "new" and not record.block and (path := self._device(record)) is not None:
                    lvmdevice.wipe_stale(path, record)
        except BaseException:
            self.close()
            raise

    def _take(self) -> None:
        if self._held >= 0:
            return
        try:
            LOCKS.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(LOCKS / f"lvm-{self.group}.lock", flags, 0o600)
        except OSError as failure:
            raise HostError(f"cannot make a lock in {LOCKS}: {failure.strerror}") from failure
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Unavailable(
                f"volume group {self.group} is in use by another pool: name another group, or stop that one first"
            ) from None
        self._held = fd

    def close(self) -> None:
        """Give the group back. May be repeated."""
        self._account.forget()
        if self._held >= 0:
            os.close(self._held)
        self._held = -1

    def _learn(self, group: Group) -> None:
        """Take the records of a report."""
        records: dict[str, Record] = {}
        damaged: dict[str, str] = {}
        for volume in group.volumes.values():
            if not lvmrecord.is_ours(volume.tags):
                continue
            try:
                record = lvmrecord.decode(volume.tags)
            except lvmrecord.Newer as failure:
                raise Unavailable(
                    f"volume {self.group}/{volume.name} was made by a newer tonnage ({failure})"
                ) from failure
            except ValueError as failure:
                log.error(
                    "record is damaged, volume left alone volume=%s/%s error=%s", group.name, volume.name, failure
                )
                damaged[volume.name] = str(failure)
                continue
            if self._lv(record.name) == volume.name:
                records[record.name] = record
        self.records, self._damaged = records, damaged
        self._damaged_size = sum(group.volumes[name].size for name in damaged)
        if group.missing:
            log.error("volume group misses disks, nothing is made in it group=%s missing=%d", group.name, group.missing)

    def _check_thin(self, group: Group) -> None:
        thin = self.bounds.thin
        if thin not in group.volumes:
            if not self.bounds.thin_size:
                raise Unavailable(
                    f"volume group {self.group} has no thin pool {thin}: make it (lvcreate --type thin-pool), or say"
                    " thinsize=SIZE to have it made"
                )
            size = ["--size", f"{self.bounds.thin_size}b"]
            lvm.lvm("lvcreate", "--yes", "--type", "thin-pool", "-Zy", *size, "--name", thin, self.group)
            group = self._account.read()
        found = group.volumes[thin]
        if found.layout != "thin,pool":
            raise Unavailable(f"{self.group}/{thin} is {found.layout or 'something else'}, not a thin pool")
        if not found.zeroes:
            raise Unavailable(
                f"thin pool {self.group}/{thin} would show old data: lvm lvchange -Zy {self.group}/{thin}"
            )
        if found.when_full != "error":
            lvm.lvm("lvchange", "--errorwhenfull", "y", f"{self.group}/{thin}")
            self._account.distrust()
        if not found.active:
            lvm.lvm("lvchange", "--activate", "y", f"{self.group}/{thin}")

    def all(self) -> list[Record]:
        """All records in the order of their names. Raises Unavailable."""
        self.check_open()
        return [record for _, record in sorted(self.records.items())]

    def check_open(self) -> None:
        """Raises Unavailable unless the pool is open: what cannot be seen is never taken for gone."""
        if self._held < 0:
            raise Unavailable(f"volume group {self.group} is not open")

    def record(self, name: str) -> Record:
        """A record. Raises NotFound, Unavailable, HostError for a damaged one."""
        self.check_open()
        self._check_damaged(name)
        try:
            return self.records[name]
        except KeyError:
            raise NotFound(f"volume group {self.group} has no volume {name[:128]!r}") from None

    def _check_damaged(self, name: str) -> None:
        if (fault := self._damaged.get(self._lv(name))) is not None:
            raise HostError(
                f"the tags of {self.group}/{self._lv(name)} are damaged ({fault}): repair them (lvm lvchange"
                " --addtag) or remove the volume by hand"
            )

    def _lv(self, name: str) -> str:
        return lvmrecord.volume_name(self.group, name)

    def layout(self, parameters: Mapping[str, str]) -> Layout:
        """What class parameters mean here. Raises Invalid, Unsupported."""
        return lvmlayout.read(parameters, thin_pool=self.bounds.thin, pool=self._pool)

    def check_disks(self, layout: Layout) -> None:
        """Raises OutOfRange when the group has too few disks for a layout."""
        if layout.disks > (has := len(self._account.fresh().disks)):
            raise OutOfRange(
                f"a volume with {layout.stripes} stripes and {layout.mirrors} mirrors can never fit: it needs"
                f" {layout.disks} disks, volume group {self.group} has {has}"
            )

    def extent(self) -> int:
        """Bytes of an extent. Raises Unavailable."""
        self.check_open()
        return self._account.fresh().extent

    def room(self, fstype: str, layout: Layout, *, max_age: float = MAX_AGE) -> Capacity:
        """Room for volumes of that layout with that file system, "" for raw block. Raises Unavailable."""
        self.check_open()
        with self._account.lock:
            room = self._account.room(layout, max_age=max_age)
            if layout.thin and self._is_full():
                room = 0
            size, used = self.bounds.size, self._used()
            extent = self.extent()
        free = max(0, size - used) if size else _HUGE
        step = BLOCK if fstype else extent * layout.stripes
        enough = FORMATS[fstype].length(free) if fstype and size else free
        if room < enough:
            free = min(free, FORMATS[fstype].usable(room) if fstype else room)
        least = FORMATS[fstype].least if fstype else step
        largest = free // step * step
        return Capacity(
            total=size or used + free, free=free, largest=largest if largest >= least else 0, smallest=least, used=used
        )

    def _is_full(self) -> bool:
        """Whether the thin pool has too little left to make anything in it, asked of the kernel."""
        found = dm.thin_pool(f"{lvm.mapper_name(self.group, self.bounds.thin)}-tpool")
        found = found or dm.thin_pool(lvm.mapper_name(self.group, self.bounds.thin))
        if found is None:
            pool = self._account.pool
            found = dm.ThinPool(pool.data / 100, pool.metadata / 100, writable=True)
        full = found.data >= FULL_DATA or found.metadata >= FULL_METADATA or not found.writable
        if full and not self._warned:
            log.warning(
                "thin pool is full, nothing more is made in it pool=%s/%s data=%.2f metadata=%.2f",
                self.group, self.bounds.thin, found.data, found.metadata,
            )  # fmt: skip
        self._warned = full
        return full

    def create(self, request: VolumeRequest, want: Want, layout: Layout) -> Record:
        """Make a volume; durable when this returns. Raises Exhausted, AlreadyExists, HostError."""
        self._check_damaged(request.name)
        self._check_name(self._lv(request.name))
        record = self._new_record(request, want, layout)
        tags = [word for tag in lvmrecord.encode(record) for word in ("--addtag", tag)]
        booking = self._booking(record, layout)
        with self._account.lock:
            if self.bounds.size and self._used() + record.size > self.bounds.size:
                raise Exhausted(f"volume {record.name} of {record.size} bytes does not fit any more into {self._pool}")
            self._making[record.name] = record.size
        try:
            with self._account.making(booking):
                self._lvcreate(booking, tags)
                with self._account.lock:
                    self.records[record.name] = record
        finally:
            del self._making[record.name]
        return record

    def _check_name(self, lv: str) -> None:
        """Raises AlreadyExists when somebody else's volume has that name."""
        found = self._account.fresh().volumes.get(lv)
        if found is None or lvmrecord.is_ours(found.tags):
            return
        found = self._account.fresh(max_age=0.0).volumes.get(lv)
        if found is not None and not lvmrecord.is_ours(found.tags):
            raise AlreadyExists(f"{self.group}/{lv} is a logical volume that is not tonnage's: it is left alone")

    def _new_record(self, request: VolumeRequest, want: Want, layout: Layout) -> Record:
        created = self._clock.time()
        return Record(
            request.name,
            want.size,
            uuid5(NAMESPACE_URL, f"lvm:{self.group}/{request.name}/{created!r}"),
            length=FORMATS[want.fstype].length(want.size) if want.fstype else want.size,
            sparse=layout.thin,
            block=request.block,
            fstype=want.fstype,
            parameters=dict(request.parameters),
            owner=dict(request.owner),
            created=created,
        )

    def _booking(self, record: Record, layout: Layout) -> Booking:
        extent = self.extent()
        extents = layout.extents(record.length, extent)
        return Booking(self._lv(record.name), layout, extents, extents * extent)

    def _lvcreate(self, booking: Booking, tags: Sequence[str]) -> None:
        command = ["lvcreate", "--yes", "--quiet", "--name", booking.name, *tags]
        if booking.layout.thin:
            command += ["--thinpool", self.bounds.thin, "--virtualsize", f"{booking.size}b"]
        else:
            command += ["--wipesignatures", "y", "--zero", "y", "--extents", str(booking.extents)]
            command += booking.layout.arguments()
        lvm.lvm(*command, self.group)

    def _used(self) -> int:
        """Bytes promised: of all volumes, those being made and those whose tags nobody can read."""
        making = sum(size for name, size in list(self._making.items()) if name not in self.records)
        return sum(record.size for record in self.records.values()) + making + self._damaged_size

    def refresh(self) -> None:
        """Read the group anew, unless that was a moment ago. Raises Unavailable."""
        self._account.fresh(max_age=1.0)

    def delete(self, name: str) -> None:
        """Remove a volume. Raises Precondition while it is in use, HostError."""
        self.check_open()
        self._account.fresh()
        record = self.records.get(name)
        if record is None:
            self._check_damaged(name)
            return
        path = self._device(record)
        if path is not None and (self._is_open(name) or lvmdevice.is_bound(path)):
            raise Precondition(f"volume {name} is in use (mounted or attached): unpublish and unstage it first")
        layout = self.layout(record.parameters)
        erase = record.parameters.get("erase", "none")
        if erase == "zero":
            with lvmdevice.locked(self._activate(record)) as fd:
                lvmdevice.erase(fd)
        with self._account.removing(self._booking(record, layout)):
            with suppress(NotFound):
                config = "devices{issue_discards=1}" if erase == "discard" else ""
                lvm.lvm("lvremove", "--yes", "--quiet", f"{self.group}/{self._lv(name)}", config=config)
            with self._account.lock:
                self.records.pop(name, None)

    def _is_open(self, name: str) -> bool:
        """Whether anything has the device open. udev may look at it for a moment."""
        return lvmdevice.stays(lambda: dm.open_count(lvm.mapper_name(self.group, self._lv(name))) > 0)

    def _device(self, record: Record) -> str | None:
        return lvm.device(self.group, self._lv(record.name))

    def _activate(self, record: Record) -> str:
        """The device of a volume, which is activated where it is not. Raises HostError."""
        if (path := self._device(record)) is not None:
            return path
        lv = f"{self.group}/{self._lv(record.name)}"
        lvm.lvm("lvchange", "--activate", "y", "--ignoreactivationskip", lv)
        if (path := self._device(record)) is None:
            raise HostError(f"{lv} was activated and has no device node: is /dev the machine's own here?")
        return path

    def stage(self, name: str, path: Path, options: Sequence[str]) -> None:
        """See Pool.stage."""
        record = self.record(name)
        device = self._activate(record)
        if mount.is_mount(path):
            if not lvmdevice.is_mounted(device, path):
                raise AlreadyExists(f"{path} is a mount of something else: unmount it first")
            return
        filesystem.make_directory(path)
        if record.state == "new":
            record = self._prepare(record, device)
        if record.block:
            filesystem.publish(Path(device), path / _NODE, block=True, readonly=False)
        else:
            lvmdevice.mount_at(device, record, path, options, discard=record.sparse)

    def _prepare(self, record: Record, device: str) -> Record:
        """Make the content and leave state new, before anybody can see it."""
        layout = self.layout(record.parameters)
        with lvmdevice.locked(device) as fd:
            lvmdevice.prepare(fd, device, record, zeroed=layout.thin)
        ready = lvmrecord.StateChange(State.FORMATTED)
        lvm.lvm("lvchange", "--quiet", *ready.arguments(), f"{self.group}/{self._lv(record.name)}")
        record = msgspec.structs.replace(record, state=ready.state.value)
        with self._account.lock:
            self.records[record.name] = record
        return record

    def unstage(self, name: str, path: Path) -> None:
        """See Pool.unstage."""
        if not mount.is_mount(path) and mount.is_mount(path / _NODE):
            filesystem.unpublish(path / _NODE)
        filesystem.unstage(path)

    def publish(self, name: str, staging: Path, target: Path, *, readonly: bool) -> None:
        """See Pool.publish."""
        record = self.record(name)
        if record.block and readonly:
            raise Unsupported(f"volume {name}: raw block volumes of lvm pools are not shown read-only")
        source = staging / _NODE if record.block else staging
        if not mount.is_mount(source):
            raise Precondition(f"volume {name} is not staged at {staging}: stage it first")
        device = self._device(record)
        shows = lvmdevice.is_shown if record.block else lvmdevice.is_mounted
        if device is None or not shows(device, source):
            raise Precondition(f"{staging} shows something else than volume {name}")
        filesystem.publish(source, target, block=record.block, readonly=readonly)

    def stats(self, name: str, path: Path) -> Stats:
        """See Pool.stats."""
        record = self.record(name)
        device = self._device(record)
        if record.block:
            node = path / _NODE if path.is_dir() else path
            if device is None or not lvmdevice.is_shown(device, node):
                raise NotFound(f"volume {name} is not at {path}")
            return Stats(total=record.size, used=record.size, available=0)
        if device is None or not mount.is_mount(path) or not lvmdevice.is_mounted(device, path):
            raise NotFound(f"volume {name} is not mounted at {path}")
        return filesystem.stats(path)
