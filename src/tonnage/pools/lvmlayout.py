"""How a logical volume lies on the disks of its group: what class parameters mean, what it costs, what still fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tonnage.errors import Invalid, Unsupported
from tonnage.host.lvm import PhysicalVolume

TYPES = ("linear", "striped", "raid1")
PARAMETERS = frozenset({"thin", "type", "stripes", "mirrors", "cowSize", "erase"})
_ERASE = ("none", "zero", "discard")
_MOST = 32  # stripes or mirrors


@dataclass(frozen=True)
class Layout:
    """thin: in the thin pool, and then linear. stripes: disks that a striped one spans. mirrors: copies beside the
    first."""

    thin: bool = False
    stripes: int = 1
    mirrors: int = 0

    @property
    def is_linear(self) -> bool:
        """Whether any free extents will do, wherever they are."""
        return not self.thin and self.stripes == 1 and not self.mirrors

    @property
    def disks(self) -> int:
        """Disks that it needs, each with room."""
        return self.stripes * (self.mirrors + 1)

    def extents(self, length: int, extent: int) -> int:
        """Extents of a volume of at least length bytes."""
        return -(-length // (extent * self.stripes)) * self.stripes

    def cost(self, extents: int) -> int:
        """Extents that it takes from the group. raid1 keeps one more for each copy's own metadata."""
        if self.thin:
            return 0
        return (extents + 1) * (self.mirrors + 1) if self.mirrors else extents

    def room(self, disks: tuple[PhysicalVolume, ...], free: int) -> int:
        """Extents of the largest volume that surely fits. free: of the whole group."""
        if self.is_linear:
            return free
        most = sorted((disk.free for disk in disks), reverse=True)
        each = most[self.disks - 1] if len(most) >= self.disks else 0
        return max(0, each - (1 if self.mirrors else 0)) * self.stripes

    def arguments(self) -> list[str]:
        """For lvcreate."""
        if self.mirrors:
            return ["--type", "raid1", "--mirrors", str(self.mirrors)]
        return ["--type", "striped", "--stripes", str(self.stripes)] if self.stripes > 1 else ["--type", "linear"]


def read(parameters: Mapping[str, str], *, thin_pool: str, pool: str) -> Layout:
    """The layout that class parameters ask for; without them a thin volume where the pool has a thin pool, linear
    elsewhere. Raises Invalid, Unsupported, naming the parameter."""
    if "cowSize" in parameters:
        raise Unsupported("parameter cowSize: it is for snapshots of thick volumes, which are not offered yet")
    thin = _flag(parameters.get("thin", "true" if thin_pool and "type" not in parameters else "false"))
    kind = parameters.get("type", "linear")
    if kind not in TYPES:
        raise Invalid(f"parameter type={kind[:40]!r}: want one of {', '.join(TYPES)}")
    if thin and not thin_pool:
        raise Unsupported(f"parameter thin: pool {pool!r} has no thin pool, name one as lvm:GROUP,thin=NAME")
    if thin and kind != "linear":
        raise Invalid(f"parameter type={kind}: thin volumes lie as their thin pool does; leave it out, or thin=false")
    erase = parameters.get("erase", "none")
    if erase not in _ERASE:
        raise Invalid(f"parameter erase={erase[:40]!r}: want one of {', '.join(_ERASE)}")
    if thin and erase == "zero":
        raise Invalid("parameter erase='zero': zeros would fill a thin pool; it never shows old blocks: want discard")
    stripes = _count(parameters, "stripes", kind, "striped", least=2)
    mirrors = _count(parameters, "mirrors", kind, "raid1", least=1)
    return Layout(thin, stripes or 1, mirrors or 0)


def _flag(value: str) -> bool:
    if value not in ("true", "false", "yes", "no"):
        raise Invalid(f"parameter thin={value[:40]!r}: want true or false")
    return value in ("true", "yes")


def _count(parameters: Mapping[str, str], key: str, kind: str, wanted: str, *, least: int) -> int:
    """The number after key, 0 where it does not apply. Raises Invalid."""
    if kind != wanted:
        if key in parameters:
            raise Invalid(f"parameter {key}: it goes with type={wanted}, and type is {kind}")
        return 0
    value = parameters.get(key, str(least))
    if not value.isascii() or not value.isdigit() or not least <= int(value[:4]) <= _MOST:
        raise Invalid(f"parameter {key}={value[:40]!r}: want {least} to {_MOST}")
    return int(value)
