"""The account of a volume group: what it has, what is promised, what our commands have changed since it was read.

One `lvm fullreport` reads everything. A command of ours is booked before it runs and settled by its result, so the
account stays right without another report; after a failure, or when something that we did not expect was found, it is
read anew before the next answer. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tonnage.errors import Exhausted, NotFound, Unavailable
from tonnage.host import lvm
from tonnage.host.lvm import Group, LogicalVolume
from tonnage.pools.lvmlayout import Layout

MAX_AGE = 60.0
"""Seconds after which a report is read anew when somebody asks: others may change the group as well."""


@dataclass(frozen=True)
class Booking:
    """A volume being made. extents: of the volume; size: bytes of it."""

    name: str
    layout: Layout
    extents: int
    size: int


class Account:
    """A group's extents and a thin pool's promises.

    thin: name of the thin pool, "" for none. ratio: how often its size may be promised. on_read: told each report that
    was read, under the lock, before anybody else sees it. monotonic: seconds.
    """

    def __init__(
        self,
        group: str,
        *,
        thin: str,
        ratio: float,
        on_read: Callable[[Group], None],
        monotonic: Callable[[], float],
    ) -> None:
        self.name = group
        self.lock = threading.RLock()
        self._thin = thin
        self._ratio = ratio
        self._on_read = on_read
        self._monotonic = monotonic
        self._group: Group | None = None
        self._free = 0
        self._promised = 0  # bytes of the volumes in the thin pool
        self._scattered = False  # whether we no longer know which disk has how much
        self._stale = True
        self._read_at = 0.0
        self._reads = 0
        self._pending: dict[str, Booking] = {}

    def read(self) -> Group:
        """Read everything anew. Raises Unavailable when the group is not there or cannot be used."""
        with self.lock:
            try:
                group = lvm.read(self.name)
            except NotFound as failure:
                raise Unavailable(str(failure)) from failure
            self._group, self._free = group, sum(disk.free for disk in group.disks)
            self._promised = sum(v.size for v in group.volumes.values() if self._thin and v.pool == self._thin)
            for booking in self._pending.values():
                if booking.name not in group.volumes:
                    self._take(booking)
            self._scattered, self._stale = bool(self._pending), False
            self._read_at = self._monotonic()
            self._reads += 1
            self._on_read(group)
            return group

    def fresh(self, *, max_age: float = float("inf")) -> Group:
        """What is known, read anew where needed. Raises Unavailable."""
        with self.lock:
            if self._group is None or self._stale or self._monotonic() - self._read_at > max_age:
                return self.read()
            return self._group

    def distrust(self) -> None:
        """Read anew before the next answer."""
        self._stale = True

    def forget(self) -> None:
        """Know nothing any more."""
        with self.lock:
            self._group, self._stale = None, True

    @property
    def pool(self) -> LogicalVolume:
        """The thin pool as last read. Raises Unavailable when it is gone."""
        found = self.fresh().volumes.get(self._thin)
        if found is None:
            raise Unavailable(f"volume group {self.name} has no thin pool {self._thin} any more")
        return found

    def room(self, layout: Layout, *, max_age: float = float("inf")) -> int:
        """Bytes of the largest volume that fits. Raises Unavailable."""
        with self.lock:
            group = self.fresh(max_age=max_age)
            if self._scattered and not layout.thin and not layout.is_linear:
                group = self.read()
            if group.missing or not group.writable:
                return 0
            if layout.thin:
                left = min(self.pool.size * self._ratio, 2.0**62) - self._promised
                return int(max(0.0, left)) // group.extent * group.extent
            return layout.room(group.disks, self._free) * group.extent

    @contextmanager
    def making(self, booking: Booking) -> Iterator[None]:
        """Keep the room of a volume while it is made, for good when that succeeds. Raises Exhausted."""
        with self.lock:
            if booking.size > self.room(booking.layout):
                raise Exhausted(f"volume {booking.name} does not fit any more into volume group {self.name}")
            self._take(booking)
            self._pending[booking.name] = booking
        try:
            yield
        except BaseException:
            with self.lock:
                del self._pending[booking.name]
                self._stale = True  # it may be there all the same
            raise
        with self.lock:
            del self._pending[booking.name]

    def _take(self, booking: Booking) -> None:
        self._free -= booking.layout.cost(booking.extents)
        self._scattered = True
        if booking.layout.thin:
            self._promised += booking.size

    @contextmanager
    def removing(self, booking: Booking) -> Iterator[None]:
        """Give the room of a volume back when what is done inside has succeeded."""
        reads = self._reads
        try:
            yield
        except BaseException:
            self._stale = True
            raise
        with self.lock:
            if self._reads != reads:  # nobody knows whether that report had it still
                self._stale = True
                return
            self._free += booking.layout.cost(booking.extents)
            self._scattered = True
            if booking.layout.thin:
                self._promised -= booking.size
