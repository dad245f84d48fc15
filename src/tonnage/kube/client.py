"""Typed requests to any API server: read Structs, write patches. One transport below, no caching, no retries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from tonnage.api.kinds import Kind
from tonnage.api.meta import KubeObject, ListMeta, Object, ObjectMeta, ObjectReference, PartialObject, reference
from tonnage.errors import ApiError, Cause, api_error
from tonnage.kube.transport import JSON, JSON_PATCH, MERGE_PATCH, Request, Response, Transport

T = TypeVar("T", bound=KubeObject)
JsonPatch = list[dict[str, Any]]
Keep = Callable[[ObjectMeta], bool]
"""Which objects of a list or watch are wanted. What is not is read no further than its metadata."""
PAGE = 500


class _List(Object, frozen=True):
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class _Line(Object, frozen=True):
    type: str
    object: msgspec.Raw


class _StatusCause(Object, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class _StatusDetails(Object, frozen=True):
    name: str = ""
    group: str = ""
    kind: str = ""
    causes: list[_StatusCause] | None = None
    retry_after_seconds: int | None = None


class _Status(Object, frozen=True):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _StatusDetails | None = None


_lists = msgspec.json.Decoder(_List)
_lines = msgspec.json.Decoder(_Line)
_statuses = msgspec.json.Decoder(_Status)
_partials = msgspec.json.Decoder(PartialObject)


@dataclass(frozen=True)
class Listing(Generic[T]):
    """Objects, and the resourceVersion from which to watch on. others: how many came that were not wanted."""

    items: list[T]
    resource_version: str
    others: int = 0


@dataclass(frozen=True)
class WatchEvent(Generic[T]):
    """type is ADDED, MODIFIED, DELETED or BOOKMARK (an object with nothing but its resourceVersion); OTHER for what
    is not wanted, whatever happened to it (an object with nothing but its metadata)."""

    type: str
    object: T


def status_error(data: bytes | msgspec.Raw, code: int = 0) -> ApiError:
    """Turn a Status (or any other error body) into the ApiError that fits."""
    try:
        status = _statuses.decode(data)
    except msgspec.MsgspecError:
        return api_error(code or 500, "", bytes(data)[:500].decode(errors="replace"))
    details = status.details or _StatusDetails()
    causes = [Cause(c.field, c.message, c.reason) for c in details.causes or ()]
    return api_error(
        status.code or code,
        status.reason,
        status.message,
        causes=causes,
        group=details.group,
        kind=details.kind,
        name=details.name,
        retry_after=details.retry_after_seconds,
    )


class Client:
    """Requests about objects. All methods raise ApiError for an error answer, Unavailable without a connection."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """Read one object, live. Raises ApiNotFound."""
        return kind.decode((await self._send("GET", kind.path(namespace, name))).body)

    async def list(
        self,
        kind: Kind[T],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        keep: Keep | None = None,
    ) -> Listing[T]:
        """Read all objects (page by page), narrowed by a label and a field selector, and by keep as they arrive."""
        query = _query(labelSelector=labels, fieldSelector=fields, resourceVersion=resource_version, limit=str(PAGE))
        items: list[T] = []
        others = 0
        while True:
            page = _lists.decode((await self._send("GET", kind.path(namespace), query)).body)
            wanted = [raw for raw in page.items or () if keep is None or keep(_partials.decode(raw).metadata)]
            items += [kind.decode(raw) for raw in wanted]
            others += len(page.items or ()) - len(wanted)
            if not page.metadata.continue_:
                return Listing(items, page.metadata.resource_version, others)
            query = _query(
                labelSelector=labels, fieldSelector=fields, limit=str(PAGE), **{"continue": page.metadata.continue_}
            )

    async def revision(self, kind: Kind[T], namespace: str = "", *, fields: str = "") -> str:
        """The resourceVersion that the server is at; costs it the reading of one object."""
        query = _query(fieldSelector=fields, limit="1")
        return _lists.decode((await self._send("GET", kind.path(namespace), query)).body).metadata.resource_version

    @asynccontextmanager
    async def watch(
        self,
        kind: Kind[T],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        keep: Keep | None = None,
    ) -> AsyncIterator[AsyncIterator[Sequence[WatchEvent[T]]]]:
        """Open a watch; iterate over batches of events until the server ends it. Raises ApiGone: list again."""
        query = _query(
            watch="true",
            allowWatchBookmarks="true",
            labelSelector=labels,
            fieldSelector=fields,
            resourceVersion=resource_version,
        )
        async with self.transport.stream(Request("GET", kind.path(namespace), query)) as chunks:
            yield _decode(kind, chunks, keep)

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "", *, subresource: str = "") -> T:
        """Make an object from plain data; apiVersion and kind are filled in. Raises ApiAlreadyExists, ApiInvalid."""
        data = msgspec.json.encode({**kind.head(), **body})
        return kind.decode((await self._send("POST", kind.path(namespace, "", subresource), body=data)).body)

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        body: Mapping[str, Any] | JsonPatch,
        namespace: str = "",
        *,
        subresource: str = "",
        resource_version: str = "",
        uid: str = "",
    ) -> T:
        """Change an object: a mapping is a merge patch (None removes a key), a list a JSON patch.

        resource_version and uid, where given, must still be the object's (merge patches only). Raises ApiConflict,
        ApiNotFound, ApiInvalid.
        """
        content_type = JSON_PATCH
        if isinstance(body, Mapping):
            content_type = MERGE_PATCH
            guard = _query(resourceVersion=resource_version, uid=uid)
            if guard:
                body = {**body, "metadata": {**body.get("metadata", {}), **guard}}
        path = kind.path(namespace, name, subresource)
        data = msgspec.json.encode(body)
        return kind.decode((await self._send("PATCH", path, body=data, content_type=content_type)).body)

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_seconds: int | None = None,
        propagation: str = "",
    ) -> None:
        """Ask for deletion, if uid and resource_version (where given) still hold. Raises ApiNotFound, ApiConflict.

        propagation: Background, Foreground or Orphan; "" for the server's default.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if guard := _query(uid=uid, resourceVersion=resource_version):
            options["preconditions"] = guard
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if propagation:
            options["propagationPolicy"] = propagation
        await self._send("DELETE", kind.path(namespace, name), body=msgspec.json.encode(options))

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """POST plain data to any path (bindings, evictions, reviews) and return the answer's body."""
        return (await self._send("POST", path, body=msgspec.json.encode(body))).body

    async def read(self, path: str) -> bytes:
        """GET any path (version, health, discovery)."""
        return (await self._send("GET", path)).body

    async def close(self) -> None:
        """Close the transport."""
        await self.transport.close()

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: bytes = b"",
        content_type: str = JSON,
    ) -> Response:
        response = await self.transport.request(Request(method, path, query or {}, body, content_type))
        if response.status >= 300:
            raise status_error(response.body, response.status)
        return response


def refer(kind: Kind[T], obj: T) -> ObjectReference:
    """An ObjectReference to obj."""
    return reference(obj, api_version=kind.api_version, kind=kind.kind)


def _query(**values: str) -> dict[str, str]:
    return {key: value for key, value in values.items() if value}


async def _decode(
    kind: Kind[T], chunks: AsyncIterator[bytes], keep: Keep | None
) -> AsyncIterator[Sequence[WatchEvent[T]]]:
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
        events = []
        for line in lines:
            if not line:
                continue
            event = _lines.decode(line)
            if event.type == "ERROR":
                raise status_error(event.object)
            events.append(_event(kind, event, keep))
        if events:
            yield events


def _event(kind: Kind[T], event: _Line, keep: Keep | None) -> WatchEvent[T]:
    """A bookmark is an object of nothing: `containers` of a Pod's is null, which no Pod may have."""
    if event.type == "BOOKMARK":
        return WatchEvent(event.type, kind.struct(metadata=_partials.decode(event.object).metadata))
    if keep is not None and not keep(metadata := _partials.decode(event.object).metadata):
        return WatchEvent("OTHER", kind.struct(metadata=metadata))
    return WatchEvent(event.type, kind.decode(event.object))
