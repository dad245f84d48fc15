"""Transport to an API server: a request with a response, and a stream of lines.

One transport speaks HTTP with aiohttp, another calls an embedded server in the same process. The client does not
distinguish them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

JSON = "application/json"
PROTOBUF = "application/vnd.kubernetes.protobuf"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


@dataclass(frozen=True)
class Request:
    """One HTTP request. path begins with "/"; query values are not yet escaped; accept is JSON.

    upgrade: the protocol to which the connection shall change, in lower case. pairs: then the whole query, in which
    names may repeat.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = JSON
    accept: str = JSON
    upgrade: str = ""
    pairs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Response:
    """A response of any status."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Transport(Protocol):
    """Carries requests to one API server. Raises: UnavailableError when there is no connection to it."""

    async def request(self, request: Request) -> Response:
        """Send one request and read the whole response."""

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Send a watch and yield its response in chunks of whole or partial lines, until the server ends it.

        A response other than 200 raises the ApiError of its Status on entering.
        """

    async def close(self) -> None:
        """Close all connections. Idempotent."""
