"""The Pool contract: what every kind of storage offers, and the words for it. The fake pool is the reference.

The pool is the database. What must survive lies with the volume, so that after a kill at any moment `open()` finds
everything by listing. All methods but `close` may be repeated with the same arguments any number of times.
Sizes are whole bytes. Names are validated by the caller's `check_name` before they become part of a path.
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
"""Key of a volume's owner record, "true" for one that lives in a pod's own text, and by what is kept for those."""


def check_name(name: str) -> str:
    """Return name if it may become part of a path: letters, digits, `-_.`, at most 128. Raises Invalid."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise Invalid(
            f"volume name {name[:40]!r}: want letters, digits, '-', '_' or '.', at most {MAX_NAME} characters"
        )
    return name


def is_inline(owner: Mapping[str, str]) -> bool:
    """Whether the volume with that owner record is an inline one: its publish call made it, unpublish ends it."""
    return owner.get(INLINE) == "true"


class State(Enum):
    """Life of a volume's content. mkfs runs only on NEW."""

    NEW = "new"
    FORMATTED = "formatted"


@dataclass(frozen=True)
class Source:
    """What a new volume is filled from, in the same pool: a snapshot or a volume, by name; the other is ""."""

    snapshot: str = ""
    volume: str = ""

    def __str__(self) -> str:
        return f"snapshot {self.snapshot}" if self.snapshot else f"volume {self.volume}"


@dataclass(frozen=True)
class VolumeRequest:
    """What is asked of create().

    size: bytes wanted, at least 1. limit: bytes not to be passed, 0 for none. block: raw device instead of a file
    system. fstype: "" for the pool's default. parameters: class parameters meant for the pool, already checked to be
    known ones. owner: what to keep with the volume about whom it was made for (cluster, claim, ephemeral, reclaim).
    source: what it is filled from; then fstype "" means the source's. mutable: parameters that modify() may change
    later, which stand above those of the class.
    """

    name: str
    size: int
    limit: int = 0
    block: bool = False
    fstype: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    owner: Mapping[str, str] = field(default_factory=dict)
    source: Source | None = None
    mutable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Volume:
    """A volume as its record says. size: usable bytes. created: seconds since the epoch. source: what it was filled
    from. pending: it was expanded, and on its node grow() is still to be called (or the next stage() does it). mutable:
    what modify() or the request set above the class's parameters. place: where in the pool it is, for kinds whose
    places are told apart (which disk of a static pool)."""

    name: str
    size: int
    block: bool = False
    fstype: str = ""
    state: State = State.NEW
    parameters: Mapping[str, str] = field(default_factory=dict)
    owner: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0
    source: Source | None = None
    pending: bool = False
    mutable: Mapping[str, str] = field(default_factory=dict)
    place: str = ""

    @property
    def effective(self) -> Mapping[str, str]:
        """The parameters that hold now: the class's, and above them those that were changed."""
        return {**self.parameters, **self.mutable}


@dataclass(frozen=True)
class Erasure:
    """A deleted volume's content that is being erased: its room counts as used until that is done. name: the volume's
    while it lived. method: `zero`, `discard` or `shred`. total, done: bytes; of shred over all its passes. room: bytes
    that count as used until the end. problem: why it stands still, "" while it does not."""

    name: str
    method: str
    total: int
    done: int = 0
    room: int = 0
    problem: str = ""

    @property
    def percent(self) -> int:
        """How far it is; 100 only when nothing is left."""
        return self.done * 100 // self.total if self.total else 100


@dataclass(frozen=True)
class Snapshot:
    """A volume's content at one moment. volume: whose; it may be gone meanwhile. size: the least bytes that a volume
    made from it has. created: seconds since the epoch."""

    name: str
    volume: str
    size: int
    block: bool = False
    fstype: str = ""
    owner: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0


@dataclass(frozen=True)
class Condition:
    """How a volume does. message: for people, also when all is well."""

    abnormal: bool
    message: str


WELL = Condition(abnormal=False, message="the volume is well")


@dataclass(frozen=True)
class Capacity:
    """Room in bytes. total: what the pool may hold. free: what is left now. largest: the biggest volume that fits
    now. smallest: the least size a volume can have. used: what volumes take."""

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
    """One store of volumes on this machine.

    Raises of all methods: Unavailable when the pool cannot be reached, HostError when the kernel or a tool fails.
    """

    name: str
    kind: str
    fstypes: tuple[str, ...] = ()
    """File systems that can be asked for; the first is the default."""
    blocks: bool = True
    """Whether raw block volumes can be had."""
    parameters: frozenset[str] = frozenset()
    """Class parameters that this kind understands, beside `pool`, `kind` and those under csi.storage.k8s.io/."""
    snapshots: bool = False
    """Whether there are snapshots; without, their methods raise Unsupported (and list_snapshots() finds none)."""
    clones: bool = False
    """Whether create() takes a source."""
    expansion: bool = False
    """Whether volumes can be made larger."""
    modifiable: frozenset[str] = frozenset()
    """Parameters that modify() can change."""
    inline: int = 0
    """Bytes that are kept for inline volumes: others cannot have them. Set from the pool's description."""
    shares_limit: bool = False
    """Whether volume_limit() is one for all pools of that kind on the machine."""
    refused: Mapping[str, str] = {}
    """Parameters of other kinds that this one can never have, with the reason, for who asks for them."""

    on_room: Callable[[], None] = staticmethod(_nobody)
    """Set by who tells others of room: called when some has come free without a call (content has been erased)."""

    @abstractmethod
    async def open(self) -> None:
        """Check the pool and find its volumes; finish or undo what a kill left half done."""

    @abstractmethod
    async def close(self) -> None:
        """Give back what the process holds. Volumes and mounts stay."""

    @abstractmethod
    async def create(self, request: VolumeRequest) -> Volume:
        """Make a volume, durable when this returns; an existing one of that name that fits the request is returned.

        Raises Exhausted (no room now), OutOfRange (can never fit, or size > limit), AlreadyExists (name taken by
        something that does not fit the request), Invalid, Unsupported. With a source: NotFound when there is none,
        OutOfRange when the size is below the source's, Precondition when it cannot be copied while it is in use.
        """

    @abstractmethod
    async def delete(self, name: str, *, wait: bool = True) -> None:
        """Remove a volume and its record; an unknown one is success. Raises Precondition while it is in use: InUse
        where that may end in a moment, which is waited for unless wait is False."""

    @abstractmethod
    async def get(self, name: str) -> Volume:
        """Read one record. Raises NotFound."""

    @abstractmethod
    async def list(self) -> Sequence[Volume]:
        """All records in the order of their names."""

    async def damaged(self) -> Mapping[str, str]:
        """Volumes whose records cannot be trusted, and why, by name: they are not listed, and nothing is done to them;
        get() and delete() raise HostError, condition() tells."""
        return {}

    @abstractmethod
    async def capacity(self, *, fstype: str = "", block: bool = False) -> Capacity:
        """Room for volumes of that kind."""

    async def overall(self) -> Capacity:
        """All room of the pool, whatever volumes are made of it; for people."""
        return await self.capacity_for({}, inline=True)

    async def capacity_for(
        self, parameters: Mapping[str, str], *, fstype: str = "", block: bool = False, inline: bool = False
    ) -> Capacity:
        """Room for volumes of a class, for kinds where its parameters decide what fits. inline: for inline volumes,
        which may have what is kept for them. Raises Invalid, Unsupported for parameters that create() would refuse."""
        return await self.capacity(fstype=fstype, block=block)

    @abstractmethod
    async def stage(self, name: str, path: Path, *, options: Sequence[str] = ()) -> None:
        """Make a file system volume reachable at the directory path: format it once, mount it. For raw block: attach.

        options: mount options, checked by the caller. Raises NotFound, HostError (a formatted volume that does not
        mount is an error, never a reason to format).
        """

    @abstractmethod
    async def unstage(self, name: str, path: Path) -> None:
        """Undo stage; success when nothing is there, also for an unknown volume."""

    @abstractmethod
    async def publish(self, name: str, staging: Path, target: Path, *, readonly: bool = False) -> None:
        """Show a staged volume at target: a directory, or for raw block a device node. The parent exists.

        Raises NotFound, Precondition when it is not staged, AlreadyExists when target shows something else or differs
        in readonly.
        """

    @abstractmethod
    async def unpublish(self, name: str, target: Path) -> None:
        """Undo publish and remove target; success when nothing is there, also for an unknown volume."""

    @abstractmethod
    async def stats(self, name: str, path: Path) -> Stats:
        """Usage of the volume as seen at path. Raises NotFound when the volume or path is not there."""

    async def create_snapshot(self, name: str, volume: str, *, owner: Mapping[str, str] | None = None) -> Snapshot:
        """Keep a volume's content of now, durable when this returns; an existing snapshot of that name and volume is
        returned. It is of one moment also while the volume is in use, and outlives the volume.

        Raises NotFound (no such volume), AlreadyExists (name taken by one of another volume), Exhausted, Precondition
        (the volume is in use in a way that allows no copy of one moment), Invalid, Unsupported.
        """
        raise self._unsupported("snapshots")

    async def delete_snapshot(self, name: str) -> None:
        """Remove a snapshot; an unknown one is success. Volumes made from it stay."""
        raise self._unsupported("snapshots")

    async def get_snapshot(self, name: str) -> Snapshot:
        """Read one snapshot's record. Raises NotFound, also where there are no snapshots."""
        raise NotFound(f"pool {self.name!r} has no snapshot {name[:128]!r}")

    async def list_snapshots(self) -> Sequence[Snapshot]:
        """All snapshots in the order of their names."""
        return []

    async def expand(self, name: str, size: int, *, limit: int = 0) -> Volume:
        """Make room for at least `size` bytes, durable when this returns: the controller's part. A volume that is
        large enough is returned as it is. limit: bytes not to be passed, 0 for none.

        Raises NotFound, Exhausted, OutOfRange (can never fit, or the volume is larger than limit: none is ever made
        smaller), Invalid, Unsupported.
        """
        raise self._unsupported("larger volumes")

    async def grow(self, name: str, path: Path) -> Volume:
        """Let the file system at path (or the raw block device) take the room that expand() made: the node's part.

        Raises NotFound when the volume or path is not there, Precondition when it cannot be done while the volume is
        mounted (the next stage() does it), HostError, Unsupported.
        """
        raise self._unsupported("larger volumes")

    async def modify(self, name: str, parameters: Mapping[str, str]) -> Volume:
        """Change parameters of a volume, durable when this returns; an empty value takes one back to the class's.

        What a parameter does to a volume in use is for the caller to bring about (limits of the pods' IO).
        Raises NotFound, Invalid for one that is not in `modifiable` or has a bad value.
        """
        raise self._unsupported("changes of a volume's parameters")

    async def device(self, name: str) -> tuple[int, int] | None:
        """Major and minor number of the volume's own block device, None while it has none. Raises NotFound, and
        Unsupported where volumes have no device of their own."""
        raise self._unsupported("block devices of its volumes")

    async def erasing(self) -> Sequence[Erasure]:
        """What is being erased, in the order of the volumes' names."""
        return []

    def home(self, volume: Volume) -> Path | None:
        """Where the pool has a volume mounted whether it is used or not, None for nowhere."""
        return None

    async def problems(self) -> Sequence[str]:
        """What is wrong with the pool itself and what to do about it, a line each; nothing when all is well."""
        return []

    def rebound(self, bounds: Bounds, *, erase_rate: int | None = None) -> None:
        """Promise within other bounds from now on; volumes stay, also where they pass them. May be repeated.

        erase_rate: bytes in a second, 0 for any number, None: the kind's own. Raises Unsupported for what holds only
        from the start.
        """
        raise self._unsupported("other bounds without a restart")

    async def volume_limit(self) -> int:
        """How many volumes this pool can have at most (loop, mapper or namespace limits), 0 for no bound."""
        return 0

    async def condition(self, name: str, path: Path | None = None) -> Condition:
        """Health of a volume, and of its mount at path if one is given. Raises NotFound for an unknown volume; what
        is wrong with a known one is told, not raised."""
        await self.get(name)
        return WELL

    def _unsupported(self, what: str) -> Unsupported:
        return Unsupported(f"pool {self.name!r} ({self.kind}) does not offer {what}")


@dataclass(frozen=True)
class Bounds:
    """size: bytes, 0 for what the disk has. ratio: how often the disk's free space may be promised, inf for any
    amount. sparse: content takes space as it is written. keep: what of the disk is left free for others."""

    size: int = 0
    ratio: float = 1.0
    sparse: bool = False
    keep: Keep = NO_KEEP
