"""The layout of a logical volume on the disks of its group: from class parameters, with its cost and maximum size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tonnage.base.errors import InvalidError, UnsupportedError
from tonnage.host.lvm import PhysicalVolume
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.storage.pools.base.parameters import erase_of

TYPES = ("linear", "striped", "raid1")
COW_SIZE = "cowSize"
PARAMETERS = frozenset({"thin", "type", "stripes", "mirrors", COW_SIZE})
MI = 1024**2
_MOST = 32  # stripes or mirrors
_CHUNK = 4096  # bytes that a thick snapshot copies at a time, the default of lvcreate
_EXCEPTIONS = _CHUNK // 16  # exceptions that one metadata chunk describes


@dataclass(frozen=True)
class Layout:
    """Layout of a logical volume.

    thin: in the thin pool, and linear. stripes: disks of a striped one. mirrors: copies in addition to the first.
    """

    thin: bool = False
    stripes: int = 1
    mirrors: int = 0

    @property
    def is_linear(self) -> bool:
        """Whether any free extents fit, wherever they are."""
        return not self.thin and self.stripes == 1 and not self.mirrors

    @property
    def disks(self) -> int:
        """Number of disks with free extents that it needs."""
        return self.stripes * (self.mirrors + 1)

    def extents(self, length: int, extent: int) -> int:
        """Extents of a volume of at least length bytes."""
        return -(-length // (extent * self.stripes)) * self.stripes

    def cost(self, extents: int) -> int:
        """Extents that it allocates in the group. raid1 needs one more per copy for its own metadata."""
        if self.thin:
            return 0
        return (extents + 1) * (self.mirrors + 1) if self.mirrors else extents

    def usable(self, disks: tuple[PhysicalVolume, ...], free: int) -> int:
        """Extents of the largest volume that surely fits. free: of the whole group."""
        if self.is_linear:
            return free
        most = sorted((disk.free for disk in disks), reverse=True)
        each = most[self.disks - 1] if len(most) >= self.disks else 0
        return max(0, each - (1 if self.mirrors else 0)) * self.stripes

    def arguments(self) -> list[str]:
        """Arguments for lvcreate."""
        if self.mirrors:
            return ["--type", "raid1", "--mirrors", str(self.mirrors)]
        return ["--type", "striped", "--stripes", str(self.stripes)] if self.stripes > 1 else ["--type", "linear"]


LINEAR, THIN = Layout(), Layout(thin=True)


def read(parameters: Mapping[str, str], *, thin_pool: str, pool: str) -> Layout:
    """The layout for class parameters. Raises: InvalidError, UnsupportedError, naming the parameter.

    Without parameters it is thin where the pool has a thin pool, linear elsewhere.
    """
    thin = _flag(parameters.get("thin", "true" if thin_pool and "type" not in parameters else "false"))
    kind = parameters.get("type", "linear")
    if kind not in TYPES:
        raise InvalidError(f"parameter type={kind[:40]!r}: want one of {', '.join(TYPES)}")
    if thin and not thin_pool:
        raise UnsupportedError(f"parameter thin: pool {pool!r} has no thin pool, name one as lvm:GROUP,thin=NAME")
    if thin and kind != "linear":
        raise InvalidError(
            f"parameter type={kind}: thin volumes lie as their thin pool does; leave it out, or thin=false"
        )
    erase = erase_of(parameters)
    if thin and erase not in ("none", "discard"):
        raise InvalidError(
            f"parameter erase={erase!r}: writing would fill the thin pool, which never shows old blocks: want discard"
        )
    if thin and COW_SIZE in parameters:
        raise InvalidError(
            "parameter cowSize: it is for snapshots of thick volumes; thin ones share their pool: leave it out"
        )
    cow_size(parameters)
    stripes = _count(parameters, "stripes", kind, "striped", least=2)
    mirrors = _count(parameters, "mirrors", kind, "raid1", least=1)
    return Layout(thin, stripes or 1, mirrors or 0)


def cow_size(parameters: Mapping[str, str]) -> int:
    """Bytes that a snapshot of a thick volume has for changes, 0 for all of the volume. Raises: InvalidError."""
    text = parameters.get(COW_SIZE, "")
    if not text:
        return 0
    try:
        size = to_bytes(text)
    except InvalidError as reason:
        raise InvalidError(f"parameter cowSize: {reason}") from None
    if not MI <= size <= 2**62:
        raise InvalidError(f"parameter cowSize={text[:40]!r}: want 1Mi or more")
    return size


def cow_extents(size: int, wanted: int, extent: int) -> int:
    """Extents of a thick snapshot of `size` bytes with `wanted` bytes for changes, 0 for all.

    With all it can never overflow, and it is never larger than that (kernel: dm-snap-persistent.c).
    """
    chunks = -(-size // _CHUNK)
    most = (chunks + -(-chunks // _EXCEPTIONS) + 2) * _CHUNK
    return -(-min(wanted or most, most) // extent)


def _flag(value: str) -> bool:
    if value not in ("true", "false", "yes", "no"):
        raise InvalidError(f"parameter thin={value[:40]!r}: want true or false")
    return value in ("true", "yes")


def _count(parameters: Mapping[str, str], key: str, kind: str, wanted: str, *, least: int) -> int:
    """The number of parameter key, 0 where it does not apply. Raises: InvalidError."""
    if kind != wanted:
        if key in parameters:
            raise InvalidError(f"parameter {key}: it goes with type={wanted}, and type is {kind}")
        return 0
    value = parameters.get(key, str(least))
    if not value.isascii() or not value.isdigit() or not least <= int(value[:4]) <= _MOST:
        raise InvalidError(f"parameter {key}={value[:40]!r}: want {least} to {_MOST}")
    return int(value)
