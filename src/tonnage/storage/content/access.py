"""What a node allows to fill volumes with, and how far one filling is. No I/O."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tonnage.base.errors import (
    BusyError,
    InvalidError,
    NotFoundError,
    OutOfRangeError,
    PreconditionError,
    TonnageError,
    UnavailableError,
    UnsupportedError,
)
from tonnage.host.run import CommandError
from tonnage.storage.content.hosts import FetchPolicy
from tonnage.storage.content.spec import ContentSpec, FolderSpec, S3Spec, UrlSpec

if TYPE_CHECKING:
    import ssl

_GI = 1 << 30
Now = Callable[[], datetime]


class StoppedError(BusyError):
    """The filling was stopped from outside; the volume is to be filled again."""


@dataclass(eq=False)
class Progress:
    """How far a filling is; read by others while it runs. done, total: bytes, total None where it is not known.

    wake: a descriptor that can be read once the filling is to stop, for programs that it runs.
    """

    what: str
    done: int = 0
    total: int | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    wake: int = field(default_factory=lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    _open: socket.socket | None = field(default=None, init=False, repr=False)

    def __del__(self) -> None:
        os.close(self.wake)

    def halt(self) -> None:
        """Have the filling stop soon. Idempotent."""
        self.stop.set()
        os.eventfd_write(self.wake, 1)
        if (found := self._open) is not None:
            with suppress(OSError):  # it is closed, or was never connected
                socket.socket.shutdown(found, socket.SHUT_RDWR)  # that of TLS would change what a thread reads from

    def watch(self, connection: socket.socket) -> None:
        """Have a stop end what blocks on this socket, instead of an earlier one. Raises: StoppedError."""
        self._open = connection
        self.add(0)  # after the line before: a stop meanwhile sees either the socket or this

    def __str__(self) -> str:
        if not self.done and self.total is None:
            return f"from {self.what}"
        unit, word = (_GI, "GiB") if max(self.done, self.total or 0) >= _GI else (1 << 20, "MiB")
        of = f" of {self.total / unit:.0f}" if self.total is not None else ""
        return f"{self.done / unit:.0f}{of} {word} from {self.what}"

    def add(self, count: int) -> None:
        """Count bytes. Raises: StoppedError."""
        self.done += count
        if self.stop.is_set():
            raise StoppedError(f"{self.what}: stopped")


@dataclass(frozen=True)
class ContentAccess:
    """What a node allows: hosts to fetch from, image stores, and folders. tls, sleep, now: of downloads."""

    policy: FetchPolicy = field(default_factory=FetchPolicy)
    stores: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()
    tls: ssl.SSLContext | None = None
    sleep: Callable[[float], None] | None = None
    now: Now = lambda: datetime.now(UTC)

    def check(self, content: ContentSpec) -> None:
        """Check that this node allows a content. Raises: InvalidError."""
        if isinstance(content, FolderSpec):
            self.folder(content)
        elif isinstance(content, UrlSpec | S3Spec):
            parts = urlsplit(content.url if isinstance(content, UrlSpec) else content.endpoint)
            self.policy.check(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        elif not self.stores:
            raise InvalidError(f"{content}: this node has no image store, see --image-store")

    def folder(self, content: FolderSpec) -> Path:
        """The folder of that name. Raises: InvalidError."""
        found = [path for path in self.folders if path.name == content.name]
        if len(found) == 1:
            return found[0]
        there_is = ", ".join(sorted(path.name for path in self.folders)) or "there is none, see --source"
        why = "two allowed folders of this node have that name" if found else f"this node allows {there_is}"
        raise InvalidError(f"{content}: {why}")


def pause(progress: Progress, seconds: float) -> None:
    """Wait, unless the filling is stopped. Raises: StoppedError."""
    if progress.stop.wait(seconds):
        raise StoppedError(f"{progress.what}: stopped")


@contextmanager
def stoppable(progress: Progress) -> Iterator[None]:
    """Show what a stop broke off as stopped: its socket or program ended, which says nothing about the source."""
    try:
        yield
    except (CommandError, UnavailableError) as failure:
        if progress.stop.is_set():
            raise StoppedError(f"{progress.what}: stopped") from failure
        raise


def is_final(failure: TonnageError) -> bool:
    """Whether a filling that failed so cannot succeed unchanged: its volume is deleted."""
    return isinstance(failure, InvalidError | UnsupportedError | OutOfRangeError | PreconditionError | NotFoundError)
