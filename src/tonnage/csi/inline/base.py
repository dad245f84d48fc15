"""The contract between the framework of inline drivers and one kind of content (KEP-596; CSI, NodePublishVolume).

A source is the only part that a new inline driver writes. The framework does the rest: sockets, records, mounts,
timers, limits, Events and metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from tonnage.host.atomic_writer import Content

MEBIBYTE = 1 << 20


def _any(_value: str) -> None:
    """Accept every value."""


def _none(_key: str) -> bool:
    return False


@dataclass(frozen=True)
class AttributeRule:
    """A key of volumeAttributes. check raises InvalidError for a bad value. A secret value is never recorded."""

    check: Callable[[str], None] = _any
    secret: bool = False


@dataclass(frozen=True)
class SourceNeeds:
    """What a source needs of the kubelet and of the framework.

    read_only: pods must say `readOnly: true`. audiences: of the pod's tokens, "" for the API server's own; none: no
    tokens. budget: bytes at most of one volume of Files. files: number of files at most. republish: the kubelet calls
    again about once a minute. persistent: PersistentVolumes too, whose handle is the source's to read. asks: whether
    a fill asks somebody else, as a signer: those are at most 20 a second on a node.
    accepts: whether a key that is not among the attributes is passed on; else it is rejected by name.
    """

    read_only: bool = False
    audiences: tuple[str, ...] = ()
    budget: int = MEBIBYTE
    files: int = 64
    republish: bool = False
    persistent: bool = False
    asks: bool = True
    accepts: Callable[[str], bool] = _none


@dataclass(frozen=True)
class InlinePod:
    """The pod that a volume is made for, as the kubelet describes it. repr() shows neither tokens nor secrets.

    tokens: by audience. secrets: of nodePublishSecretRef. fs_group: to be the group of the files, None for none.
    addresses: of a pod that was read from the API server; the kubelet gives none.
    """

    namespace: str
    name: str
    uid: str
    service_account: str = ""
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    fs_group: int | None = None
    addresses: tuple[str, ...] = ()


PodEvents = Callable[[InlinePod, str, str, str], None]
"""Called with pod, type (Normal, Warning), reason and message."""


@dataclass(frozen=True)
class Files:
    """Small content: files in memory, swapped all at once.

    again: when to fill again (seconds since 1970), None: never. group: of the files, None for the pod's fsGroup.
    stale: from when on a failure to fill again is reported; until then the content is good.
    """

    content: Mapping[str, Content]
    again: float | None = None
    group: int | None = None
    stale: float = 0.0


@dataclass(frozen=True)
class WritableLayer:
    """A volume of a pool that takes what the pod writes. size: bytes. pool: its name, "" for the default pool."""

    size: int
    pool: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tree:
    """Large content: folders on top of each other (overlay), the topmost first; path: what of them is shown.

    Without a writable layer it is shown read-only. The source holds the layers for as long as FillRequest.folder
    exists.
    """

    layers: tuple[Path, ...]
    path: str = ""
    writable: WritableLayer | None = None


Filled = Files | Tree


@dataclass(frozen=True)
class FillRequest:
    """What one volume asks for.

    folder: the volume's own, from its first record to its removal; a source may keep what must survive a restart of the
    agent there, and it is in memory where the source makes Files. before: what is shown now, None at the first time.
    """

    pod: InlinePod
    attributes: Mapping[str, str]
    read_only: bool
    handle: str
    folder: Path
    before: Filled | None = None


class InlineSource(Protocol):
    """One kind of content. fill() may be called again at any time, and never twice at once for one volume."""

    @property
    def attributes(self) -> Mapping[str, AttributeRule]:
        """Every key of volumeAttributes that it takes."""

    @property
    def needs(self) -> SourceNeeds:
        """What it needs of the kubelet and of the framework."""

    async def fill(self, request: FillRequest) -> Filled:
        """Return the content for a pod; must not block the event loop.

        Raises: InvalidError and other final errors: the pod's author must change something. UnavailableError,
        ExhaustedError: the call is repeated, with back-off.
        """


@runtime_checkable
class ClosableSource(Protocol):
    """A source with work of its own, as downloads that outlive a call."""

    async def close(self) -> None:
        """Stop that work. Idempotent."""
