"""The data types of pools: volumes, snapshots, requests, capacity, and the features of a kind.

Sizes are whole bytes. The caller validates names with `check_name` before they become part of a path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import msgspec

from tonnage.base.errors import InvalidError, UnsupportedError
from tonnage.kubernetes.api.quantity import from_bytes

MAX_NAME = 128
_BLOCK = 4096
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]*")
_GIVEN = re.compile(r"(pvc|csi)-[-0-9a-f]{32,64}")  # the claim's UID; of inline volumes the kubelet's hash
INLINE = "inline"
"""Key of a volume's owner record, "true" for an inline volume; also the option of a pool for the inline capacity."""


def check_name(name: str) -> str:
    """Return name if it may become part of a path: letters, digits, `-_.`, at most 128. Raises: InvalidError."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise InvalidError(
            f"volume name {name[:40]!r}: want letters, digits, '-', '_' or '.', at most {MAX_NAME} characters"
        )
    return name


def looks_like_volume(name: str) -> bool:
    """Whether a name is one that Kubernetes gives volumes. What has it, and no record, may be one that lost it."""
    return _GIVEN.fullmatch(name) is not None


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


class Erasure(msgspec.Struct, frozen=True, rename={"reserved": "room"}):
    """Progress of erasing a deleted volume's content, whose bytes count as used until the end.

    name: the volume's former name. method: `zero`, `discard` or `shred`. total, done: bytes; of shred over all its
    passes. reserved: bytes that count as used until the end. problem: why erasing has stopped, "" while it has not.
    """

    name: str
    method: str
    total: int
    done: int = 0
    reserved: int = 0
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
class SnapshotRequest:
    """A snapshot to take: its name, of which volume, and its owner record."""

    name: str
    volume: str
    owner: Mapping[str, str] = field(default_factory=dict)


class Stillness(Enum):
    """What holds a volume still while snapshots of several volumes are taken at one moment.

    UNUSED: nothing writes to it. FROZEN: its file system can be frozen for as long as that takes. ALONE: it is still
    only at the moment of its own snapshot. TOGETHER: as ALONE, with the others of its pool, at the same moment.
    """

    UNUSED = "unused"
    FROZEN = "frozen"
    ALONE = "alone"
    TOGETHER = "together"


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
    minimum size of a volume. used: allocated bytes. trash: how many of the free bytes trash has.
    """

    total: int
    free: int
    largest: int
    smallest: int
    used: int
    trash: int = 0


@dataclass(frozen=True)
class Stats:
    """Usage of a volume in bytes and inodes; inodes are 0 where there are none (raw block)."""

    total: int
    used: int
    available: int
    inodes: int = 0
    inodes_used: int = 0
    inodes_free: int = 0


@dataclass(frozen=True)
class Features:
    """What a kind of pool offers.

    fstypes: supported file systems, the first is the default. blocks: raw block volumes. parameters: supported class
    parameters, except `pool`, `kind` and those under csi.storage.k8s.io/. snapshots: otherwise their methods raise
    UnsupportedError, and list_snapshots() is empty. clones: create() takes a source. expansion: expand() is supported.
    modifiable: parameters that modify() can change. shares_limit: all pools of that kind on the machine share one
    volume_limit(). rejected: parameters of other kinds that this one can never support, with the reason. step, least:
    sizes are multiples of step and at least `least` bytes. whole_disks: a volume is a whole disk, which the back end
    chooses; "" means a disk with any file system, there is no default.
    """

    kind: str
    fstypes: tuple[str, ...] = ()
    blocks: bool = True
    parameters: frozenset[str] = frozenset()
    snapshots: bool = False
    clones: bool = False
    expansion: bool = False
    modifiable: frozenset[str] = frozenset()
    shares_limit: bool = False
    rejected: Mapping[str, str] = field(default_factory=dict)
    step: int = 4096
    least: int = 4096
    whole_disks: bool = False


class FeaturedPool(Protocol):
    """A pool, or its back end, by name: what the checks of requests read."""

    name: str

    @property
    def features(self) -> Features:
        """What it offers."""


def unsupported(pool: FeaturedPool, what: str) -> UnsupportedError:
    """The error for a feature that a kind does not have."""
    return UnsupportedError(f"pool {pool.name!r} ({pool.features.kind}) does not offer {what}")


@dataclass(frozen=True)
class Keep:
    """What a pool leaves free on its disk: bytes, or a share of the disk in percent."""

    size: int = 0
    percent: float = 0.0

    def of(self, total: int) -> int:
        """Bytes of a disk that has `total`, in whole blocks."""
        return self.size + -(-int(total * self.percent) // 100 // _BLOCK) * _BLOCK

    def __bool__(self) -> bool:
        return bool(self.size or self.percent)

    def __str__(self) -> str:
        return f"{self.percent:g}%" if self.percent else from_bytes(self.size)


NO_KEEP = Keep()


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
