"""The fake pool, which only counts: the reference of the back ends, for tests, simulation and boxes without root.

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
from uuid import UUID

from msgspec import structs

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.errors import (
    AlreadyExistsError,
    HostError,
    NotFoundError,
    OutOfRangeError,
    PreconditionError,
    host_errors,
)
from tonnage.host import nofollow, tree
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.pools.base.contract import (
    Capacity,
    Erasure,
    Features,
    PoolLimits,
    PoolVolume,
    SnapshotRequest,
    Stats,
    VolumeRequest,
)
from tonnage.storage.pools.base.parameters import COUNTED, ERASE, check_shared, erase_of
from tonnage.storage.pools.base.record import Records, VolumeRecord, new_record
from tonnage.storage.pools.core.backend import Backend, Mounts, RequestedVolume
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.core.wipe import EraseJob
from tonnage.storage.pools.fs import mounts

FEATURES = Features(
    "fake",
    fstypes=("ext4", "xfs", "btrfs"),
    parameters=COUNTED,
    modifiable=frozenset({ERASE}),
    snapshots=True,
    clones=True,
    expansion=True,
    step=1,
    least=1,
)
_NO_UUID = UUID(int=0)


class FakeBackend(Backend, Mounts):
    """Counts volumes against a size, and remembers where they are staged and published."""

    is_instant = True
    is_open = True

    def __init__(
        self, size: int, *, largest: int, features: Features, directories: bool, clock: Clock, erase_rate: int
    ) -> None:
        self.mounts = self
        self.features = features
        self.records = Records("fake pool")
        self.size = size
        self._largest = largest or size
        self._directories = directories
        self._clock = clock
        self._snapshots: dict[str, VolumeRecord] = {}
        self.remains = Remains(erase_rate)
        self.staged: dict[str, set[str]] = {}
        """Volume -> staging paths."""
        self._targets: dict[str, tuple[str, bool]] = {}
        self._published: dict[str, set[str]] = {}

    def load(self) -> None:
        self.records.used = sum(record.size for record in (*self.records.volumes.values(), *self._snapshots.values()))

    def close(self) -> None:
        pass

    def check(self, parameters: Mapping[str, str], fstype: str, *, block: bool) -> None:
        check_shared(parameters)

    def want(self, request: VolumeRequest) -> RequestedVolume:
        want = super().want(request)
        if want.size > self._largest and request.name not in self.records.volumes:
            most = from_bytes(min(self.size, self._largest))
            size = from_bytes(want.size)
            raise OutOfRangeError(
                f"volume {request.name} of {size} can never fit: pool {self.name!r} holds {most} at most"
            )
        return want

    def capacity(self, fstype: str, parameters: Mapping[str, str], *, block: bool) -> Capacity:
        used = self.records.used + sum(erasure.reserved for erasure in self.remains.all(self._clock.monotonic()))
        free = max(0, self.size - used)
        largest, trash = min(free, self._largest), self.records.trash_bytes()
        return Capacity(self.size, free, largest, self.features.least, used, trash)

    def create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> VolumeRecord:
        record = new_record(request, want.size, want.fstype, uuid=_NO_UUID, created=self._clock.time(), origin=origin)
        self.write(record)
        self.records.used += record.size
        return record

    def write(self, record: VolumeRecord) -> None:
        self.records.volumes[record.name] = record

    def trash_fault(self) -> str:
        return ""

    def discount(self, record: VolumeRecord) -> None:
        self.records.used -= record.size

    def recount(self, record: VolumeRecord) -> None:
        self.records.used += record.size

    def rebound(self, bounds: PoolLimits) -> None:
        if self._largest == self.size:
            self._largest = bounds.size
        self.size = bounds.size

    def delete(self, name: str) -> None:
        if name not in self.records.volumes:
            return
        self.check_unused(name)
        record = self.records.volumes.pop(name)
        self.records.used -= record.size
        self.remains.add(record.volume(), self._clock.monotonic())

    def check_unused(self, name: str) -> None:
        if using := sorted(self.staged.get(name, set()) | self._published.get(name, set())):
            raise PreconditionError(f"volume {name} is in use at {using[0]}: unpublish and unstage it first")

    def stage(self, record: VolumeRecord, path: Path, options: Sequence[str]) -> None:
        if self._directories and not record.block:
            mounts.make_directory(path)
        if record.pending:
            self.write(structs.replace(record, pending=False))
        self.staged.setdefault(record.name, set()).add(str(path))

    def unstage(self, name: str, path: Path) -> None:
        _forget(self.staged, name, str(path))

    def publish(self, record: VolumeRecord, staging: Path, target: Path, *, readonly: bool) -> None:
        name = record.name
        if str(staging) not in self.staged.get(name, ()):
            raise PreconditionError(f"volume {name} is not staged at {staging}: stage it first")
        shown = self._targets.setdefault(str(target), (name, readonly))
        if shown != (name, readonly):
            what = f"volume {shown[0]}, {'read-only' if shown[1] else 'writable'}"
            raise AlreadyExistsError(f"{target} already shows {what}; requested {name}, readonly={readonly}")
        self._published.setdefault(name, set()).add(str(target))
        if self._directories:
            mounts.make_file(target) if record.block else mounts.make_directory(target, mode=0o777)

    def unpublish(self, name: str, target: Path) -> None:
        shown, _ = self._targets.pop(str(target), (name, False))
        _forget(self._published, shown, str(target))

    def stats(self, record: VolumeRecord, path: Path) -> Stats:
        name = record.name
        if str(path) not in self.staged.get(name, ()) and self._targets.get(str(path), ("",))[0] != name:
            raise NotFoundError(f"volume {name} is not at {path}")
        return Stats(total=record.size, used=0, available=record.size)  # files in its directory are not measured

    def snapshot(self, wanted: SnapshotRequest, *, is_frozen: bool = False) -> VolumeRecord:
        made = structs.replace(
            self.record(wanted.volume),
            name=wanted.name,
            from_volume=wanted.volume,
            owner=dict(wanted.owner),
            created=self._clock.time(),
        )
        self._snapshots[wanted.name] = made
        self.records.used += made.size
        return made

    def own_snapshot(self, name: str, owner: Mapping[str, str]) -> None:
        self._snapshots[name] = structs.replace(self.snapshot_record(name), owner=dict(owner))

    def delete_snapshot(self, name: str) -> None:
        if found := self._snapshots.pop(name, None):
            self.records.used -= found.size

    def find_snapshot(self, name: str) -> VolumeRecord | None:
        return self._snapshots.get(name)

    def all_snapshots(self) -> Sequence[VolumeRecord]:
        return [self._snapshots[name] for name in sorted(self._snapshots)]

    def expand(self, name: str, size: int) -> VolumeRecord:
        record = self.record(name)
        self.records.used += size - record.size
        self.write(structs.replace(record, size=size, pending=True))
        return self.records.volumes[name]

    def grow_used(self, record: VolumeRecord) -> VolumeRecord:
        if record.pending and not self.staged.get(record.name):
            raise NotFoundError(f"volume {record.name} is not staged")
        record = structs.replace(record, pending=False)
        self.write(record)
        return record


class FakePool(Pool):
    """A pool that counts volumes against `size` bytes.

    largest: artificial maximum of one volume in bytes, 0 for none. smallest: minimum size; requests are rounded up.
    directories: make a plain directory at each staging path and target. erase_rate: bytes per second at which deleted
    volumes appear to be erased (there is nothing to overwrite), 0: at once. features: in place of all that it has.
    """

    def __init__(  # noqa: PLR0913  # what tests vary
        self,
        name: str,
        size: int,
        *,
        largest: int = 0,
        smallest: int = 1,
        directories: bool = True,
        clock: Clock | None = None,
        erase_rate: int = 0,
        features: Features = FEATURES,
    ) -> None:
        self.fake = FakeBackend(
            size,
            largest=largest,
            features=replace(features, least=smallest),
            directories=directories,
            clock=clock or RealClock(),
            erase_rate=erase_rate,
        )
        super().__init__(name, self.fake, clock=clock)
        self.fake.records.where = f"pool {name!r}"
        self._directories = directories

    def rebound(self, bounds: PoolLimits, *, erase_rate: int | None = None) -> None:
        super().rebound(bounds)
        self.fake.remains.rate = erase_rate or 0

    async def erasing(self) -> Sequence[Erasure]:
        return self.fake.remains.all(self.work.clock.monotonic())

    async def unpublish(self, name: str, target: Path) -> None:
        await super().unpublish(name, target)
        if self._directories and not _gone(target):
            await asyncio.to_thread(_remove, target)


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
        self._jobs.append(EraseJob("", volume.name, method, volume.size, reserved=volume.size))

    def all(self, now: float) -> list[Erasure]:
        """What is not erased yet."""
        while self._jobs and (now - self._since) * self.rate >= self._jobs[0].total:
            self._since += self._jobs.pop(0).total / self.rate
        done = int((now - self._since) * self.rate) if self._jobs else 0
        jobs = [structs.replace(job, done=0 if number else done) for number, job in enumerate(self._jobs)]
        return sorted((job.erasure() for job in jobs), key=lambda erasure: erasure.name)


def _forget(index: dict[str, set[str]], name: str, path: str) -> None:
    paths = index.get(name, set())
    paths.discard(path)
    if not paths:
        index.pop(name, None)


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
    """Remove a directory with all that a pod left in it, without entering symlinks and mounts. Raises: HostError."""
    with host_errors(f"cannot remove {target}"), nofollow.parent(target) as (at, name):
        tree.remove(nofollow.by_fd(at, name))
