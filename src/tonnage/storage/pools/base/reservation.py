"""How much capacity a volume may take: of its pool, and of the disk that pools share.

A volume leaves two reserves: what its class leaves to others, and the inline capacity. Inline volumes use the inline
capacity and free bytes beyond it.

Sparse images reserve bytes of a disk that other pools may have reserved too. Thick images count as well: a discard
inside the volume punches holes, which stay reserved. A disk is identified by its device number, and all pools on it
share one account. The bytes that are reserved and not yet allocated must not exceed the disk's free bytes. What can
still be reserved is divided among the pools, so the sum of their published capacity does not exceed it either.
Thread-safe.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tonnage.base.errors import DoesNotFitError, ExhaustedError, OutOfRangeError
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.pools.base.contract import NO_KEEP, Capacity, Keep, PoolVolume, is_inline
from tonnage.storage.pools.base.record import VolumeRecord

LARGEST = 2**63 - 1
"""CSI counts bytes in int64."""
HUGE = 2**62
"""Bytes: more than any disk has."""
_OVERHEAD = 8
"""The overhead of a file system is less than this part of its size, plus _LEAST_OVERHEAD."""
_LEAST_OVERHEAD = 64 * 1024**2
Account = Callable[[], tuple[int, int]]
"""Reserved bytes of a pool, and their maximum, 0 for unlimited."""
DISK_RESERVE = 16 * 1024**2
"""Bytes of each disk that are never reserved: records and the disk's own metadata need them."""


@dataclass(frozen=True)
class Reserve:
    """Bytes of the pool that a volume leaves free.

    of_class: for others, as its class says. inline: for future inline volumes. budget: for all inline volumes, existing
    ones included.
    """

    of_class: int = 0
    inline: int = 0
    budget: int = 0

    @property
    def now(self) -> int:
        """The reserve out of the free bytes."""
        return self.of_class + self.inline

    @property
    def ever(self) -> int:
        """The reserve out of an empty pool."""
        return self.of_class + self.budget

    def __str__(self) -> str:
        """The end of a message about capacity, "" without a reserve."""
        parts = [f"the {from_bytes(self.of_class)} that the class leaves to others"] if self.of_class else []
        if self.inline:
            parts.append(f"the {from_bytes(self.inline)} that are reserved for inline volumes")
        return f", excluding {' and '.join(parts)}" if parts else ""


NO_RESERVE = Reserve()


def reserve(
    budget: int, volumes: Iterable[PoolVolume | VolumeRecord], *, of_class: int = 0, inline: bool = False
) -> Reserve:
    """The reserve that a volume leaves in a pool with `budget` bytes of inline capacity.

    inline: whether it is an inline volume.
    """
    if inline or not budget:
        return Reserve(of_class)
    taken = sum(volume.size for volume in volumes if is_inline(volume.owner))
    return Reserve(of_class, max(0, budget - taken), budget)


def left(capacity: Capacity, reserve: Reserve, *, step: int = 1) -> Capacity:
    """The capacity for a class that leaves `reserve`."""
    if not reserve.ever:
        return capacity
    free = max(0, capacity.free - reserve.now)
    largest = min(capacity.largest, free // step * step)
    return replace(
        capacity,
        total=max(0, capacity.total - reserve.ever),
        free=free,
        largest=largest if largest >= capacity.smallest else 0,
    )


def check_more(pool: str, volume: PoolVolume, size: int, capacity: Capacity, reserve: Reserve = NO_RESERVE) -> None:
    """Check that a volume can grow to `size` bytes.

    pool: its name. capacity: what left() returns with that reserve. Raises: OutOfRangeError when a volume can never
    have `size` bytes, DoesNotFitError when the free bytes do not suffice.
    """
    if size > capacity.total:
        raise OutOfRangeError(
            f"volume {volume.name} cannot have {from_bytes(size)}: pool {pool!r} holds"
            f" {from_bytes(capacity.total)} at most{_ever(reserve)}"
        )
    if size - volume.size > capacity.free:
        raise DoesNotFitError(
            f"volume {volume.name} cannot grow by {from_bytes(size - volume.size)}: pool {pool!r} has"
            f" {from_bytes(capacity.free)} free{reserve} ({_reserved(capacity, reserve)})"
        )


def check_fits(pool: str, name: str, size: int, capacity: Capacity, reserve: Reserve = NO_RESERVE) -> None:
    """Check that a new volume fits.

    pool: its name. capacity: what left() returns with that reserve. Raises: OutOfRangeError when the empty pool would
    be too small, DoesNotFitError when the free bytes do not suffice.
    """
    if size > capacity.total:
        raise OutOfRangeError(
            f"volume {name} of {from_bytes(size)} can never fit: pool {pool!r} holds"
            f" {from_bytes(capacity.total)} at most{_ever(reserve)}"
        )
    if size > capacity.largest:
        raise DoesNotFitError(
            f"volume {name} of {from_bytes(size)} does not fit: pool {pool!r} has at most"
            f" {from_bytes(capacity.largest)} for one volume{reserve} ({_reserved(capacity, reserve)})"
        )


def _ever(reserve: Reserve) -> str:
    return str(replace(reserve, inline=reserve.budget))


def _reserved(capacity: Capacity, reserve: Reserve) -> str:
    return f"{from_bytes(capacity.used)} of {from_bytes(capacity.total + reserve.ever)} reserved"


class DiskTrash(Protocol):
    """The trash of an open pool, which others on its disk evict when they need its bytes. Not thread-safe."""

    name: str
    """The pool's."""
    kind: str

    def evictable(self, *, spare: bool) -> Sequence[VolumeRecord]:
        """What may be evicted. spare: what is being restored stays."""

    async def evict(self, name: str) -> None:
        """Delete trash for good; one that was restored or is unknown stays as it is."""


class SharedDisk:
    """One disk and the files on it that may still grow, with the maximum length of each."""

    def __init__(self, path: Path) -> None:
        self.trash: set[DiskTrash] = set()
        """The trash of open pools there, which they add and remove."""
        self._path = path
        self._lock = threading.Lock()
        self._reserved: dict[Path, tuple[int, Callable[[Path], int]]] = {}
        self._total = 0
        self._pools: dict[Path, Account] = {}
        self._trash: dict[Path, Callable[[Path], int]] = {}

    def join(self, pool: Path, account: Account) -> None:
        """Include that pool in the division of the disk's free bytes, until it leaves. Idempotent."""
        with self._lock:
            self._pools[pool] = account

    def leave(self, pool: Path) -> None:
        """Exclude that pool from the division. Idempotent."""
        with self._lock:
            self._pools.pop(pool, None)

    def reserve(
        self,
        path: Path,
        length: int,
        *,
        ratio: float,
        keep: Keep = NO_KEEP,
        allocated: Callable[[Path], int] | None = None,
    ) -> None:
        """Reserve bytes for a file that may grow to `length`; for a known file only the difference.

        ratio: overcommit factor for free bytes, inf for unlimited. keep: what stays free. allocated: returns the bytes
        that it has now; by default path is a file. Raises: ExhaustedError.
        """
        with self._lock:
            more = length - self._length(path)
            if ratio != float("inf") and more > (free := self._free_bytes(ratio, more, keep, trash=False)):
                raise ExhaustedError(self._lacks(free, more, keep))
            self._add(path, length, allocated)

    def check(self, path: Path, length: int, *, now: int, ratio: float, keep: Keep = NO_KEEP) -> None:
        """Check that reserve() will succeed once all trash is evicted, and `now` bytes can be allocated then.

        Raises: DoesNotFitError.
        """
        with self._lock:
            if not self._trash:
                return
            more = length - self._length(path)
            if ratio != float("inf") and more > (free := self._free_bytes(ratio, more, keep)):
                raise DoesNotFitError(self._lacks(free, more, keep))
            if now > (free := self._obtainable()):
                raise DoesNotFitError(
                    f"the disk under {self._path} has {from_bytes(free)} at most, also without deleted volumes,"
                    f" {from_bytes(now)} are needed at once; free space there"
                )

    def _lacks(self, free: int, more: int, keep: Keep) -> str:
        beside = f", excluding {keep} of min free," if keep else ""
        return (
            f"the disk under {self._path} has {from_bytes(max(0, free))}{beside} that is neither used nor"
            f" reserved, {from_bytes(more)} are needed; free space there, or set overcommit= of the pool"
        )

    def _obtainable(self) -> int:
        """The most bytes that can be allocated once all trash is evicted, those that are reserved for root included."""
        found = os.statvfs(self._path)
        for_root = max(0, found.f_bfree - found.f_bavail) * found.f_frsize
        return self.free() + DISK_RESERVE + for_root + self._trash_bytes()

    def _trash_bytes(self) -> int:
        return sum(allocated(path) for path, allocated in self._trash.items())

    def remember(self, path: Path, length: int, *, allocated: Callable[[Path], int] | None = None) -> None:
        """Count a file found at start; its bytes were reserved before."""
        with self._lock:
            self._add(path, length, allocated)

    @property
    def has_trash(self) -> bool:
        """Whether a deleted volume on the disk counts as free."""
        return bool(self._trash)

    def move(self, path: Path) -> None:
        """Use the disk at that path from now on: the former one may be gone, and its number may be another disk's."""
        self._path = path

    def forget(self, path: Path) -> None:
        """Stop counting a removed file. Idempotent."""
        with self._lock:
            self._forget(path)

    def discount(self, path: Path) -> None:
        """Count a file as free, though reserve() does not: it is removed when they are needed. Idempotent."""
        with self._lock:
            if path in self._reserved:
                _, allocated = self._reserved[path]
                self._forget(path)
                self._trash[path] = allocated

    def restore(
        self, path: Path, length: int, *, ratio: float, keep: Keep, allocated: Callable[[Path], int] | None
    ) -> None:
        """Reserve bytes for a discounted file, which has some.

        Raises: ExhaustedError while other trash has the rest, DoesNotFitError when no trash has it.
        """
        with self._lock:
            has = (allocated or _allocated)(path)
            more = max(0, length - has)
            if ratio != float("inf") and more > (free := self._free_bytes(ratio, more, keep, trash=False)):
                is_possible = more + has <= self._free_bytes(ratio, more + has, keep)
                raise (ExhaustedError if is_possible else DoesNotFitError)(
                    f"the disk under {self._path} has {from_bytes(max(0, free))} that is neither used nor reserved,"
                    f" {from_bytes(more)} are needed"
                )
            self._add(path, length, allocated)

    def free_bytes(self, *, ratio: float, enough: int, keep: Keep = NO_KEEP, pool: Path | None = None) -> int:
        """Bytes that can still be reserved, by one pool if a joined one is given.

        Counting ends at `enough`, which avoids stat calls.
        """
        if ratio == float("inf"):
            return enough
        with self._lock:
            needs = self._needs(pool)
            others = sum(cap - used for other, (used, cap) in needs.items() if other != pool)
            left = max(0, self._free_bytes(ratio, enough + others, keep))
            if pool in needs and left < enough + others:
                used, cap = needs[pool]
                left = min(left, max(0, min(_fill_level(needs.values(), left), cap) - used))
            return min(enough, left)

    def _needs(self, pool: Path | None) -> dict[Path, tuple[int, int]]:
        """What each pool has reserved and its maximum, overhead of file systems included.

        Every pool must count alike here, or the shares would not add up.
        """
        if pool not in self._pools:
            return {}
        found = {}
        for other, account in self._pools.items():
            used, size = account()
            more = max(0, size - used)
            found[other] = used, used + (more + more // _OVERHEAD + _LEAST_OVERHEAD if size else HUGE)
        return found

    def free(self) -> int:
        """Free bytes of the disk, reserved or not."""
        found = os.statvfs(self._path)
        return max(0, found.f_bavail * found.f_frsize - DISK_RESERVE)

    def size(self) -> int:
        """Bytes the disk has."""
        found = os.statvfs(self._path)
        return found.f_blocks * found.f_frsize

    def _forget(self, path: Path) -> None:
        self._total -= self._length(path)
        self._reserved.pop(path, None)
        self._trash.pop(path, None)

    def _add(self, path: Path, length: int, allocated: Callable[[Path], int] | None) -> None:
        self._trash.pop(path, None)
        self._total += length - self._length(path)
        self._reserved[path] = length, allocated or _allocated

    def _length(self, path: Path) -> int:
        return self._reserved[path][0] if path in self._reserved else 0

    def _free_bytes(self, ratio: float, enough: int, keep: Keep, *, trash: bool = True) -> int:
        free = self.free() + (self._trash_bytes() if trash else 0)
        free = int(max(0, free - (keep.of(self.size()) if keep else 0)) * ratio)
        if free - self._total >= enough:  # nothing allocated yet would be the worst case
            return free - self._total
        return free - self._exactly()

    def _exactly(self) -> int:
        return sum(max(0, length - allocated(path)) for path, (length, allocated) in self._reserved.items())


def _fill_level(pools: Iterable[tuple[int, int]], left: int) -> int:
    """The level to which all pools can be filled, each from its reserved bytes up to its maximum, with `left` bytes.

    Pools that are neither above the level nor full get equal totals. So a volume changes the share of its own pool
    only.
    """
    steps = sorted(step for used, cap in pools for step in ((used, 1), (cap, -1)))
    filling, level = 0, 0
    for at, change in steps:
        if filling and (at - level) * filling > left:
            return level + left // filling
        left -= (at - level) * filling
        level, filling = at, filling + change
    return level + left


def _allocated(path: Path) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0


class Disks:
    """The disks under some pools. What makes pools that may share a disk makes one, and hands it to each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._disks: dict[int, SharedDisk] = {}

    def of(self, path: Path) -> SharedDisk:
        """The disk under path. Raises: OSError."""
        number = os.stat(path).st_dev
        with self._lock:
            disk = self._disks.setdefault(number, SharedDisk(path))
            disk.move(path)
            return disk
