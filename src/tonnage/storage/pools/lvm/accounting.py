"""The accounting of a volume group: its extents, reservations, and the changes since the last report.

One `lvm fullreport` reads everything. A command of ours is counted before it runs and corrected by its result, so the
account stays right without another report. After a failure or an unexpected result, it is read again before the next
answer. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tonnage.base.errors import ExhaustedError, NotFoundError, UnavailableError
from tonnage.host import lvm
from tonnage.host.lvm import LogicalVolume, PhysicalVolume, VolumeGroup
from tonnage.storage.pools.lvm.layout import Layout

NONE: Mapping[str, Layout] = {}
MAX_AGE = 60.0
"""Maximum age of a report in seconds: others may change the group as well."""


@dataclass(frozen=True)
class ExtentReservation:
    """The extents of a logical volume that is being made or extended.

    extents, size: what it has at the end, size in bytes. had: extents that it has already. origin: the volume that it
    is a snapshot of.
    """

    name: str
    layout: Layout
    extents: int
    size: int
    tags: tuple[str, ...] = ()
    origin: str = ""
    had: int = 0

    @property
    def cost(self) -> int:
        """Extents of the group that it allocates now."""
        return self.layout.cost(self.extents) - (self.layout.cost(self.had) if self.had else 0)

    @property
    def more(self) -> int:
        """Bytes that it adds."""
        return self.size - self.size // max(1, self.extents) * self.had


class Account:
    """The extents of a group and the reservations in its thin pool.

    thin: name of the thin pool, "" for none. ratio: overcommit factor for its size. on_read: called under the lock with
    each new report, before it is used. monotonic: seconds.
    """

    def __init__(
        self,
        group: str,
        *,
        thin: str,
        ratio: float,
        on_read: Callable[[VolumeGroup], None],
        monotonic: Callable[[], float],
    ) -> None:
        self.name = group
        self.lock = threading.RLock()
        self.volumes: dict[str, LogicalVolume] = {}
        """All logical volumes by name: as last read, with the changes of our commands."""
        self._thin = thin
        self._ratio = ratio
        self._on_read = on_read
        self._monotonic = monotonic
        self._group: VolumeGroup | None = None
        self._free = 0
        self._thin_bytes = 0  # bytes of the volumes in the thin pool
        self._scattered = False  # whether we no longer know which disk has how much
        self._stale = True
        self._read_at = 0.0
        self.reads = 0
        """Number of reports read."""
        self._pending: dict[str, ExtentReservation] = {}

    def read(self) -> VolumeGroup:
        """Read everything again. Raises: UnavailableError when the group is not there or cannot be used, HostError."""
        with self.lock:
            try:
                group = lvm.read(self.name)
            except NotFoundError as failure:
                raise UnavailableError(str(failure)) from failure
            self._group, self._free = group, sum(disk.free for disk in group.disks)
            self.volumes = dict(group.volumes)
            self._thin_bytes = sum(v.size for v in group.volumes.values() if self._thin and v.pool == self._thin)
            for reservation in self._pending.values():
                found = group.volumes.get(reservation.name)
                if found is None or found.size < reservation.size:
                    self._take(reservation)
            self._scattered, self._stale = bool(self._pending), False
            self._read_at = self._monotonic()
            self.reads += 1
            self._on_read(group)
            return group

    @property
    def devices(self) -> list[Path]:
        """The group's disks as last read. Takes no lock, which a command that hangs may hold."""
        group = self._group
        return [Path(disk.name) for disk in group.disks if not disk.missing] if group is not None else []

    def fresh(self, *, max_age: float = float("inf")) -> VolumeGroup:
        """The current state, read again where needed. Raises: UnavailableError, HostError."""
        with self.lock:
            if self._group is None or self._stale or self._monotonic() - self._read_at > max_age:
                return self.read()
            return self._group

    def distrust(self) -> None:
        """Read again before the next answer."""
        self._stale = True

    def forget(self) -> None:
        """Forget all that was read."""
        with self.lock:
            self._group, self._stale = None, True

    def find(self, name: str) -> LogicalVolume | None:
        """A logical volume, None for none. Raises: UnavailableError, HostError."""
        with self.lock:
            self.fresh()
            return self.volumes.get(name)

    def thick_snapshots(self, origin: str) -> list[LogicalVolume]:
        """The thick snapshots of a logical volume, which lvremove would remove with it. Raises: HostError."""
        with self.lock:
            self.fresh()
            return [v for v in self.volumes.values() if v.origin == origin and v.is_thick_snapshot]

    def change_ratio(self, ratio: float) -> None:
        """Set the overcommit factor for the thin pool's size."""
        with self.lock:
            self._ratio = ratio

    @property
    def pool(self) -> LogicalVolume:
        """The thin pool as last read. Raises: UnavailableError when it is gone."""
        found = self.find(self._thin)
        if found is None:
            raise UnavailableError(f"volume group {self.name} has no thin pool {self._thin} any more")
        return found

    def free_bytes(self, layout: Layout, *, max_age: float = float("inf"), without: Mapping[str, Layout] = NONE) -> int:
        """Maximum size of a new volume in bytes.

        without: logical volumes to count as removed, with their layouts. Raises: UnavailableError, HostError.
        """
        with self.lock:
            group = self.fresh(max_age=max_age)
            if self._scattered and not layout.thin and not layout.is_linear:
                group = self.read()
            if group.missing or not group.writable:
                return 0
            if layout.thin:
                left = min(self.pool.size * self._ratio, 2.0**62) - self.thin_bytes(without)
                return int(max(0.0, left)) // group.extent * group.extent
            free = self._free + self._cost(without, group.extent)
            return layout.usable(_disks_without(group, without), free) * group.extent

    def thin_bytes(self, without: Mapping[str, Layout] = NONE) -> int:
        """Bytes of the volumes in the thin pool, except those."""
        with self.lock:
            gone = [self.volumes[name] for name in without if name in self.volumes]
            return self._thin_bytes - sum(volume.size for volume in gone if self._thin and volume.pool == self._thin)

    def _cost(self, volumes: Mapping[str, Layout], extent: int) -> int:
        """Extents of the group that these logical volumes have."""
        known = [(self.volumes[name], layout) for name, layout in volumes.items() if name in self.volumes]
        return sum(layout.cost(found.size // extent) for found, layout in known)

    @contextmanager
    def making(self, reservation: ExtentReservation) -> Iterator[None]:
        """Reserve extents while a volume is made or extended; they stay counted on success. Raises: ExhaustedError."""
        with self.lock:
            if reservation.more > self.free_bytes(reservation.layout):
                raise ExhaustedError(
                    f"logical volume {reservation.name} does not fit any more into volume group {self.name}"
                )
            self._take(reservation)
            self._pending[reservation.name] = reservation
        try:
            yield
        except BaseException:
            with self.lock:
                del self._pending[reservation.name]
                self._stale = True  # it may be there all the same
            raise
        with self.lock:
            del self._pending[reservation.name]
            made = LogicalVolume(reservation.name, reservation.size, reservation.tags, "", origin=reservation.origin)
            if reservation.layout.thin:
                made = replace(made, pool=self._thin)
            known = self.volumes.get(reservation.name)
            self.volumes[reservation.name] = (
                replace(known, size=reservation.size) if known and reservation.had else made
            )

    def _take(self, reservation: ExtentReservation) -> None:
        self._free -= reservation.cost
        self._scattered = True
        if reservation.layout.thin:
            self._thin_bytes += reservation.more

    @contextmanager
    def removing(self, name: str, layout: Layout) -> Iterator[None]:
        """Release the extents of a volume when the body has succeeded."""
        reads = self.reads
        try:
            yield
        except BaseException:
            self._stale = True
            raise
        with self.lock:
            gone = self.volumes.pop(name, None)
            if gone is None or self._group is None or self.reads != reads:
                self._stale = True  # unknown whether that report still included it
                return
            self._free += layout.cost(gone.size // self._group.extent)
            self._scattered = True
            if layout.thin:
                self._thin_bytes -= gone.size

    def renamed(self, name: str, to: str) -> None:
        """Record the new name of a logical volume."""
        with self.lock:
            if found := self.volumes.pop(name, None):
                self.volumes[to] = replace(found, name=to)
            for volume in list(self.volumes.values()):
                if volume.origin == name:
                    self.volumes[volume.name] = replace(volume, origin=to)

    def retagged(self, name: str, tags: Sequence[str]) -> None:
        """Record the new tags of a logical volume."""
        with self.lock:
            if found := self.volumes.get(name):
                self.volumes[name] = replace(found, tags=tuple(tags))

    def split(self, name: str) -> None:
        """Record that a thick snapshot is an ordinary logical volume now."""
        with self.lock:
            if found := self.volumes.get(name):
                self.volumes[name] = replace(found, origin="")


def _disks_without(group: VolumeGroup, volumes: Collection[str]) -> tuple[PhysicalVolume, ...]:
    """The disks of a group, as they are once these logical volumes are removed."""
    more = Counter[str]()
    for name in volumes:
        more.update(group.placed.get(name, {}))
    return tuple(replace(disk, free=disk.free + more[disk.name]) if disk.allocatable else disk for disk in group.disks)
