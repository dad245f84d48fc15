"""A typed client of any API server: reads Structs, writes patches. No caching, no retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from tonnage.base.errors import ApiError, ApiUnreadableError, FieldCause, api_error
from tonnage.kubernetes.api.decode import decode
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.meta import KubeObject, ListMeta, Object, ObjectMeta, ObjectReference, PartialObject
from tonnage.kubernetes.client.transport import (
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Request,
    Response,
    Transport,
)

T = TypeVar("T", bound=KubeObject)
JsonPatch = list[dict[str, Any]]
Keep = Callable[[ObjectMeta], bool]
"""Filter of a list or watch. Of filtered objects only the metadata are decoded."""
LARGE = 256 << 10
"""Bytes that are decoded in one turn of the event loop, one object at least."""


class _List(Object, frozen=True):
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
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


@dataclass(frozen=True)
class Unreadable:
    """An object with a field of the wrong type. metadata: what could be read of it, possibly nothing."""

    metadata: ObjectMeta
    error: ApiUnreadableError


@dataclass(frozen=True)
class Listing(Generic[T]):
    """Listed objects, and the resourceVersion to watch from. others: number of filtered objects.

    unreadable: existing objects that cannot be read, where the list was tolerant.
    """

    items: list[T]
    resource_version: str
    others: int = 0
    unreadable: Sequence[Unreadable] = ()


@dataclass(frozen=True)
class WatchEvent(Generic[T]):
    """An event of a watch.

    type is ADDED, MODIFIED, DELETED or BOOKMARK (an object with nothing but its resourceVersion); OTHER for a filtered
    object, whatever happened to it (an object with nothing but its metadata); UNREADABLE for an added or changed object
    that cannot be read (an object with its readable metadata; error has the reason).
    """

    type: str
    object: T
    error: ApiUnreadableError | None = None


def status_error(data: bytes | msgspec.Raw, code: int = 0) -> ApiError:
    """Convert a Status (or any other error body) to the matching ApiError."""
    try:
        status = decode(data, _Status)
    except (ValueError, RecursionError):
        return api_error(code or 500, "", bytes(data)[:500].decode(errors="replace"))
    details = status.details or _StatusDetails()
    causes = [FieldCause(c.field, c.message, c.reason) for c in details.causes or ()]
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


class StrategicPatch(dict[str, Any]):
    """A merge patch that merges lists such as conditions by the key of their items: those of others stay."""


class Client:
    """Requests for objects. All methods raise ApiError for an error response, UnavailableError without a connection."""

    page = 500
    """Objects that one request of a list asks for."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """Get one object (live read). Raises: ApiNotFoundError, ApiUnreadableError."""
        return _read(kind, (await self._send("GET", kind.path(namespace, name))).body)

    async def list(
        self,
        kind: Kind[T],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        keep: Keep | None = None,
        tolerant: bool = False,
    ) -> Listing[T]:
        """List all objects (in pages), filtered by a label and a field selector, and by keep on arrival.

        Raises: ApiUnreadableError for the first object that cannot be read: a caller that deletes what no object refers
        to must not miss one. tolerant: continue without such objects, and return them in `unreadable`.
        """
        query = _query(
            labelSelector=labels, fieldSelector=fields, resourceVersion=resource_version, limit=str(self.page)
        )
        items: list[T] = []
        unreadable: list[Unreadable] = []
        others = 0
        while True:
            metadata, page = _page(kind, (await self._send("GET", kind.path(namespace), query)).body)
            read = 0
            for raw in page:
                read += len(bytes(raw))
                if read > LARGE:
                    read = 0
                    await asyncio.sleep(0)
                try:
                    if keep is None or keep(decode(raw, PartialObject).metadata):
                        items.append(kind.decode(raw))
                    else:
                        others += 1
                except (ValueError, RecursionError) as failure:
                    fault = _unreadable(kind, raw, failure)
                    if not tolerant:
                        raise fault.error from None
                    unreadable.append(fault)
            if not metadata.continue_:
                return Listing(items, metadata.resource_version, others, unreadable)
            query = {**query, "continue": metadata.continue_}
            query.pop("resourceVersion", None)

    async def revision(self, kind: Kind[T], namespace: str = "", *, fields: str = "") -> str:
        """The server's present resourceVersion; reads one object."""
        query = _query(fieldSelector=fields, limit="1")
        metadata, _ = _page(kind, (await self._send("GET", kind.path(namespace), query)).body)
        return metadata.resource_version

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
        """Watch; iterate over batches of events until the server ends it. Raises: ApiGoneError: list again."""
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
        """Create an object from plain data; apiVersion and kind are added.

        Raises: ApiAlreadyExistsError, ApiInvalidError.
        """
        data = msgspec.json.encode({**kind.head(), **body})
        return _read(kind, (await self._send("POST", kind.path(namespace, "", subresource), body=data)).body)

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
        """Patch an object: a mapping is a merge patch (None removes a key) or a StrategicPatch, a list a JSON patch.

        resource_version and uid are preconditions, where given (not for JSON patches). Raises: ApiConflictError,
        ApiNotFoundError, ApiInvalidError.
        """
        content_type = JSON_PATCH
        if isinstance(body, Mapping):
            content_type = STRATEGIC_PATCH if isinstance(body, StrategicPatch) else MERGE_PATCH
            guard = _query(resourceVersion=resource_version, uid=uid)
            if guard:
                body = {**body, "metadata": {**body.get("metadata", {}), **guard}}
        path = kind.path(namespace, name, subresource)
        data = msgspec.json.encode(body)
        return _read(kind, (await self._send("PATCH", path, body=data, content_type=content_type)).body)

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
        """Delete an object. uid and resource_version are preconditions, where given.

        propagation: Background, Foreground or Orphan; "" for the server's default. Raises: ApiNotFoundError,
        ApiConflictError.
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
        """POST plain data to any path (bindings, evictions, reviews) and return the response's body."""
        return (await self._send("POST", path, body=msgspec.json.encode(body))).body

    async def read(self, path: str) -> bytes:
        """GET any path (version, health, discovery)."""
        return (await self._send("GET", path)).body

    async def close(self) -> None:
        """Close the transport."""
        await self.transport.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

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
    """An ObjectReference to obj. Objects inside lists have no kind of their own, so it is an argument."""
    meta = obj.metadata
    return ObjectReference(
        api_version=kind.api_version,
        kind=kind.kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )


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
            try:
                event = decode(line, _Line)
            except (ValueError, RecursionError) as failure:
                raise ApiUnreadableError(f"{kind.plural}: an event cannot be read: {failure}") from None
            if event.type == "ERROR":
                raise status_error(event.object)
            events.append(_event(kind, event, keep))
        if len(chunk) > LARGE:  # decoded in one turn of the loop, handled in another
            await asyncio.sleep(0)
        if events:
            yield events


def _event(kind: Kind[T], event: _Line, keep: Keep | None) -> WatchEvent[T]:
    try:
        if event.type == "BOOKMARK":
            return WatchEvent(event.type, kind.struct(metadata=decode(event.object, PartialObject).metadata))
        if keep is not None and not keep(metadata := decode(event.object, PartialObject).metadata):
            return WatchEvent("OTHER", kind.struct(metadata=metadata))
        return WatchEvent(event.type, kind.decode(event.object))
    except (ValueError, RecursionError) as failure:
        fault = _unreadable(kind, event.object, failure)
        # Only the name of a deleted object matters.
        type_ = "DELETED" if event.type == "DELETED" else "UNREADABLE"
        return WatchEvent(type_, kind.struct(metadata=fault.metadata), fault.error)


def _page(kind: Kind[T], data: bytes) -> tuple[ListMeta, list[msgspec.Raw]]:
    try:
        page = decode(data, _List)
        metadata = ListMeta() if bytes(page.metadata) == b"null" else decode(page.metadata, ListMeta)
    except (ValueError, RecursionError) as failure:
        raise ApiUnreadableError(f"{kind.plural}: the list cannot be read: {failure}") from None
    return metadata, page.items or []


def _read(kind: Kind[T], data: bytes) -> T:
    try:
        return kind.decode(data)
    except (ValueError, RecursionError) as failure:
        raise _unreadable(kind, data, failure).error from None


def _unreadable(kind: Kind[T], data: bytes | msgspec.Raw, failure: Exception) -> Unreadable:
    metadata = _metadata(data)
    # msgspec says: <what is wrong> - at `$.<path>`
    what, _, path = str(failure).partition(" - at `$.")
    field = path.removesuffix("`")
    text = f"{kind.plural} {metadata.key or '<no name>'}: cannot be read: {field + ': ' if field else ''}{what}"
    error = ApiUnreadableError(
        text, causes=[FieldCause(field, what)], group=kind.group, kind=kind.kind, name=metadata.name
    )
    return Unreadable(metadata, error)


def _metadata(data: bytes | msgspec.Raw) -> ObjectMeta:
    """Read as much metadata as possible: all of it, the texts that identify the object, or nothing."""
    try:
        return decode(data, PartialObject).metadata
    except (ValueError, RecursionError):
        pass
    try:
        found = msgspec.json.decode(data)["metadata"]
        names = ("name", "namespace", "uid", "resourceVersion")
        texts = {name: found[name] for name in names if isinstance(found.get(name), str)}
        return msgspec.convert(texts, ObjectMeta)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return ObjectMeta()
