"""A server that prints null wherever a field is empty, as Go does for what is not marked omitempty, and worse."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from msgspec import inspect
from tests.unit.kubernetes.api.forms import allows_none, alternatives

from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.client.transport import Request, Response, Transport

_STRUCTS = {kind.plural: kind.struct for kind in kinds.ALL}


def with_nulls(value: Any, form: inspect.Type) -> Any:
    """value with null in every field of its type that has nothing in it."""
    for one in alternatives(form):
        if isinstance(one, inspect.StructType) and isinstance(value, dict):
            found = {f.encode_name: with_nulls(value.get(f.encode_name), f.type) for f in one.fields}
            return {**value, **found}
        if isinstance(one, inspect.ListType) and isinstance(value, list):
            return [with_nulls(item, one.item_type) for item in value] or None
        if isinstance(one, inspect.DictType) and isinstance(value, dict):
            # An empty map that may be None is not null: `emptyDir: {}` is a volume's source.
            return value if value or allows_none(form) else None
    return value


class Nulls:
    """Rewrites the answers of another transport. Objects whose key is in broken get a field of the wrong type."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.broken: dict[str, dict[str, Any]] = {}

    def _object(self, kind: str, obj: dict[str, Any]) -> dict[str, Any]:
        if obj.get("kind") == "Status" or kind not in _STRUCTS:
            return obj
        if "items" in obj:
            return {**obj, "items": [self._object(kind, item) for item in obj["items"]] or None}
        return {
            **with_nulls(obj, inspect.type_info(_STRUCTS[kind])),
            **self.broken.get(obj["metadata"].get("name"), {}),
        }

    async def request(self, request: Request) -> Response:
        answer = await self.inner.request(request)
        if answer.status >= 300 or not answer.body.startswith(b"{"):
            return answer
        return replace(answer, body=json.dumps(self._object(_kind(request), json.loads(answer.body))).encode())

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self.inner.stream(request) as chunks:
            yield self._lines(_kind(request), chunks)

    async def _lines(self, kind: str, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in filter(None, lines):
                event = json.loads(line)
                if event["type"] != "BOOKMARK":
                    event["object"] = self._object(kind, event["object"])
                yield json.dumps(event).encode() + b"\n"

    async def close(self) -> None:
        await self.inner.close()


def _kind(request: Request) -> str:
    return next(
        (part for part in request.path.split("/") if part in _STRUCTS and part != "namespaces"),
        "namespaces" if request.path.startswith("/api/v1/namespaces") else "",
    )
