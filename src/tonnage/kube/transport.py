"""The one seam between us and an API server: a request with an answer, and a stream of lines.

One transport speaks HTTP with aiohttp; another calls an embedded server in the same process. The client above does not
know which one it has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


@dataclass(frozen=True)
class Request:
    """One HTTP request. path begins with "/"; query values are not yet escaped; accept is JSON."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = JSON
    accept: str = JSON


@dataclass(frozen=True)
class Response:
    """Its answer, whatever the status."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Transport(Protocol):
    """Carries requests to one API server. Raises Unavailable when there is no connection to it."""

    async def request(self, request: Request) -> Response:
        """Send one request and read the whole answer."""

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Send a watch and yield its answer in chunks of whole or partial lines, until the server ends it.

        An answer other than 200 raises the ApiError of its Status on entering.
        """

    async def close(self) -> None:
        """Close all connections. May be repeated."""
