"""Remote commands (exec, attach): channels and options, as k8s.io/apimachinery/pkg/util/remotecommand defines them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255


@dataclass(frozen=True)
class StreamOptions:
    """PodExecOptions and PodAttachOptions. command: empty for attach."""

    container: str = ""
    command: tuple[str, ...] = ()
    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False

    @property
    def is_attach(self) -> bool:
        """Whether it is the container's own process that is meant."""
        return not self.command


@dataclass(frozen=True)
class StreamInput:
    """A message of the client: data for stdin, the end of stdin, or the size of its terminal (columns, rows)."""

    data: bytes = b""
    is_end: bool = False
    size: tuple[int, int] | None = None


class Streams(Protocol):
    """The streams of one client."""

    async def receive(self) -> StreamInput | None:
        """The next message, None when the client is gone."""

    async def send(self, channel: int, data: bytes) -> None:
        """Send output. Raises: ConnectionError."""


Session = Callable[[Streams], Awaitable[int]]
"""Serves a client until the command ends; its exit code. Raises: TonnageError."""
OpenSession = Callable[[str, str, StreamOptions], Awaitable[Session]]
"""(namespace, pod, options) -> what serves the client. Raises: ApiError for a pod or container that cannot be meant."""
