"""Parse pools from their one-line description: `KIND[:WHERE][,key=value...]`.

For example `image:/var/lib/tonnage,size=100Gi`. Each kind is imported when it is first used: a process has one or two
kinds, and all of them cost 2 MiB.
"""

from __future__ import annotations

import importlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tonnage.aio.clock import Clock
from tonnage.api.names import RENAMED_KINDS
from tonnage.api.quantity import from_bytes, to_bytes
from tonnage.errors import InvalidError
from tonnage.pools.base.contract import NO_KEEP, Keep, PoolLimits, check_name
from tonnage.pools.base.reservation import Disks
from tonnage.pools.core.backend import Backend
from tonnage.pools.core.pool import Pool
from tonnage.pools.directory.directory import MARKER, OWN

_ANY = float("inf")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "image": ("name", "size", "inline", "sparse", "overcommit", "rootfs", "keep", "eraserate"),
    "btrfs": ("name", "size", "inline", "sparse", "overcommit", "rootfs", "keep"),
    "lvm": ("name", "size", "inline", "thin", "thinsize", "overcommit", "eraserate"),
    "quota": ("name", "size", "inline", "overcommit", "rootfs", "keep"),
    "static": ("name", "eraserate"),
    "pmem": ("name", "size", "inline", "mode", "eraserate"),
    "fake": ("name", "size", "inline", "largest", "directories", "eraserate"),
}
KINDS = tuple(_KEYS)
_DIRECTORIES = {
    "image": "tonnage.pools.image.backend",
    "btrfs": "tonnage.pools.btrfs.backend",
    "quota": "tonnage.pools.quota",
}
"""Kinds in a directory: modules with make_backend()."""
LEAST = 1024**2
"""Minimum bytes of a pool: those of the smallest volume with a file system."""


def options_of(kind: str) -> tuple[str, ...]:
    """The options that a pool of that kind has."""
    return _KEYS[kind]


@dataclass(frozen=True)
class PoolConfig:
    """A pool as described.

    size: bytes, 0 for what its disk has. sparse: images are allocated as they are written. overcommit: factor for the
    disk's free bytes, 1 by default, inf for unlimited. largest: of a fake pool, the maximum volume size, 0 for
    unlimited. directories: whether a fake pool makes directories. group: of an lvm pool, the volume group, in place of
    a path. thin: its thin pool, "" for none. thin_size: bytes of the thin pool if it must be made. overcommit: of lvm,
    the factor for the thin pool's size. region: of a pmem pool, the region's name or cookie, "" for all. mode: of its
    namespaces, or lvm. erase_rate: bytes of deleted volumes to overwrite per second, 0 for unlimited, None for the
    kind's default. rootfs: whether it may be on the node's own disk, None: not specified. keep: the disk's min free,
    None: not specified. inline: bytes of the inline capacity. written: the name of the kind as written, possibly an old
    one.
    """

    kind: str
    where: Path | None = None
    name: str = ""
    size: int = 0
    sparse: bool = False
    overcommit: float = 1.0
    largest: int = 0
    directories: bool = True
    group: str = ""
    thin: str = ""
    thin_size: int = 0
    erase_rate: int | None = None
    region: str = ""
    mode: str = ""
    rootfs: bool | None = None
    keep: Keep | None = None
    inline: int = 0
    written: str = field(default="", compare=False)

    def __str__(self) -> str:
        """The description, for parse()."""
        where = self.group or self.region or self.where
        values = ((key, getattr(self, name), getattr(PoolConfig, name)) for key, (name, _) in _OPTIONS.items())
        given = [f"{key}={_written(value)}" for key, value, default in values if value != default]
        return ",".join([f"{self.kind}:{where}" if where else self.kind, f"name={self.name}", *given])

    @property
    def renamed(self) -> str:
        """A deprecation warning where the description uses the old name of a kind, "" otherwise."""
        if self.written not in RENAMED_KINDS:
            return ""
        return f"pool {self.name}: kind {self.written} is called {self.kind} now: write {self.kind},name={self.name}"

    @property
    def takes_disk(self) -> bool:
        """Whether volumes use the disk under a directory, which others may use too."""
        return "rootfs" in _KEYS[self.kind]

    @property
    def has_size(self) -> bool:
        """Whether `size=` is an option of that kind; prepared disks have a fixed size."""
        return "size" in _KEYS[self.kind]

    @property
    def marker(self) -> Path | None:
        """The file that marks a pool as made, None for kinds that have none."""
        if self.where is None:
            return None
        return (self.where / OWN if self.kind == "static" else self.where) / MARKER

    def at(self, where: Path) -> PoolConfig:
        """The same pool at another location."""
        return replace(self, where=where)


def parse(text: str) -> PoolConfig:
    """Parse a description. Unknown kinds and keys are rejected by name.

    Keys: name; size (a quantity); all except static: inline (a quantity); image and btrfs: sparse=yes|no; these and
    quota: overcommit=yes|no|RATIO, rootfs=yes|no, keep (a quantity, or a share of the disk in percent); kinds that
    erase: eraserate (a quantity per second, 0 for unlimited); fake: largest, directories=yes|no; lvm, whose WHERE is a
    volume group: thin=THIN_POOL, thinsize, overcommit; pmem, whose WHERE is a region or `all`: mode.

    Old names of kinds (names.RENAMED_KINDS) are accepted. Raises InvalidError.
    """
    head, *pairs = text.split(",")
    word, _, where = head.partition(":")
    kind = RENAMED_KINDS.get(word, word)  # the name of a pool without name= stays: ids of volumes begin with it
    if kind not in _KEYS:
        raise InvalidError(f"pool {text[:80]!r}: unknown kind {kind[:40]!r}, want one of {', '.join(KINDS)}")
    if kind == "lvm":
        from tonnage.host.lvm import check_group

        check_group(where)
    elif kind == "pmem":
        where = _region(where)
    elif where and (kind == "fake" or not where.startswith("/") or "\0" in where):
        raise InvalidError(f"pool {text[:80]!r}: {_where_hint(kind)}")
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if key not in _KEYS[kind]:
            raise InvalidError(
                f"pool {text[:80]!r}: {kind} has no option {key[:40]!r}, it has {', '.join(_KEYS[kind])}"
            )
        if not equals or not value or key in options:
            raise InvalidError(f"pool {text[:80]!r}: want {key}=VALUE once")
        options[key] = value
    if missing := {"overcommit", "thinsize"} & set(options) if kind == "lvm" and "thin" not in options else set():
        raise InvalidError(f"pool {text[:80]!r}: {min(missing)} is of a thin pool, name it with thin=")
    values: dict[str, Any] = {
        field: read(key, options[key]) for key, (field, read) in _OPTIONS.items() if key in options
    }
    values |= {"group": where} if kind == "lvm" else {"region": where} if kind == "pmem" else {}
    config = PoolConfig(
        kind,
        Path(where) if where and kind not in ("lvm", "pmem") else None,
        check_name(options.get("name", word)),
        written=word,
        **values,
    )
    if config.size and config.inline > config.size:
        raise InvalidError(f"inline={from_bytes(config.inline)}: more than the pool's size={from_bytes(config.size)}")
    return config


def _written(value: object) -> str:
    """The text of an option's value."""
    if isinstance(value, bool) or value == _ANY:
        return "yes" if value else "no"
    return from_bytes(value) if isinstance(value, int) else str(value)


def _keep(_: str, text: str) -> Keep:
    """Min free: bytes or a share, 10Gi or 15%. Raises InvalidError."""
    if text.endswith("%"):
        if not re.fullmatch(r"[0-9]{1,2}(\.[0-9]{1,3})?", text[:-1]):
            raise InvalidError(f"keep={text[:40]}: want a share of the disk below 100%, or bytes")
        return Keep(percent=float(text[:-1]))
    if (size := to_bytes(text)) < 0:
        raise InvalidError(f"keep={text[:40]}: want bytes, as 10Gi, or a share of the disk, as 15%")
    return Keep(size)


def _region(text: str) -> str:
    """A region of persistent memory, "" for all. Raises InvalidError."""
    if text and not re.fullmatch(r"all|region\d{1,6}|0x[0-9a-f]{1,16}", text):
        raise InvalidError(f"pool pmem:{text[:40]}: want a region as region0, its iset_id as 0xba90120012b4dc, or all")
    return "" if text == "all" else text


def _mode(_: str, text: str) -> str:
    """How a pmem pool uses memory. Raises InvalidError."""
    from tonnage.host.ndctl import MODES

    if text not in (known := (*MODES, "lvm")):
        raise InvalidError(f"mode={text[:40]}: want one of {', '.join(known)}")
    return text


def _thin(_: str, name: str) -> str:
    from tonnage.host.lvm import check_thin

    return check_thin(name)


def _where_hint(kind: str) -> str:
    return "a fake pool has no path, leave it out" if kind == "fake" else "want an absolute path after the colon"


def _size(key: str, text: str) -> int:
    if (size := to_bytes(text)) < 1:
        raise InvalidError(f"{key}={text[:40]}: want more than 0 bytes")
    return size


def _rate(key: str, text: str) -> int:
    """Bytes per second, 0 for unlimited."""
    if (rate := to_bytes(text)) < 0:
        raise InvalidError(f"{key}={text[:40]}: want bytes in a second, as 200Mi, or 0 for no limit")
    return rate


def _flag(key: str, value: str) -> bool:
    if value not in ("yes", "no", "true", "false"):
        raise InvalidError(f"{key}={value[:40]}: want yes or no")
    return value in ("yes", "true")


def _ratio(key: str, value: str) -> float:
    words = {"yes": _ANY, "true": _ANY, "no": 1.0, "false": 1.0}
    try:
        ratio = words[value] if value in words else float(value)
    except ValueError:
        ratio = 0.0
    if not ratio >= 1.0:
        raise InvalidError(f"{key}={value[:40]}: want yes, no, or a ratio of at least 1")
    return ratio


_OPTIONS: Mapping[str, tuple[str, Callable[[str, str], object]]] = {
    "size": ("size", _size),
    "inline": ("inline", _size),
    "largest": ("largest", _size),
    "thin": ("thin", _thin),
    "thinsize": ("thin_size", _size),
    "mode": ("mode", _mode),
    "sparse": ("sparse", _flag),
    "overcommit": ("overcommit", _ratio),
    "eraserate": ("erase_rate", _rate),
    "directories": ("directories", _flag),
    "rootfs": ("rootfs", _flag),
    "keep": ("keep", _keep),
}
"""Option -> the field of PoolConfig, and the function that reads it; in the order of a written description."""


def make(config: PoolConfig, *, clock: Clock | None = None, disks: Disks | None = None) -> Pool:
    """Create the pool that a configuration describes, not open yet.

    disks: the account of disks, the process's own by default. Raises InvalidError.
    """
    name = config.name or config.kind
    if config.kind == "fake":
        pool = _fake(config, name, clock)
    else:
        pool = Pool(name, _backend(config, name, clock, disks), erase_rate=config.erase_rate, clock=clock)
    pool.inline = config.inline
    return pool


def _fake(config: PoolConfig, name: str, clock: Clock | None) -> Pool:
    if not config.size:
        raise InvalidError(f"pool {name!r}: a fake pool needs size=")
    from tonnage.pools.fake import FakePool

    rate = config.erase_rate or 0
    return FakePool(
        name, config.size, largest=config.largest, directories=config.directories, clock=clock, erase_rate=rate
    )


def _backend(config: PoolConfig, name: str, clock: Clock | None, disks: Disks | None) -> Backend:
    """The back end of a pool on real disks. Raises InvalidError."""
    if config.overcommit == _ANY and not config.size:
        raise InvalidError(f"pool {name!r}: overcommit=yes needs size=, or the pool would allocate any amount")
    if config.kind == "lvm":
        from tonnage.pools.lvm.backend import LvmBackend
        from tonnage.pools.lvm.thin_pool import LvmLimits

        limits = LvmLimits(config.size, config.thin, config.thin_size, config.overcommit)
        return LvmBackend(name, config.group, limits, clock=clock)
    if config.kind == "pmem" and config.mode == "lvm":
        from tonnage.pools.pmem import volume_group

        return volume_group.make_backend(name, config.region, size=config.size, clock=clock)
    if config.kind == "pmem":
        from tonnage.pools.pmem.backend import PmemBackend

        return PmemBackend(name, config.region, mode=config.mode or "fsdax", most=config.size, clock=clock)
    if config.where is None:
        raise InvalidError(f"pool {name!r}: {config.kind} needs a directory, as {config.kind}:/var/lib/tonnage")
    if config.kind == "static":
        from tonnage.pools.static.backend import StaticBackend

        return StaticBackend(config.where, clock=clock)
    bounds = PoolLimits(config.size, config.overcommit, config.sparse, config.keep or NO_KEEP)
    make_backend = importlib.import_module(_DIRECTORIES[config.kind]).make_backend
    backend: Backend = make_backend(config.where, bounds, disks=disks, clock=clock)
    return backend


@dataclass(frozen=True)
class Outlook:
    """The bytes that pools on one disk may reserve together.

    disk: a path on it. free: bytes that are free now or used by the pools already, less their min free. Pools without a
    size count as what is free.
    """

    disk: Path
    pools: tuple[str, ...]
    reserved: int
    free: int

    @property
    def fits(self) -> bool:
        """Whether the disk has the bytes that may be reserved."""
        return self.reserved <= self.free

    def __str__(self) -> str:
        """A line for people."""
        verdict = "" if self.fits else f", {_whole(self.reserved - self.free)} more than it has"
        counts = Counter(self.pools)
        names = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
        return f"{names}: pools of {_whole(self.reserved)} on a disk with {_whole(self.free)} free{verdict}"


def _whole(size: int) -> str:
    """For people: whole Mi where possible."""
    return from_bytes(size // 1024**2 * 1024**2 or size)


def outlook(configs: Iterable[PoolConfig]) -> list[Outlook]:
    """The outlook of each disk under the pools. Blocking; makes nothing. Raises InvalidError."""
    disks: dict[int, list[PoolConfig]] = {}
    for config in configs:
        if config.where is not None and config.has_size:
            disks.setdefault(os.stat(_existing(config.where)).st_dev, []).append(config)
    return [_outlook(pools) for pools in disks.values()]


def _outlook(pools: list[PoolConfig]) -> Outlook:
    assert pools[0].where is not None
    disk = _existing(pools[0].where)
    found = os.statvfs(disk)
    free = found.f_bavail * found.f_frsize + sum(_taken(config.where) for config in pools if config.where)
    headroom = max((config.keep or NO_KEEP).of(found.f_blocks * found.f_frsize) for config in pools)
    free = max(0, free - headroom)
    return Outlook(disk, tuple(config.name for config in pools), sum(config.size or free for config in pools), free)


def _existing(path: Path) -> Path:
    for candidate in (path, *path.parents):
        if candidate.exists():
            return candidate
    raise InvalidError(f"{path} is not an absolute path")


def _taken(where: Path) -> int:
    """Bytes that the images of a pool have allocated."""
    if not where.is_dir():
        return 0
    return sum(os.lstat(where / entry).st_blocks * 512 for entry in os.listdir(where) if entry.endswith(".img"))
