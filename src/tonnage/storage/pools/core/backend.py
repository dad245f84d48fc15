"""Backend: the blocking half of a pool, one class for each technology.

The pool is the database. What must survive is stored with the volume, so open() finds everything by listing after a
kill at any moment. The pool calls all methods in its threads, with a lock held for each volume's name. Any of them may
raise HostError when the kernel or a tool fails, and UnavailableError when the pool cannot be reached. The checks of a
request are the same for all kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from tonnage.base.errors import (
    ExhaustedError,
    InvalidError,
    NotFoundError,
    OutOfRangeError,
    UnavailableError,
    UnsupportedError,
    host_errors,
)
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.pools.base import reservation
from tonnage.storage.pools.base.contract import (
    Capacity,
    Erasure,
    FeaturedPool,
    Features,
    PoolLimits,
    PoolVolume,
    SnapshotRequest,
    Stats,
    Stillness,
    VolumeOrigin,
    VolumeRequest,
    check_name,
    unsupported,
)
from tonnage.storage.pools.base.parameters import MKFS_OPTIONS, SOURCE, check_rejected, check_shared, reserve_of
from tonnage.storage.pools.base.record import Records, VolumeRecord
from tonnage.storage.pools.base.reservation import HUGE, LARGEST, SharedDisk
from tonnage.storage.pools.core.wipe import EraseRecords
from tonnage.storage.pools.fs import shutdown
from tonnage.storage.pools.fs.formats import Format, form_of
from tonnage.storage.pools.fs.online import Freeze

NO_CAPACITY = Capacity(0, 0, 0, 0, 0)


@dataclass(frozen=True)
class RequestedVolume:
    """A checked request: the size to create and the file system, "" for raw block."""

    size: int
    fstype: str


def fstype_of(pool: FeaturedPool, fstype: str, *, block: bool) -> str:
    """The requested file system, "" for raw block, or for any where that is a choice. Raises: UnsupportedError."""
    if block:
        if not pool.features.blocks:
            raise UnsupportedError(
                f"pool {pool.name!r} ({pool.features.kind}) has no raw block volumes: ask for a file system"
            )
        return ""
    if not fstype and pool.features.whole_disks:
        return ""
    offered = pool.features.fstypes
    wanted = fstype or offered[0]
    if wanted not in offered:
        raise UnsupportedError(
            f"pool {pool.name!r} ({pool.features.kind}) has no file system {wanted[:40]!r}: it has {', '.join(offered)}"
        )
    return wanted


def check_request(pool: FeaturedPool, request: VolumeRequest) -> str:
    """Check a request; return its file system, "" for raw block.

    Raises: InvalidError, UnsupportedError, OutOfRangeError.
    """
    check_name(request.name)
    if not 1 <= request.size <= LARGEST or not 0 <= request.limit <= LARGEST:
        raise InvalidError(
            f"volume {request.name}: size {request.size}, limit {request.limit}: want 1 to {LARGEST} bytes"
        )
    check_rejected(pool, request.parameters)
    fstype = fstype_of(pool, request.fstype, block=request.block)
    if request.source and not pool.features.clones:
        raise unsupported(pool, f"volumes made from a {request.source}")
    if unknown := sorted(set(request.parameters) - pool.features.parameters):
        raise InvalidError(f"pool {pool.name!r} ({pool.features.kind}) does not know the parameter {unknown[0][:60]!r}")
    if request.limit and request.size > request.limit:
        raise OutOfRangeError(f"volume {request.name}: size {request.size} is more than its limit {request.limit}")
    check_content(request.parameters, fstype, block=request.block)
    return fstype


def rounded_size(request: VolumeRequest, fstype: str, least: int, step: int) -> int:
    """The size of a request, rounded up to `least` and to a multiple of `step`, both in bytes.

    Raises: OutOfRangeError when that passes the request's limit.
    """
    size = -(-max(request.size, least) // step) * step
    if request.limit and size > request.limit:
        raise OutOfRangeError(
            f"volume {request.name}: a {fstype or 'block'} volume here has at least {from_bytes(size)},"
            f" which is more than its limit {from_bytes(request.limit)}"
        )
    return size


def check_content(
    parameters: Mapping[str, str], fstype: str, origin: VolumeRecord | None = None, *, block: bool = False
) -> None:
    """Check the file system and content that a class asks for. origin: what to copy.

    Raises: InvalidError for what a raw block volume cannot have, or a copy, whose file system exists already.
    """
    options = parameters.get(MKFS_OPTIONS, "")
    if block:
        named = sorted({MKFS_OPTIONS, SOURCE} & {key for key, value in parameters.items() if value})
        if named:
            raise InvalidError(f"parameter {named[0]}: a raw block volume has no file system: use another class for it")
    if not options or not fstype:
        return
    wanted = form_of(fstype, options).options
    if origin is not None and wanted != form_of(fstype, origin.mkfs).options:
        raise InvalidError(
            f"parameter mkfsOptions: what the volume is filled from was made with {origin.mkfs or 'none'!r} and is"
            " copied as it is: use a class with the same or none"
        )


class Mounts(ABC):
    """The volumes of a pool where they are staged and published on this node.

    A volume that is missing at a path raises NotFoundError or PreconditionError, whatever else is there.
    """

    @abstractmethod
    def check_unused(self, name: str) -> None:
        """Raises: PreconditionError while a volume is mounted or attached, InUseError if briefly."""

    @abstractmethod
    def stage(self, record: VolumeRecord, path: Path, options: Sequence[str]) -> None:
        """Stage a volume at the directory path: format it once and mount it; attach raw block. Idempotent.

        A formatted volume that does not mount is an error, never a reason to format. Raises: AlreadyExistsError.
        """

    def writes_record(self, record: VolumeRecord) -> bool:
        """Whether stage() writes this record before anybody can use the volume: with the state formatted."""
        return False

    @abstractmethod
    def unstage(self, name: str, path: Path) -> None:
        """Undo stage; success when nothing is there, also for an unknown volume."""

    @abstractmethod
    def publish(self, record: VolumeRecord, staging: Path, target: Path, *, readonly: bool) -> None:
        """Publish a staged volume at target: a directory, or for raw block a device node. Idempotent.

        Raises: PreconditionError when it is not staged, AlreadyExistsError when target shows something else or differs
        in readonly.
        """

    @abstractmethod
    def unpublish(self, name: str, target: Path) -> None:
        """Undo publish and remove target; success when nothing is there, also for an unknown volume."""

    @abstractmethod
    def stats(self, record: VolumeRecord, path: Path) -> Stats:
        """Usage of the volume as mounted at path. Raises: NotFoundError when it is not there."""

    def places(self, records: Sequence[VolumeRecord]) -> Mapping[str, Path]:
        """Where volumes are mounted on this node, one path each, for fault_at(); unused and raw block ones are missing.

        Reads the table of mounts once, however many there are. Raises: HostError.
        """
        return {}

    def revive(self, record: VolumeRecord, staging: Path) -> None:
        """Stage a volume again whose file system has shut down since: mounting repairs it.

        A kubelet does not stage a volume again for its next pod while it has not unstaged it. Raises: PreconditionError
        while another pod has it, HostError.
        """
        if not record.block and (options := shutdown.options_of(staging)) is not None:
            self.stage(record, staging, options)

    def grow(self, record: VolumeRecord, path: Path) -> VolumeRecord:
        """Grow the file system at path (or the raw block device) to the expanded size; return its record. Idempotent.

        Raises: NotFoundError, PreconditionError when it cannot grow while mounted.
        """
        self.stats(record, path)  # raises NotFoundError
        if not record.block:
            shutdown.check_answers(record.name, path, "cannot grow")
        return self.grow_used(record)

    def grow_used(self, record: VolumeRecord) -> VolumeRecord:
        """Grow a volume where it is mounted or attached, to the expanded size; return its record. Idempotent.

        By default an expansion is effective at once. Raises: NotFoundError when it is not in use, PreconditionError
        when it cannot grow while mounted, HostError.
        """
        return record

    def device(self, record: VolumeRecord) -> tuple[int, int] | None:
        """Major and minor number of the volume's own block device, None while it has none. Raises: UnsupportedError."""
        raise UnsupportedError(f"volume {record.name}: its pool does not offer block devices of its volumes")

    def fault_at(self, record: VolumeRecord, path: Path) -> str:
        """The problem of a volume where it should be mounted, "" for none."""
        return ""


class Backend(ABC):
    """Volumes of one pool on this machine."""

    name: str = ""
    """The pool's name, the prefix of its volumes' ids; set by the pool."""
    inline: int = 0
    """Inline capacity: bytes that only inline volumes can use. Set from the pool's description."""
    features: Features
    records: Records
    """The volumes; complete while the back end is open."""
    mounts: Mounts
    """The volumes on this node."""
    erasures: EraseRecords | None = None
    """The erase queue, for kinds that erase."""
    is_instant: bool = False
    """Whether no method blocks: the pool calls them in the event loop then."""
    shares_commit: bool = False
    """Whether changes are durable only after commit(), which concurrent calls share."""

    def open(self) -> None:
        """Open the pool; a failure closes it again. Raises: UnavailableError, InvalidError."""
        try:
            with host_errors(self.records.where, error=UnavailableError):
                self.load()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def load(self) -> None:
        """Lock the pool and read the records; finish or undo what a kill interrupted.

        Raises: UnavailableError, InvalidError, OSError.
        """

    def probe(self) -> None:  # noqa: B027 - kinds without it are known to be out of order by their calls only
        """Write something and remove it, as a test of the disk. Raises: HostError, UnavailableError."""

    def devices(self) -> Sequence[Path]:
        """The disks for which a call may wait and that probe() does not reach, as block devices. No I/O."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Release the resources of the process. Volumes and mounts stay. Idempotent."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether the records are known."""

    @property
    def knows_capacity(self) -> bool:
        """Whether capacity() is computed without I/O on the disk, which could block its caller."""
        return self.is_instant

    @abstractmethod
    def capacity(self, fstype: str, parameters: Mapping[str, str], *, block: bool) -> Capacity:
        """Capacity for volumes of a class with that file system, "" for raw block."""

    def needs(self, form: Format | None) -> tuple[int, int]:
        """What the size of the pool leaves free, and the bytes of its disk that one volume of them needs."""
        if not self.records.most:
            return HUGE, HUGE
        free = max(0, self.records.most - self.records.used)
        return free, form.length(free) if form else free

    def capacity_with(
        self, free: int, grain: tuple[int, int], *, piece: int = LARGEST, trash: int | None = None
    ) -> Capacity:
        """The Capacity for that many free bytes.

        piece: the largest part that is in one piece. trash: how many of them trash has, by default all of its bytes.
        """
        least, step = grain
        largest = min(free, piece) // step * step
        total = self.records.most or self.records.used + free
        held = self.records.trash_bytes() if trash is None else trash
        return Capacity(total, free, largest if largest >= least else 0, least, self.records.used, held)

    def overall(self) -> Capacity:
        """Capacity of the whole pool, for any kind of volume; for people."""
        fstype = fstype_of(self, "", block=False)
        return self.capacity(fstype, {}, block=False)

    def reread(self) -> bool:
        """Read what others may have enlarged, unless that was a moment ago; whether it was read."""
        return False

    def check(self, parameters: Mapping[str, str], fstype: str, *, block: bool) -> None:
        """Check the values of a class's parameters. Raises: InvalidError, UnsupportedError."""
        check_shared(parameters)

    def want(self, request: VolumeRequest) -> RequestedVolume:
        """Check a request and round its size. Raises: InvalidError, UnsupportedError, OutOfRangeError."""
        fstype = check_request(self, request)
        least, step = self.grain(fstype, request.parameters)
        return RequestedVolume(rounded_size(request, fstype, least, step), fstype)

    def grain(self, fstype: str, parameters: Mapping[str, str]) -> tuple[int, int]:
        """The minimum bytes of a volume of a class with that file system, and what its size is a multiple of."""
        return self.features.least, self.features.step

    def step_of(self, record: VolumeRecord) -> int:
        """Sizes of an existing volume are multiples of these bytes."""
        return self.features.step

    def check_create(  # noqa: B027 - only of kinds where more than the free bytes can be against it
        self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None
    ) -> None:
        """Check what create() will need, as if all trash were evicted, which then makes way.

        Raises: as create(), DoesNotFitError.
        """

    def check_expand(self, record: VolumeRecord, size: int) -> None:  # noqa: B027 - as check_create
        """Check what expand() will need, as check_create(). Raises: as expand(), OutOfRangeError, DoesNotFitError."""

    def check_snapshots(self, origins: Sequence[VolumeRecord]) -> None:  # noqa: B027 - as check_create
        """Check what new snapshots of these volumes will need together, as check_create().

        Raises: as snapshot(), DoesNotFitError.
        """

    @abstractmethod
    def create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> VolumeRecord:
        """Create a volume that does not exist yet.

        origin: what to copy. Raises: ExhaustedError, OutOfRangeError, PreconditionError.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a volume; an unknown one is success.

        Raises: PreconditionError while it is in use, InUseError if briefly.
        """

    @abstractmethod
    def write(self, record: VolumeRecord) -> None:
        """Write a volume's record, which commits the change. Raises: ExhaustedError."""

    @property
    def disk(self) -> SharedDisk | None:
        """The disk whose free bytes it shares with other pools, None for none."""
        return None

    def trash_fault(self) -> str:
        """Why deleted volumes cannot stay as trash, "" where they can."""
        return "its kind keeps no deleted volumes"

    def part(self, parameters: Mapping[str, str]) -> str:
        """The part of the pool that a new volume takes its bytes from, where there are several. No I/O."""
        return ""

    def part_of(self, record: VolumeRecord) -> str:
        """The part of the pool that an existing volume has its bytes from."""
        return ""

    def prepare_eviction(self, record: VolumeRecord) -> None:  # noqa: B027 - only of kinds that it helps
        """Do beforehand what would take time in the deletion of trash, for which a new volume waits."""

    def frees(self, record: VolumeRecord) -> bool:
        """Whether the deletion of a volume frees its bytes, so that it may stay as trash."""
        return True

    def restorable(self, record: VolumeRecord) -> Capacity:
        """The capacity from which a volume is restored that is trash."""
        return self.capacity(record.fstype, {}, block=record.block)

    def discount(self, record: VolumeRecord) -> None:  # noqa: B027 - only of kinds that do not count by the records
        """Count the bytes of a volume as free, which is trash now."""

    def restore(self, record: VolumeRecord) -> None:
        """Count the bytes of a volume that is no longer trash. Raises: ExhaustedError while other trash has them."""
        self.recount(record)

    def recount(self, record: VolumeRecord) -> None:  # noqa: B027 - only of kinds that do not count by the records
        """Count the bytes of a volume that was trash, though others may have them."""

    def fault(self, record: VolumeRecord) -> str:
        """The problem of a volume, apart from its mounts; "" for none."""
        return ""

    def problems(self, erasing: Sequence[Erasure]) -> list[str]:
        """Problems of the pool itself and what to do about each, one line each. erasing: the progress of its jobs."""
        return []

    def commit(self) -> None:  # noqa: B027 - only of kinds that share it
        """Make all changes durable, where `shares_commit`."""

    def limit(self) -> int:
        """Maximum number of volumes (loop, mapper or namespace limits), 0 for unlimited."""
        return 0

    def rebound(self, bounds: PoolLimits) -> None:
        """Set new limits. Volumes stay, also those above the limits. Idempotent. Raises: UnsupportedError."""
        self.records.most = bounds.size

    def expand(self, name: str, size: int) -> VolumeRecord:
        """Expand a volume to `size` bytes, more than it has; durable. Raises: ExhaustedError, PreconditionError."""
        raise unsupported(self, "larger volumes")

    def snapshot_capacity(self, origin: VolumeRecord) -> tuple[int, Capacity]:
        """Bytes that a snapshot of a volume reserves, and the capacity for it."""
        return origin.size, self.capacity(origin.fstype, {}, block=origin.block)

    def snapshot(self, wanted: SnapshotRequest, *, is_frozen: bool = False) -> VolumeRecord:
        """Create a snapshot that does not exist yet. is_frozen: the caller holds the volume's freeze().

        Raises: NotFoundError, ExhaustedError, PreconditionError.
        """
        raise unsupported(self, "snapshots")

    def shows_use(self, record: VolumeRecord) -> bool:
        """Whether the content of a volume that was made empty shows that a pod had it, whatever the record says.

        A record that is a file of its own may be restored from before the volume was used. Raises: HostError.
        """
        return False

    def stillness(self, record: VolumeRecord) -> Stillness:
        """What holds a volume still while snapshots of several are taken."""
        return Stillness.UNUSED

    def copied_bytes(self, record: VolumeRecord) -> int:
        """Bytes that a snapshot of a volume in use copies while its writers wait: 0 where blocks are shared."""
        return 0

    def freeze(self, record: VolumeRecord) -> Freeze:
        """A freeze of the mounted file system of a volume that is FROZEN, not begun. Raises: PreconditionError."""
        raise unsupported(self, "freezing")

    def snapshot_together(self, wanted: Sequence[SnapshotRequest], late: Callable[[], bool]) -> None:
        """Create snapshots of volumes that are TOGETHER at one moment, or none. late: when to give up.

        Raises: as snapshot(), HostError when it gave up.
        """
        raise unsupported(self, "snapshots of several volumes")

    def own_snapshot(self, name: str, owner: Mapping[str, str]) -> None:
        """Replace the owner record of a snapshot. Raises: NotFoundError, ExhaustedError, HostError."""
        raise unsupported(self, "snapshots")

    def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot; an unknown one is success. Volumes made from it stay."""
        raise unsupported(self, "snapshots")

    def find_snapshot(self, name: str) -> VolumeRecord | None:
        """A snapshot's record, None for none. Raises: HostError for a damaged one."""
        return None

    def make_way(self, name: str) -> None:  # noqa: B027 - most kinds have no content that could lack a record
        """Set content aside that has the name of a new snapshot, and no record. Raises: HostError."""

    def all_snapshots(self) -> Sequence[VolumeRecord]:
        """All snapshots' records, sorted by name."""
        return []

    def volume(self, record: VolumeRecord) -> PoolVolume:
        """The PoolVolume for a record."""
        return record.volume()

    def home(self, volume: PoolVolume) -> Path | None:
        """Where the pool keeps a volume mounted independent of its use, None for nowhere."""
        return None

    # What all kinds share

    def check_open(self) -> None:
        """Raises: UnavailableError unless the back end is open."""
        if not self.is_open:
            raise self.records.closed()

    def record(self, name: str) -> VolumeRecord:
        """A volume's record. Raises: NotFoundError, also for trash, UnavailableError, HostError for a damaged one."""
        self.check_open()
        found = self.records.get(name)
        if found.is_trash:
            raise NotFoundError(f"volume {name} of pool {self.name!r} was deleted; tonnage volumes restore recovers it")
        return found

    def snapshot_record(self, name: str) -> VolumeRecord:
        """A snapshot's record. Raises: NotFoundError, HostError for a damaged one."""
        if (found := self.find_snapshot(name)) is None:
            raise NotFoundError(f"pool {self.name!r} has no snapshot {name[:128]!r}")
        return found

    def reserve(self, parameters: Mapping[str, str], *, inline: bool = False) -> reservation.Reserve:
        """What a new volume of a class leaves free. inline: it is an inline volume."""
        records = list(self.records.volumes.values())  # at once: other threads make volumes meanwhile
        return reservation.reserve(self.inline, records, of_class=reserve_of(parameters), inline=inline)

    def left(
        self, reserve: reservation.Reserve, fstype: str, parameters: Mapping[str, str], *, block: bool
    ) -> Capacity:
        """The capacity for volumes of a class, less what they leave free."""
        return reservation.left(self.capacity(fstype, parameters, block=block), reserve, step=self.features.step)

    def check_evicted(self, size: int, capacity: Capacity, reserve: reservation.Reserve) -> None:
        """Raises: ExhaustedError while trash has bytes that a new volume needs."""
        if capacity.trash and size > capacity.free + reserve.now - capacity.trash:
            raise ExhaustedError(f"pool {self.name!r}: trash has the bytes")

    def origin(self, source: VolumeOrigin) -> VolumeRecord:
        """The source of a new volume. Raises: NotFoundError."""
        return self.snapshot_record(source.snapshot) if source.snapshot else self.record(source.volume)

    def modify(self, name: str, mutable: Mapping[str, str]) -> VolumeRecord:
        """Record a volume's changed parameters; durable. Raises: NotFoundError, ExhaustedError, UnsupportedError."""
        record = replace(self.record(name), mutable=dict(mutable))
        self.write(record)
        return record
