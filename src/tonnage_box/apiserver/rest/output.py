"""Encoding of answers: objects whole, as metadata only, or as Table rows, single and in lists; and errors."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

import msgspec

from tonnage.base.errors import ApiError
from tonnage.kubernetes.client.transport import JSON, PROTOBUF, Response
from tonnage_box.apiserver.printers import table
from tonnage_box.apiserver.request.errors import bad_request, status
from tonnage_box.apiserver.request.negotiate import OBJECT, Accepted, accepted
from tonnage_box.apiserver.request.resource import Resource
from tonnage_box.apiserver.storage.store import Obj, StoredObject
from tonnage_box.apiserver.storage.watch import Render, Shape, line, render_json

encode = msgspec.json.Encoder().encode
_INCLUDES = ("Metadata", "None", "Object")
AS_STORED = Shape()
_PROTOBUF_COST = 8
"""A pod of 4 kB takes 0.2 ms."""
Now = Callable[[], datetime]


class _Metadata(msgspec.Struct):
    metadata: msgspec.Raw


_decode = msgspec.json.Decoder(dict[str, Any]).decode
_metadata = msgspec.json.Decoder(_Metadata).decode


class Representation(NamedTuple):
    """How a client wants to see objects. included: what rows of a Table hold. pretty: with line ends and indents."""

    resource: Resource
    accepted: Accepted = OBJECT
    included: table.Include = "Metadata"
    pretty: bool = False

    @classmethod
    def read(cls, resource: Resource, accept: str, query: Mapping[str, str], *, rows: bool = False) -> Representation:
        """Of a request; rows: includeObject holds, too. Raises: 400 and 406."""
        wanted = accepted(accept, encoded="protobuf" not in accept or resource.is_encoded)
        if not query:
            return cls(resource, wanted)
        included = query.get("includeObject", "Metadata") if rows else "Metadata"
        if included not in ("", *_INCLUDES):
            raise bad_request(f"includeObject is None, Metadata or Object, not {included[:40]!r}")
        return cls(resource, wanted, cast(table.Include, included or "Metadata"), is_pretty(query))

    @property
    def is_as_stored(self) -> bool:
        """Whether answers have the stored bytes of objects."""
        return self.accepted == OBJECT and not self.resource.stored_as

    @property
    def version(self) -> str:
        """Of Tables and PartialObjectMetadata."""
        return f"meta.k8s.io/{self.accepted.version}"


def is_pretty(query: Mapping[str, str]) -> bool:
    """Whether JSON is wanted with line ends and indents."""
    return query.get("pretty", "") in ("true", "1")


def outward(resource: Resource, record: StoredObject, revision: int) -> Obj:
    """The object as this resource shows it, at a revision."""
    obj = record.decode()
    obj["metadata"]["resourceVersion"] = str(revision)
    return resource.outward(obj)


def shape(view: Representation, now: Now) -> Shape:
    """Encoding of an object for a watch with this view."""
    if not view.accepted.is_protobuf:
        return json_shape(view, now)
    from tonnage_box.apiserver.protobuf import envelope  # late: many clients never speak it

    plain = json_shape(view, now)

    def render(record: StoredObject, revision: int) -> bytes:
        return envelope.encode(_decode(plain.render(record, revision)))

    name = ("protobuf", view.resource.key, plain.name)
    return Shape(name, render, envelope.frame, f"{PROTOBUF};stream=watch", _PROTOBUF_COST)


def json_shape(view: Representation, now: Now) -> Shape:
    """Encoding of an object in JSON for a client with this view."""
    if view.accepted.shape == "object" and not view.resource.stored_as:
        return AS_STORED
    resource, version = view.resource, view.version
    if view.accepted.shape == "table":
        return Shape(("table", resource.key, view.included, version), _table(view, now))
    if view.accepted.shape == "metadata":
        return Shape(("metadata", resource.key, version), _partial(view))
    return Shape(("object", resource.key), lambda record, revision: encode(outward(resource, record, revision)))


def _partial(view: Representation) -> Render:
    head = f'{{"kind":"PartialObjectMetadata","apiVersion":"{view.version}","metadata":'.encode()

    def render(record: StoredObject, revision: int) -> bytes:
        return head + bytes(_metadata(render_json(record, revision)).metadata) + b"}"

    return render


def _table(view: Representation, now: Now) -> Render:
    def render(record: StoredObject, revision: int) -> bytes:
        obj, meta = outward(view.resource, record, revision), {"resourceVersion": str(revision)}
        return encode(_tabulate(view, [obj], now(), meta))

    return render


def _tabulate(
    view: Representation, objects: Sequence[dict[str, Any]], now: datetime, meta: dict[str, Any]
) -> dict[str, Any]:
    made = table.table(view.resource.columns, objects, now, view.included, meta)
    return made | {"apiVersion": view.version}


def render_list(view: Representation, records: Sequence[StoredObject], meta: dict[str, Any], now: datetime) -> bytes:
    """The whole answer of a list."""
    if view.accepted.is_protobuf:
        return _protobuf_list(view, records, meta, now)
    one, items, kind = _one(view, now), "items", view.resource.kind
    head: dict[str, Any] = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version}
    if view.accepted.shape == "table":
        head, items = _tabulate(view, [], now, meta), "rows"
    elif view.accepted.shape == "metadata":
        head = {"kind": "PartialObjectMetadataList", "apiVersion": view.version}
    envelope = encode(head | {"metadata": meta, items: []})
    if view.pretty:
        envelope = prettied(envelope)
    before, _, after = envelope.rpartition(b"[]")
    joint, end = (b"\n    ", b"\n  ") if view.pretty else (b"", b"")
    # One object after the other, and one copy that grows in place: no call holds all threads for the whole list.
    answer = io.BytesIO()
    answer.write(before + b"[")
    for n, record in enumerate(records):
        item = one(record)
        if view.pretty:  # line ends inside texts are escaped
            item = msgspec.json.format(item, indent=2).replace(b"\n", joint)
        answer.write(b"," + joint if n else joint)
        answer.write(item)
    answer.write((end if records else b"") + b"]" + after)
    return answer.getvalue()


def _protobuf_list(view: Representation, records: Sequence[StoredObject], meta: dict[str, Any], now: datetime) -> bytes:
    from tonnage_box.apiserver.protobuf import envelope

    one, kind = _one(view, now), view.resource.kind
    api_version, name = kind.api_version, kind.kind
    if view.accepted.shape == "metadata":
        api_version, name = view.version, "PartialObjectMetadata"
    message = envelope.message_of(api_version, name)
    items = (message.write(_decode(one(record))) for record in records)
    return envelope.encode_list(api_version, f"{name}List", meta, items)


def prettied(body: bytes) -> bytes:
    """JSON with line ends and indents."""
    return msgspec.json.format(body, indent=2) + b"\n"


def _one(view: Representation, now: datetime) -> Callable[[StoredObject], bytes]:
    """Encoding of an object of a list."""
    if view.accepted.shape != "table":
        render = json_shape(view, lambda: now).render
        return lambda record: render(record, record.revision)
    resource, columns = view.resource, view.resource.columns or table.DEFAULT
    return lambda record: encode(table.row(columns, outward(resource, record, record.revision), now, view.included))


def bookmark(view: Representation, revision: int, *, initial: bool) -> bytes:
    """A BOOKMARK of a watch; initial marks the end of the initial events."""
    obj = _bookmarked(view, revision, initial=initial)
    if not view.accepted.is_protobuf:
        return line("BOOKMARK", encode(obj))
    from tonnage_box.apiserver.protobuf import envelope

    return envelope.frame("BOOKMARK", envelope.encode(obj))


def _bookmarked(view: Representation, revision: int, *, initial: bool) -> dict[str, Any]:
    meta: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
    if initial:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    if view.accepted.shape == "object":
        return view.resource.kind.head() | {"metadata": meta}
    partial = {"kind": "PartialObjectMetadata", "apiVersion": view.version, "metadata": meta}
    if view.accepted.shape == "metadata":
        return partial
    rows = [{"cells": [], "object": partial}]
    meta = {"resourceVersion": str(revision)}
    return {"kind": "Table", "apiVersion": view.version, "metadata": meta, "columnDefinitions": [], "rows": rows}


_WARNINGS, _WARNING_LENGTH = 16, 256
"""What fits into the 4 KiB that Kubernetes allows the warnings of an answer."""
_HEADERS = {"Content-Type": JSON, "Cache-Control": "no-cache, private"}


def answer(
    body: bytes, *, pretty: bool = False, code: int = 200, warnings: Sequence[str] = (), protobuf: bool = False
) -> Response:
    """A body of JSON (or protobuf) as an answer. pretty: still to be indented."""
    if protobuf:
        return Response(code, body, _HEADERS | {"Content-Type": PROTOBUF})
    if pretty:
        body = prettied(body)
    if not warnings:
        return Response(code, body, _HEADERS)
    shown = [w[:_WARNING_LENGTH] for w in warnings[:_WARNINGS]]
    quoted = (w.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") for w in shown)
    return Response(code, body, _HEADERS | {"Warning": ", ".join(f'299 - "{w}"' for w in quoted)})


def as_protobuf(answer: Response) -> Response:
    """An answer of JSON in protobuf; as it is, if it has no such encoding or is encoded already."""
    from tonnage_box.apiserver.protobuf import envelope

    if answer.headers.get("Content-Type") != JSON:
        return answer
    try:
        body = envelope.encode(_decode(answer.body))
    except KeyError:
        return answer
    return Response(answer.status, body, dict(answer.headers) | {"Content-Type": PROTOBUF})


def error_response(error: ApiError) -> Response:
    """An error as an answer: a Status object."""
    headers = dict(_HEADERS)
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return Response(error.code, encode(status(error)), headers)
