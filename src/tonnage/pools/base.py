"""The Pool contract: what every kind of storage offers, and the words for it. memory.py is the reference.

The pool is the database. What must survive lies with the volume, so that after a kill at any moment `open()` finds
everything by listing. All methods but `close` may be repeated with the same arguments any number of times.
Sizes are whole bytes. Names are validated by the caller's `check_name` before they become part of a path.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tonnage.errors import Invalid

MAX_NAME = 128
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]*")


def check_name(name: str) -> str:
    """Return name if it may become part of a path: letters, digits, `-_.`, at most 128. Raises Invalid."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise Invalid(
            f"volume name {name[:40]!r}: want letters, digits, '-', '_' or '.', at most {MAX_NAME} characters"
        )
    return name


class State(Enum):
    """Life of a volume's content. mkfs runs only on NEW."""

    NEW = "new"
    FORMATTED = "formatted"


@dataclass(frozen=True)
class VolumeRequest:
    """What is asked of create().

    size: bytes wanted, at least 1. limit: bytes not to be passed, 0 for none. block: raw device instead of a file
    system. fstype: "" for the pool's default. parameters: class parameters meant for the pool, already checked to be
    known ones. owner: what to keep with the volume about whom it was made for (cluster, claim, ephemeral, reclaim).
    """

    name: str
    size: int
    limit: int = 0
    block: bool = False
    fstype: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    owner: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Volume:
    """A volume as its record says. size: usable bytes. created: seconds since the epoch."""

    name: str
    size: int
    block: bool = False
    fstype: str = ""
    state: State = State.NEW
    parameters: Mapping[str, str] = field(default_factory=dict)
    owner: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0


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
        something that does not fit the request), Invalid, Unsupported.
        """

    @abstractmethod
    async def delete(self, name: str) -> None:
        """Remove a volume and its record; an unknown one is success. Raises Precondition while it is in use."""

    @abstractmethod
    async def get(self, name: str) -> Volume:
        """Read one record. Raises NotFound."""

    @abstractmethod
    async def list(self) -> Sequence[Volume]:
        """All records in the order of their names."""

    @abstractmethod
    async def capacity(self, *, fstype: str = "", block: bool = False) -> Capacity:
        """Room for volumes of that kind."""

    async def capacity_for(self, parameters: Mapping[str, str], *, fstype: str = "", block: bool = False) -> Capacity:
        """Room for volumes of a class, for kinds where its parameters decide what fits. Raises Invalid, Unsupported
        for parameters that create() would refuse."""
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
