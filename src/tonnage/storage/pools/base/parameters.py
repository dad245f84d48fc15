"""The class parameters: the table of all, and the values of those that several kinds of pools take.

A back end names the ones that it takes in `Features.parameters`, and parses those that only it has (`thin`, `nsmode`
...) itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.storage.pools.base.contract import FeaturedPool, PoolVolume

POOL, KIND = "pool", "kind"
ERASE, RESERVE, SOURCE, MKFS_OPTIONS = "erase", "reserve", "source", "mkfsOptions"
IOPS, BANDWIDTH = "iops", "bandwidth"
COMPRESSION = "compression"
LIMITS = frozenset({IOPS, BANDWIDTH})
COUNTED = frozenset({ERASE, RESERVE})
"""What pools take that share their bytes among their volumes."""
FILLED = COUNTED | {SOURCE}
"""What those take whose volumes may begin with content."""
FORMATTED = FILLED | {MKFS_OPTIONS}
"""What those take whose volumes have file systems of their own."""
COMPRESSIONS = ("none", "lzo", "zlib", "zstd")
ERASURES = ("none", "discard", "zero", "shred")
_SOURCE_SCHEME = "dir://"
_MOST = 2**62


@dataclass(frozen=True)
class IoLimits:
    """I/O limits of a volume, for reads and writes each: operations and bytes per second, 0 for unlimited."""

    iops: int = 0
    bandwidth: int = 0

    def __bool__(self) -> bool:
        return bool(self.iops or self.bandwidth)


@dataclass(frozen=True)
class MkfsOptions:
    """Checked mkfs options.

    words: in the given order, each option followed by its value, "--nodesize" as "-n". ratio, inode_size, inodes: of
    ext4: bytes per inode, bytes of an inode, number of inodes; 0 for the pool's choice.
    """

    words: tuple[tuple[str, str], ...] = ()
    ratio: int = 0
    inode_size: int = 0
    inodes: int = 0

    def values(self, option: str) -> list[str]:
        """The values of an option that takes a list, in the order given."""
        return [part for name, value in self.words if name == option for part in value.split(",")]

    @property
    def has_journal(self) -> bool:
        """Whether an ext4 is to have one."""
        return "^has_journal" not in self.values("-O")


NO_MKFS_OPTIONS = MkfsOptions()


def erase_of(parameters: Mapping[str, str], offered: Iterable[str] = ERASURES) -> str:
    """How content is erased when the volume is deleted: `none`, `discard`, `zero` or `shred`. Raises: InvalidError."""
    method = parameters.get(ERASE, "none")
    if method not in (known := tuple(offered)):
        raise InvalidError(f"parameter erase: {method[:40]!r} is not offered here, want {' or '.join(known)}")
    return method


def compression_of(parameters: Mapping[str, str]) -> str:
    """How new content is compressed: `lzo`, `zlib` or `zstd`, "" for not at all. Raises: InvalidError."""
    method = parameters.get(COMPRESSION, "none")
    if method not in COMPRESSIONS:
        raise InvalidError(f"parameter compression: {method[:40]!r}: want {' or '.join(COMPRESSIONS)}")
    return "" if method == "none" else method


def io_limits_of(parameters: Mapping[str, str]) -> IoLimits:
    """The limits of `iops` (a number) and `bandwidth` (a quantity of bytes in a second, as 50Mi).

    Raises: InvalidError.
    """
    return IoLimits(_amount(parameters, IOPS), _amount(parameters, BANDWIDTH))


def reserve_of(parameters: Mapping[str, str]) -> int:
    """Bytes of the pool that volumes of the class leave free. Raises: InvalidError."""
    return _amount(parameters, RESERVE)


def source_of(parameters: Mapping[str, str]) -> Path | None:
    """The directory on the node that a new volume is populated from (`dir:///data/models`), None for none.

    Raises: InvalidError. The driver's allow-list decides whether that directory may be used.
    """
    text = parameters.get(SOURCE, "")
    if not text:
        return None
    path = text.removeprefix(_SOURCE_SCHEME)
    if path == text or not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise InvalidError(f"parameter source: {text[:80]!r}: want a folder of the node, as dir:///data/models")
    return Path(os.path.normpath(path))


def check_rejected(pool: FeaturedPool, parameters: Iterable[str]) -> None:
    """Reject parameters that a kind does not support, with the reason. Raises: InvalidError."""
    rejected = pool.features.rejected
    if names := sorted(rejected.keys() & set(parameters)):
        where = f"pool {pool.name!r} ({pool.features.kind})"
        raise InvalidError(f"parameter {names[0]}: {where} cannot have it: {rejected[names[0]]}")


def check_shared(parameters: Mapping[str, str]) -> None:
    """Check the values of the parameters that the table has a check for. Raises: InvalidError."""
    for row in TABLE if parameters else ():  # most classes have none
        if row.check is not None and row.key in parameters:
            row.check(parameters)


def changed(pool: FeaturedPool, volume: PoolVolume, parameters: Mapping[str, str]) -> dict[str, str]:
    """The volume's `mutable` parameters after Pool.modify(); an empty value restores the class's.

    Raises: InvalidError for a parameter that `pool` cannot change, and for a bad value.
    """
    check_modifiable(pool, parameters)
    merged = {**volume.mutable, **parameters}
    return {key: value for key, value in merged.items() if value}


def check_modifiable(pool: FeaturedPool, parameters: Mapping[str, str]) -> None:
    """Check parameters to change, or to set over those of the class. Raises: InvalidError."""
    check_rejected(pool, parameters)
    if unknown := sorted(set(parameters) - pool.features.modifiable):
        there_is = (
            f"what can be changed is {', '.join(sorted(pool.features.modifiable))}"
            if pool.features.modifiable
            else "none can be"
        )
        raise InvalidError(
            f"pool {pool.name!r} ({pool.features.kind}) cannot change the parameter {unknown[0][:60]!r}: {there_is}"
        )
    check_shared({key: value for key, value in parameters.items() if value})


def _amount(parameters: Mapping[str, str], key: str) -> int:
    text = parameters.get(key, "")
    if not text:
        return 0
    try:
        amount = to_bytes(text)
    except InvalidError as reason:
        raise InvalidError(f"parameter {key}: {reason}") from None
    if not 1 <= amount <= _MOST:
        raise InvalidError(f"parameter {key}: {text[:40]!r}: want 1 or more")
    return amount


class KeyReader(Enum):
    """Who acts on a class parameter."""

    DRIVER = "driver"
    """It chooses the pool."""
    POOL = "pool"
    """The pools whose `Features.parameters` name it."""
    AGENT = "agent"
    """The agent and the controller; the driver does not get it."""


@dataclass(frozen=True)
class ClassParameter:
    """A parameter of a StorageClass.

    values, meaning: of its row in the reference, in Markdown. check: of all parameters, raises InvalidError for its
    value; None where only its reader knows what is valid.
    """

    key: str
    reader: KeyReader
    values: str
    meaning: str
    check: Callable[[Mapping[str, str]], object] | None = None


_D, _P, _A = KeyReader
TABLE: tuple[ClassParameter, ...] = (
    ClassParameter(POOL, _D, "name", "the pool; without it the first one"),
    ClassParameter(KIND, _D, "%KINDS%", "the first pool of that kind; with `pool`, a check"),
    ClassParameter(
        names.CSI_FSTYPE, _D, "what the pool's kind has",
        "file system; the capability may name it too. `fstype` is the old key, also accepted",
    ),
    ClassParameter(
        ERASE, _P, "`none`, `discard`, `zero`, `shred`",
        "how the content is erased when the volume is deleted, where the pool can: [image]"
        "(../pools/image.md#erasing-deleted-volumes), [lvm](../pools/lvm.md). btrfs and quota pools accept only `none`",
        erase_of,
    ),
    ClassParameter(
        IOPS, _P, "a number", "limit of a pod's reads of the volume, and of its writes, per second", io_limits_of
    ),
    ClassParameter(
        BANDWIDTH, _P, "a quantity, as `50Mi`",
        "limit of the bytes that it reads, and of those that it writes, per second", io_limits_of,
    ),
    ClassParameter(
        COMPRESSION, _P, "`none`, `lzo`, `zlib`, `zstd`",
        "how btrfs compresses what is written to the volume from now on", compression_of,
    ),
    ClassParameter(
        RESERVE, _P, "a quantity", "bytes of the pool that volumes of the class leave to other classes", reserve_of
    ),
    ClassParameter(
        MKFS_OPTIONS, _P, "options of the file system's mkfs, from a list",
        "how the file system is made; the error lists the allowed options",
    ),
    ClassParameter(
        SOURCE, _P,
        "`dir:///data/models`, `folder:NAME`, `image:NAME`, `https://HOST/PATH#sha256=...`,"
        " `s3://BUCKET/KEY#endpoint=...`",
        "what a new volume is filled with before CreateVolume is answered: [Begin with content](../tasks/populate.md)."
        " A `dir://` must be below a folder that the driver allows (`sources`), with no symlink in its path. Not for"
        " inline volumes",
        source_of,
    ),
    ClassParameter("thin", _P, "`true`, `false`", "a logical volume of the pool's thin pool: [lvm](../pools/lvm.md)"),
    ClassParameter("type", _P, "`linear`, `striped`, `raid1`", "how a logical volume is laid out"),
    ClassParameter("stripes", _P, "`2` to `32`", "disks of a striped one"),
    ClassParameter("mirrors", _P, "`1` to `32`", "copies of a raid1, in addition to the first"),
    ClassParameter("cowSize", _P, "a quantity, from `1Mi` on", "space of a snapshot of a thick one, for changes"),
    ClassParameter(
        "allowUnenforced", _P, "`true`, `false`",
        "accept ext4, which does not enforce the size for privileged pods: [quota](../pools/quota.md)",
    ),
    ClassParameter("nsmode", _P, "`fsdax`, `sector`, `devdax`", "mode of the namespace in a pmem pool"),
    ClassParameter(
        "cleaner", _P, "`quick`, `discard`, `zero`, `shred`",
        "how a disk is cleaned before the next owner gets it, in [static](../pools/static.md) pools",
    ),
    ClassParameter(
        names.ROLLBACK, _A, "`true`",
        "also a claim that no pod owns may be deleted for [another of its pod](../concepts/claim-groups.md)",
    ),
    ClassParameter(
        names.ON_NODE_GONE, _A, "`keep`, `release-after:TIME`",
        "what becomes of volumes, or snapshots, of a [lost node](../tasks/release-volumes.md)",
    ),
    ClassParameter(
        names.AUTOGROW_AT, _A, "`1%` to `90%`", "free part below which a volume [grows](../tasks/grow-volume.md)"
    ),
    ClassParameter(names.AUTOGROW_BY, _A, "`1%` to `100%`, or a quantity", "by how much"),
    ClassParameter(names.AUTOGROW_MAX, _A, "a quantity", "up to which size"),
    ClassParameter(
        names.UNDELETE, _A, "a time, as `24h`",
        "how long a deleted volume can be [restored](../tasks/undelete.md), unless its capacity is needed",
    ),
    ClassParameter(
        names.RECLAIM_FINISHED, _A, "`true`, `false`",
        "delete the data of an ephemeral volume as soon as its [pod has finished](../tasks/reclaim-finished.md)",
    ),
)  # fmt: skip


def keys_of(reader: KeyReader) -> frozenset[str]:
    """The keys of all parameters that somebody reads."""
    return frozenset(row.key for row in TABLE if row.reader is reader)
