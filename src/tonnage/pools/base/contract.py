"""The Pool contract: what every kind of pool offers, and its types. The fake pool is the reference.

The pool is the database. What must survive is stored with the volume, so `open()` finds everything by listing after a
kill at any moment. All methods except `close` are idempotent. Sizes are whole bytes. The caller validates names with
`check_name` before they become part of a path.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tonnage.errors import Invalid, NotFound, Unsupported
from tonnage.pools.base.overcommit import NO_KEEP, Keep

MAX_NAME = 128
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]*")
INLINE = "inline"
"""Key of a volume's owner record, "true" for an inline volume; also the option of a pool for the inline capacity."""


def check_name(name: str) -> str:
    """Return name if it may become part of a path: letters, digits, `-_.`, at most 128. Raises Invalid."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise Invalid(
            f"volume name {name[:40]!r}: want letters, digits, '-', '_' or '.', at most {MAX_NAME} characters"
        )
    return name


def is_inline(owner: Mapping[str, str]) -> bool:
    """Whether the owner record is that of an inline volume (created by publish, deleted by unpublish)."""
    return owner.get(INLINE) == "true"


class VolumeState(Enum):
    """State of a volume's content. mkfs runs only on NEW."""

    NEW = "new"
    FORMATTED = "formatted"


@dataclass(frozen=True)
class VolumeOrigin:
    """The snapshot or volume that a new volume is a copy of, in the same pool. The other name is ""."""

    snapshot: str = ""
    volume: str = ""

    def __str__(self) -> str:
        return f"snapshot {self.snapshot}" if self.snapshot else f"volume {self.volume}"


@dataclass(frozen=True)
class VolumeRequest:
    """Arguments of create().

    size: requested bytes, at least 1. limit: maximum bytes, 0 for none. block: raw block device instead of a file
    system. fstype: "" for the pool's default. parameters: class parameters for the pool, already checked to be known.
    owner: what to record with the volume about its claim (cluster, claim, ephemeral, reclaim). source: the snapshot or
    volume to copy; then fstype "" means the source's. mutable: parameters that modify() may change later; they override
    those of the class.
    """

    name: str
    size: int
    limit: int = 0
    block: bool = False
    fstype: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    owner: Mapping[str, str] = field(default_factory=dict)
    source: VolumeOrigin | None = None
    mutable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PoolVolume:
    """A volume as recorded.

    size: usable bytes. created: seconds since the epoch. source: the snapshot or volume that it was copied from.
    pending: it was expanded, and grow() or the next stage() still has to grow it. mutable: parameters that modify() or
    the request set over the class's. place: where in the pool it is, for kinds that distinguish it (which disk of a
    static pool).
    """

    name: str
    size: int
    block: bool = False
    fstype: str = ""
    state: VolumeState = VolumeState.NEW
    parameters: Mapping[str, str] = field(default_factory=dict)
    owner: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0
    source: VolumeOrigin | None = None
    pending: bool = False
    mutable: Mapping[str, str] = field(default_factory=dict)
    place: str = ""

    @property
    def effective(self) -> Mapping[str, str]:
        """The parameters in effect: the class's, overridden by the changed ones."""
        return {**self.parameters, **self.mutable}


@dataclass(frozen=True)
class Erasure:
    """Progress of erasing a deleted volume's content, whose bytes count as used until the end.

    name: the volume's former name. method: `zero`, `discard` or `shred`. total, done: bytes; of shred over all its
    passes. room: bytes that count as used until the end. problem: why erasing has stopped, "" while it has not.
    """

    name: str
    method: str
    total: int
    done: int = 0
    room: int = 0
    problem: str = ""

    @property
    def percent(self) -> int:
        """Percent that is done; 100 only when nothing is left."""
        return self.done * 100 // self.total if self.total else 100


@dataclass(frozen=True)
class Snapshot:
    """A snapshot: a volume's content at one moment.

    volume: name of the source volume, which may be deleted meanwhile. size: minimum bytes of a volume made from it.
    created: seconds since the epoch.
    """

    name: str
    volume: str
    size: int
    block: bool = False
    fstype: str = ""
    owner: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0


@dataclass(frozen=True)
class VolumeCondition:
    """Condition of a volume. message: for people, also when the volume is healthy."""

    abnormal: bool
    message: str


WELL = VolumeCondition(abnormal=False, message="the volume is well")


@dataclass(frozen=True)
class Capacity:
    """Capacity in bytes.

    total: what the pool may hold. free: free bytes. largest: size of the largest volume that fits now. smallest:
    minimum size of a volume. used: allocated bytes.
    """

    total: int
    free: int
    largest: int
    smallest: int
    used: int


@dataclass(frozen=True)
class Stats:
    """Usage of a volume in bytes and inodes; inodes are 0 where there are none (raw block)."""

    total: int
    used: int
    available: int
    inodes: int = 0
    inodes_used: int = 0
    inodes_free: int = 0


def _nobody() -> None:
    """Default listener."""


class Pool(ABC):
    """A pool of volumes on this machine.

    All methods raise Unavailable when the pool cannot be reached, HostError when the kernel or a tool fails.
    """

    name: str
    kind: str
    fstypes: tuple[str, ...] = ()
    """Supported file systems; the first is the default."""
    blocks: bool = True
    """Whether raw block volumes are supported."""
    parameters: frozenset[str] = frozenset()
    """Supported class parameters, except `pool`, `kind` and those under csi.storage.k8s.io/."""
    snapshots: bool = False
    """Whether snapshots are supported; otherwise their methods raise Unsupported (and list_snapshots() is empty)."""
    clones: bool = False
    """Whether create() takes a source."""
    expansion: bool = False
    """Whether expand() is supported."""
    modifiable: frozenset[str] = frozenset()
    """Parameters that modify() can change."""
    inline: int = 0
    """Inline capacity: bytes that only inline volumes can use. Set from the pool's description."""
    shares_limit: bool = False
    """Whether all pools of that kind on the machine share one volume_limit()."""
    refused: Mapping[str, str] = {}
    """Parameters of other kinds that this one can never support, with the reason for the message."""

    on_room: Callable[[], None] = staticmethod(_nobody)
    """Called when bytes become free without a call (content has been erased). Set by the capacity publisher."""

    @abstractmethod
    async def open(self) -> None:
        """Check the pool and find its volumes; finish or undo what a kill interrupted."""

    @abstractmethod
    async def close(self) -> None:
        """Release the resources of the process. Volumes and mounts stay."""

    @abstractmethod
    async def create(self, request: VolumeRequest) -> PoolVolume:
        """Create a volume; it is durable when this returns. Idempotent.

        An existing volume of that name that fits the request is returned. Raises Exhausted (not enough capacity now),
        OutOfRange (can never fit, or size > limit), AlreadyExists (the name is taken by a volume that does not fit the
        request), Invalid, Unsupported. With a source: NotFound when there is none, OutOfRange when the size is below
        the source's, Precondition when it cannot be copied while in use.
        """

    @abstractmethod
    async def delete(self, name: str, *, wait: bool = True) -> None:
        """Delete a volume and its record; an unknown one is success.

        wait: wait a moment for a volume whose use may be ending (InUse). Raises Precondition while it is in use.
        """

    @abstractmethod
    async def get(self, name: str) -> PoolVolume:
        """Read one record. Raises NotFound."""

    @abstractmethod
    async def list(self) -> Sequence[PoolVolume]:
        """All records, sorted by name."""

    async def damaged(self) -> Mapping[str, str]:
        """Volumes with damaged records, and the damage, by name.

        They are not listed and never changed. get() and delete() raise HostError, condition() describes the damage.
        """
        return {}

    @abstractmethod
    async def capacity(self, *, fstype: str = "", block: bool = False) -> Capacity:
        """Capacity for volumes of that kind."""

    async def overall(self) -> Capacity:
        """Capacity of the whole pool, for any kind of volume; for people."""
        return await self.capacity_for({}, inline=True)

    async def capacity_for(
        self, parameters: Mapping[str, str], *, fstype: str = "", block: bool = False, inline: bool = False
    ) -> Capacity:
        """Capacity for volumes of a class, for kinds whose parameters decide what fits.

        inline: for inline volumes, which may use the inline capacity. Raises Invalid, Unsupported for parameters that
        create() would reject.
        """
        return await self.capacity(fstype=fstype, block=block)

    @abstractmethod
    async def stage(self, name: str, path: Path, *, options: Sequence[str] = ()) -> None:
        """Stage a volume at the directory path: format it once and mount it; attach raw block.

        options: mount options, checked by the caller. Raises NotFound, HostError (a formatted volume that does not
        mount is an error, never a reason to format).
        """

    @abstractmethod
    async def unstage(self, name: str, path: Path) -> None:
        """Undo stage; success when nothing is there, also for an unknown volume."""

    @abstractmethod
    async def publish(self, name: str, staging: Path, target: Path, *, readonly: bool = False) -> None:
        """Publish a staged volume at target: a directory, or for raw block a device node. The parent exists.

        Raises NotFound, Precondition when it is not staged, AlreadyExists when target shows something else or differs
        in readonly.
        """

    @abstractmethod
    async def unpublish(self, name: str, target: Path) -> None:
        """Undo publish and remove target; success when nothing is there, also for an unknown volume."""

    @abstractmethod
    async def stats(self, name: str, path: Path) -> Stats:
        """Usage of the volume as mounted at path. Raises NotFound when the volume or path is not there."""

    async def create_snapshot(self, name: str, volume: str, *, owner: Mapping[str, str] | None = None) -> Snapshot:
        """Create a snapshot; it is durable when this returns. Idempotent.

        It has the content of one moment, also while the volume is in use, and outlives the volume. An existing snapshot
        of that name and volume is returned.

        Raises NotFound (no such volume), AlreadyExists (the name is taken by a snapshot of another volume), Exhausted,
        Precondition (the volume is in use in a way that allows no consistent copy), Invalid, Unsupported.
        """
        raise self._unsupported("snapshots")

    async def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot; an unknown one is success. Volumes made from it stay."""
        raise self._unsupported("snapshots")

    async def get_snapshot(self, name: str) -> Snapshot:
        """Read one snapshot's record. Raises NotFound, also where there are no snapshots."""
        raise NotFound(f"pool {self.name!r} has no snapshot {name[:128]!r}")

    async def list_snapshots(self) -> Sequence[Snapshot]:
        """All snapshots, sorted by name."""
        return []

    async def expand(self, name: str, size: int, *, limit: int = 0) -> PoolVolume:
        """Expand a volume to at least `size` bytes, the controller's part; durable when this returns.

        A volume that is large enough is returned unchanged. limit: maximum bytes, 0 for none. Raises NotFound,
        Exhausted, OutOfRange (can never fit, or the volume is larger than limit: no volume ever shrinks), Invalid,
        Unsupported.
        """
        raise self._unsupported("larger volumes")

    async def grow(self, name: str, path: Path) -> PoolVolume:
        """Grow the file system at path (or the raw block device) to the expanded size, the node's part.

        Raises NotFound when the volume or path is not there, Precondition when it cannot grow while mounted (the next
        stage() grows it), HostError, Unsupported.
        """
        raise self._unsupported("larger volumes")

    async def modify(self, name: str, parameters: Mapping[str, str]) -> PoolVolume:
        """Change parameters of a volume; durable when this returns. An empty value restores the class's.

        The caller applies the change to a volume in use (I/O limits of its pods). Raises NotFound, Invalid for a
        parameter that is not in `modifiable` or has a bad value.
        """
        raise self._unsupported("changes of a volume's parameters")

    async def device(self, name: str) -> tuple[int, int] | None:
        """Major and minor number of the volume's own block device, None while it has none. Raises NotFound, and
        Unsupported where volumes have no device of their own.
        """
        raise self._unsupported("block devices of its volumes")

    async def erasing(self) -> Sequence[Erasure]:
        """Contents that are being erased, sorted by volume name."""
        return []

    def home(self, volume: PoolVolume) -> Path | None:
        """Where the pool keeps a volume mounted independent of its use, None for nowhere."""
        return None

    async def problems(self) -> Sequence[str]:
        """Problems of the pool itself and what to do about each, one line each."""
        return []

    def rebound(self, bounds: PoolLimits, *, erase_rate: int | None = None) -> None:
        """Set new limits. Volumes stay, also those above the limits. Idempotent.

        erase_rate: bytes per second, 0 for unlimited, None for the kind's default. Raises Unsupported for limits that
        can only be set at the start.
        """
        raise self._unsupported("other bounds without a restart")

    async def volume_limit(self) -> int:
        """Maximum number of volumes in this pool (loop, mapper or namespace limits), 0 for unlimited."""
        return 0

    async def condition(self, name: str, path: Path | None = None) -> VolumeCondition:
        """Condition of a volume, and of its mount at path if one is given.

        Raises NotFound for an unknown volume. Problems of a known one are returned, not raised.
        """
        await self.get(name)
        return WELL

    def _unsupported(self, what: str) -> Unsupported:
        return Unsupported(f"pool {self.name!r} ({self.kind}) does not offer {what}")


@dataclass(frozen=True)
class PoolLimits:
    """Limits of a pool.

    size: bytes, 0 for the disk's. ratio: overcommit factor for the disk's free bytes, inf for unlimited. sparse:
    content is allocated when it is written. keep: the disk's min free.
    """

    size: int = 0
    ratio: float = 1.0
    sparse: bool = False
    keep: Keep = NO_KEEP
