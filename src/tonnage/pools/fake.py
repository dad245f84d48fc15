"""The fake pool, which only counts: the reference of the contract, for tests, simulation and boxes without root.

Sizes are counted exactly. Staged and published paths are recorded in the process. With `directories` a published volume
is a plain directory without a limit. Nothing survives the process. Nothing here blocks or uses a thread, except the
removal of what a pod left in such a directory.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from tonnage.aio.clock import Clock, RealClock
from tonnage.errors import AlreadyExists, HostError, NotFound, Precondition
from tonnage.host import nofollow, tree
from tonnage.pools.base import reservation
from tonnage.pools.base.contract import (
    Capacity,
    Erasure,
    Pool,
    PoolLimits,
    PoolVolume,
    Snapshot,
    Stats,
    VolumeOrigin,
    VolumeRequest,
    check_name,
    is_inline,
)
from tonnage.pools.base.parameters import ERASE, RESERVE, changed, check_modifiable, check_shared, erase_of, reserve_of
from tonnage.pools.core import request as requests
from tonnage.pools.core.wipe import EraseJob
from tonnage.pools.fs import mounts


class FakePool(Pool):
    """Counts volumes against `size` bytes.

    largest: artificial maximum of one volume in bytes, 0 for none. smallest: minimum size; requests are rounded up.
    directories: make a plain directory at each staging path and target. erase_rate: bytes per second at which deleted
    volumes appear to be erased (there is nothing to overwrite), 0: at once.
    """

    kind = "fake"
    fstypes = ("ext4", "xfs", "btrfs")
    parameters = frozenset({ERASE, RESERVE})
    modifiable = frozenset({ERASE})
    snapshots = clones = expansion = True

    def __init__(
        self,
        name: str,
        size: int,
        *,
        largest: int = 0,
        smallest: int = 1,
        directories: bool = True,
        clock: Clock | None = None,
        erase_rate: int = 0,
    ) -> None:
        self.name = name
        self.size = size
        self._largest = largest or size
        self._smallest = smallest
        self._directories = directories
        self._clock = clock or RealClock()
        self._volumes: dict[str, PoolVolume] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._used = 0
        self._erasing = Remains(erase_rate)
        self._staged: dict[str, set[str]] = {}
        self._targets: dict[str, tuple[str, bool]] = {}
        self._published: dict[str, set[str]] = {}

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to release; the volumes stay for the next open()."""

    async def create(self, request: VolumeRequest) -> PoolVolume:
        if found := self._volumes.get(request.name):
            request = requests.again(found, request)
        elif request.source:
            request = requests.filled(self, request, self._origin(request.source))
        want = requests.check(self, request, least=self._smallest)
        check_shared(request.parameters)
        check_modifiable(self, request.mutable)
        if found:
            return requests.existing(found, request, want)
        reserve = self._reserve(request.parameters, inline=is_inline(request.owner))
        free = reservation.left(self._room(), reserve)
        reservation.check_room(self, request.name, want.size, free, reserve, most=self._largest)
        volume = PoolVolume(
            request.name,
            want.size,
            block=request.block,
            fstype=want.fstype,
            parameters=dict(request.parameters),
            owner=dict(request.owner),
            created=self._clock.time(),
            source=request.source,
            mutable={key: value for key, value in request.mutable.items() if value},
        )
        self._volumes[request.name] = volume
        self._used += want.size
        return volume

    def _origin(self, source: VolumeOrigin) -> PoolVolume | Snapshot:
        found = self._snapshots.get(source.snapshot) if source.snapshot else self._volumes.get(source.volume)
        if found is None:
            raise NotFound(f"pool {self.name!r} has no {str(source)[:140]}")
        return found

    def rebound(self, bounds: PoolLimits, *, erase_rate: int | None = None) -> None:
        if self._largest == self.size:
            self._largest = bounds.size
        self.size = bounds.size
        self._erasing.rate = erase_rate or 0

    async def delete(self, name: str, *, wait: bool = True) -> None:
        if name not in self._volumes:
            return
        if using := sorted(self._staged.get(name, set()) | self._published.get(name, set())):
            raise Precondition(f"volume {name} is in use at {using[0]}: unpublish and unstage it first")
        volume = self._volumes.pop(name)
        self._used -= volume.size
        self._erasing.add(volume, self._clock.monotonic())

    async def erasing(self) -> Sequence[Erasure]:
        return self._erasing.all(self._clock.monotonic())

    async def get(self, name: str) -> PoolVolume:
        try:
            return self._volumes[name]
        except KeyError:
            raise NotFound(f"pool {self.name!r} has no volume {name[:128]!r}") from None

    async def list(self) -> Sequence[PoolVolume]:
        return [self._volumes[name] for name in sorted(self._volumes)]

    async def capacity(self, *, fstype: str = "", block: bool = False) -> Capacity:
        return await self.capacity_for({}, fstype=fstype, block=block)

    async def capacity_for(
        self, parameters: Mapping[str, str], *, fstype: str = "", block: bool = False, inline: bool = False
    ) -> Capacity:
        requests.fstype_of(self, fstype, block=block)
        return reservation.left(self._room(), self._reserve(parameters, inline=inline))

    def _reserve(self, parameters: Mapping[str, str], *, inline: bool = False) -> reservation.Reserve:
        return reservation.reserve(self.inline, self._volumes.values(), of_class=reserve_of(parameters), inline=inline)

    def _room(self) -> Capacity:
        used = self._used + sum(erasure.room for erasure in self._erasing.all(self._clock.monotonic()))
        free = max(0, self.size - used)
        return Capacity(
            total=self.size, free=free, largest=min(free, self._largest), smallest=self._smallest, used=used
        )

    async def stage(self, name: str, path: Path, *, options: Sequence[str] = ()) -> None:
        volume = await self.get(name)
        if self._directories and not volume.block:
            mounts.make_directory(path)
        if volume.pending:
            self._volumes[name] = replace(volume, pending=False)
        self._staged.setdefault(name, set()).add(str(path))

    async def unstage(self, name: str, path: Path) -> None:
        _forget(self._staged, name, str(path))

    async def publish(self, name: str, staging: Path, target: Path, *, readonly: bool = False) -> None:
        volume = await self.get(name)
        if str(staging) not in self._staged.get(name, ()):
            raise Precondition(f"volume {name} is not staged at {staging}: stage it first")
        shown = self._targets.setdefault(str(target), (name, readonly))
        if shown != (name, readonly):
            what = f"volume {shown[0]}, {'read-only' if shown[1] else 'writable'}"
            raise AlreadyExists(f"{target} already shows {what}; requested {name}, readonly={readonly}")
        self._published.setdefault(name, set()).add(str(target))
        if self._directories:
            _show(target, block=volume.block)

    async def unpublish(self, name: str, target: Path) -> None:
        shown, _ = self._targets.pop(str(target), (name, False))
        _forget(self._published, shown, str(target))
        if self._directories and not _gone(target):
            await asyncio.to_thread(_remove, target)

    async def stats(self, name: str, path: Path) -> Stats:
        """Usage of a volume. Files in its directory are not measured."""
        volume = await self.get(name)
        if str(path) not in self._staged.get(name, ()) and self._targets.get(str(path), ("",))[0] != name:
            raise NotFound(f"volume {name} is not at {path}")
        return Stats(total=volume.size, used=0, available=volume.size)

    async def create_snapshot(self, name: str, volume: str, *, owner: Mapping[str, str] | None = None) -> Snapshot:
        check_name(name)
        if found := self._snapshots.get(name):
            return requests.existing_snapshot(found, volume)
        of = await self.get(volume)
        reserve = self._reserve({})
        reservation.check_room(self, name, of.size, reservation.left(self._room(), reserve), reserve)
        made = Snapshot(name, volume, of.size, of.block, of.fstype, dict(owner or {}), self._clock.time())
        self._snapshots[name] = made
        self._used += made.size
        return made

    async def delete_snapshot(self, name: str) -> None:
        if found := self._snapshots.pop(name, None):
            self._used -= found.size

    async def get_snapshot(self, name: str) -> Snapshot:
        try:
            return self._snapshots[name]
        except KeyError:
            raise NotFound(f"pool {self.name!r} has no snapshot {name[:128]!r}") from None

    async def list_snapshots(self) -> Sequence[Snapshot]:
        return [self._snapshots[name] for name in sorted(self._snapshots)]

    async def expand(self, name: str, size: int, *, limit: int = 0) -> PoolVolume:
        volume = await self.get(name)
        wanted = requests.larger(self, volume, size, limit)
        reserve = self._reserve(volume.parameters)
        reservation.check_more(self, volume, wanted, reservation.left(self._room(), reserve), reserve)
        self._used += wanted - volume.size
        self._volumes[name] = replace(volume, size=wanted, pending=volume.pending or wanted > volume.size)
        return self._volumes[name]

    async def grow(self, name: str, path: Path) -> PoolVolume:
        await self.stats(name, path)
        self._volumes[name] = replace(self._volumes[name], pending=False)
        return self._volumes[name]

    async def modify(self, name: str, parameters: Mapping[str, str]) -> PoolVolume:
        volume = await self.get(name)
        self._volumes[name] = replace(volume, mutable=changed(self, volume, parameters))
        return self._volumes[name]


class Remains:
    """Deleted volumes, erased one by one; the progress is computed when it is read."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._jobs: list[EraseJob] = []
        self._since = 0.0

    def add(self, volume: PoolVolume, now: float) -> None:
        """Start to erase a volume, if its class says so."""
        method = erase_of(volume.effective)
        if method == "none" or not self.rate:
            return
        if not self.all(now):
            self._since = now
        self._jobs.append(EraseJob("", volume.name, method, volume.size, room=volume.size))

    def all(self, now: float) -> list[Erasure]:
        """What is not erased yet."""
        while self._jobs and (now - self._since) * self.rate >= self._jobs[0].total:
            self._since += self._jobs.pop(0).total / self.rate
        done = int((now - self._since) * self.rate) if self._jobs else 0
        jobs = [msgspec.structs.replace(job, done=0 if number else done) for number, job in enumerate(self._jobs)]
        return sorted((job.erasure() for job in jobs), key=lambda erasure: erasure.name)


def _forget(index: dict[str, set[str]], name: str, path: str) -> None:
    paths = index.get(name, set())
    paths.discard(path)
    if not paths:
        index.pop(name, None)


def _show(target: Path, *, block: bool) -> None:
    mounts.make_file(target) if block else mounts.make_directory(target, mode=0o777)


def _gone(target: Path) -> bool:
    """Remove a file, an empty directory or a symlink itself. False for a directory that is not empty."""
    try:
        with nofollow.parent(target) as (at, name):
            try:
                os.rmdir(name, dir_fd=at)
            except NotADirectoryError:
                os.unlink(name, dir_fd=at)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as failure:
        if failure.errno == errno.ENAMETOOLONG:
            return True
        if failure.errno != errno.ENOTEMPTY:
            raise HostError(f"cannot remove {target}: {failure.strerror}") from failure
        return False
    return True


def _remove(target: Path) -> None:
    """Remove a directory with all that a pod left in it, without entering symlinks and mounts. Raises HostError."""
    try:
        with nofollow.parent(target) as (at, name):
            tree.remove(nofollow.by_fd(at, name))
    except OSError as failure:
        raise HostError(f"cannot remove {target}: {failure.strerror}") from failure
