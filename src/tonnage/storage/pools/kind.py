"""What a kind of pool is: the type of its description, what it needs of the machine, how it is made and looked at.

Each technology has one PoolKind, in a module `kind`. Everything that differs between kinds is asked of it. A process
that reads descriptions imports such modules, so back ends are imported in functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.quantity import from_bytes, to_bytes
from tonnage.storage.pools.base.contract import PoolLimits

if TYPE_CHECKING:
    from tonnage.base.aio.clock import Clock
    from tonnage.storage.pools.base.reservation import Disks
    from tonnage.storage.pools.core.pool import Pool
    from tonnage.storage.pools.setup_plan import PoolSetupPlan

UNLIMITED = float("inf")


@dataclass(frozen=True)
class PoolConfig:
    """A pool as described. A kind with further options has a type of its own.

    where: its directory, None for a kind without one. size: bytes, 0 for what its disk has. inline: bytes of the inline
    capacity. erase_rate: bytes of deleted volumes to overwrite per second, 0 for unlimited, None for the kind's
    default. written: the name of the kind as written, possibly an old one.
    """

    kind: PoolKind[Any]
    where: Path | None = None
    name: str = ""
    size: int = 0
    inline: int = 0
    erase_rate: int | None = None
    written: str = field(default="", compare=False)

    LIMITS: ClassVar[tuple[str, ...]] = ("size", "inline", "erase_rate")
    """Fields that may change while the pool is open."""

    def __str__(self) -> str:
        """The description, for pools.config.parse()."""
        values = {word: (getattr(self, option.field), option.field) for word, option in self.kind.options.items()}
        given = [f"{word}={_written(v)}" for word, (v, name) in values.items() if v != getattr(type(self), name)]
        head = f"{self.kind}:{self.place}" if self.place else str(self.kind)
        return ",".join([head, f"name={self.name}", *given])

    @property
    def place(self) -> str:
        """The text after the colon of the description."""
        return str(self.where or "")

    @property
    def renamed(self) -> str:
        """A deprecation warning where the description uses the old name of a kind, "" otherwise."""
        if self.written in ("", self.kind.name):
            return ""
        return f"pool {self.name}: kind {self.written} is called {self.kind} now: write {self.kind},name={self.name}"

    @property
    def has_size(self) -> bool:
        """Whether `size=` is an option; prepared disks have a fixed size."""
        return "size" in self.kind.options

    @property
    def marker(self) -> Path | None:
        """The file that marks a pool as made, None for kinds that have none."""
        return None

    @property
    def limits(self) -> PoolLimits:
        """Limits of an open pool."""
        return PoolLimits(self.size)

    @property
    def only_one_node(self) -> str:
        """What of the machine only one node can have as its pool, "" for nothing."""
        return ""

    def check(self, given: Collection[str]) -> None:
        """Raises: InvalidError for options that do not go together. given: words of the description."""
        if self.size and self.inline > self.size:
            raise InvalidError(f"inline={from_bytes(self.inline)}: more than the pool's size={from_bytes(self.size)}")

    def existing(self) -> PoolConfig:
        """The same pool, where opening it makes nothing."""
        return self

    def at(self, where: Path) -> Self:
        """The same pool in another directory."""
        return replace(self, where=where)


C = TypeVar("C", bound=PoolConfig)


@dataclass(frozen=True)
class PoolOption:
    """An option of a description.

    field: of the kind's config type. read: its value, of (word, text); raises InvalidError.
    """

    field: str
    read: Callable[[str, str], object]


@dataclass(frozen=True)
class Tool:
    """A program that a pool runs. package: Debian's."""

    program: str
    package: str


@dataclass(frozen=True)
class Needs:
    """What a pool needs of the machine, besides root."""

    loop: bool = False
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True)
class DeviceSetup(Generic[C]):
    """How a pool is made of devices. Blocking; plans change nothing.

    init: the plan of a pool on devices, of (config, devices, fstype, data profile). extend: of more devices, or none:
    growth into its enlarged devices. Both raise InvalidError, UnsupportedError, PreconditionError. reads_as_root:
    whether planning takes root.
    """

    init: Callable[[C, Sequence[Path], str, str], PoolSetupPlan]
    extend: Callable[[C, Sequence[Path]], PoolSetupPlan]
    reads_as_root: bool = False


@dataclass(frozen=True, eq=False)
class PoolKind(Generic[C]):
    """A kind of pool.

    place: what the text after the colon of a description names. config: type of the description. options: word ->
    option, in the order of a written description; `name` is of all kinds. read_place: fields of the text after the
    colon; raises InvalidError. make: the pool, not open, of (config, name, clock, disks); raises InvalidError. look:
    what is at a pool's place, in a line; blocking, read-only; raises UnavailableError, HostError. looks_first: whether
    look() needs nothing of the machine, so a wrong place is reported before what the machine lacks. needs: of the
    machine. formats: file systems of its volumes, or of the pool, where a class names none. setup: None for kinds that
    are not made of devices. has_directory: whether its place is a directory. is_real: False where sizes are not
    enforced and volumes end with the process. is_prepared: its volumes are disks that a person prepared: their PVs are
    published before there are claims. give_up: deletes the volumes on prepared disks below a directory; raises
    UnavailableError, HostError. selinux: whether each of its volumes is a file system of its own, whose mount takes an
    SELinux context.
    """

    name: str
    place: str
    config: type[C]
    options: Mapping[str, PoolOption]
    read_place: Callable[[str], Mapping[str, Any]]
    make: Callable[[C, str, Clock | None, Disks | None], Pool]
    look: Callable[[C], str]
    looks_first: bool = False
    needs: Callable[[C], Needs] = lambda _config: Needs()
    formats: tuple[str, ...] = ()
    setup: DeviceSetup[C] | None = None
    has_directory: bool = True
    is_real: bool = True
    is_prepared: bool = False
    give_up: Callable[[Path], None] | None = None
    selinux: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def words(self) -> tuple[str, ...]:
        """Its options."""
        return ("name", *self.options)


def directory_place(text: str) -> Mapping[str, Any]:
    """Read a directory, which may be left out: the box chooses one. Raises: InvalidError."""
    if text and (not text.startswith("/") or "\0" in text):
        raise InvalidError("want an absolute path after the colon")
    return {"where": Path(text) if text else None}


def read_size(word: str, text: str) -> int:
    """Bytes, more than 0. Raises: InvalidError."""
    if (size := to_bytes(text)) < 1:
        raise InvalidError(f"{word}={text[:40]}: want more than 0 bytes")
    return size


def read_rate(word: str, text: str) -> int:
    """Bytes per second, 0 for unlimited. Raises: InvalidError."""
    if (rate := to_bytes(text)) < 0:
        raise InvalidError(f"{word}={text[:40]}: want bytes in a second, as 200Mi, or 0 for no limit")
    return rate


def read_flag(word: str, text: str) -> bool:
    """Yes or no. Raises: InvalidError."""
    if text not in ("yes", "no", "true", "false"):
        raise InvalidError(f"{word}={text[:40]}: want yes or no")
    return text in ("yes", "true")


def read_ratio(word: str, text: str) -> float:
    """A factor of at least 1; UNLIMITED for yes. Raises: InvalidError."""
    words = {"yes": UNLIMITED, "true": UNLIMITED, "no": 1.0, "false": 1.0}
    try:
        ratio = words[text] if text in words else float(text)
    except ValueError:
        ratio = 0.0
    if not ratio >= 1.0:
        raise InvalidError(f"{word}={text[:40]}: want yes, no, or a ratio of at least 1")
    return ratio


SIZE = PoolOption("size", read_size)
INLINE = PoolOption("inline", read_size)
OVERCOMMIT = PoolOption("overcommit", read_ratio)
ERASE_RATE = PoolOption("erase_rate", read_rate)


def _written(value: object) -> str:
    """The text of an option's value."""
    if isinstance(value, bool) or value == UNLIMITED:
        return "yes" if value else "no"
    return from_bytes(value) if isinstance(value, int) else str(value)


def size_text(config: PoolConfig) -> str:
    """Its size for people."""
    return from_bytes(config.size) if config.size else "what its disk has"


def check_bounded(config: PoolConfig) -> None:
    """Raises: InvalidError for overcommit without end on a pool without a size."""
    if config.limits.ratio == UNLIMITED and not config.size:
        name = config.name or config.kind.name
        raise InvalidError(f"pool {name!r}: overcommit=yes needs size=, or the pool would allocate any amount")
