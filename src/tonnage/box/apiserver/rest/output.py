"""Encoding of objects in answers: whole, metadata only, or Table rows; single objects and lists."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec

from tonnage.box.apiserver.printers import table
from tonnage.box.apiserver.request.errors import bad_request
from tonnage.box.apiserver.request.negotiate import Accepted
from tonnage.box.apiserver.request.resource import Resource
from tonnage.box.apiserver.storage.store import StoredObject
from tonnage.box.apiserver.storage.watch import Render, Shape, render_json

_encode = msgspec.json.Encoder().encode
_INCLUDES = ("Metadata", "None", "Object")
Now = Callable[[], datetime]


class _Metadata(msgspec.Struct):
    metadata: msgspec.Raw


_metadata = msgspec.json.Decoder(_Metadata).decode


def outward(resource: Resource, record: StoredObject, revision: int) -> dict[str, Any]:
    """The object as this resource shows it, at a revision."""
    obj = record.decode()
    obj["metadata"]["resourceVersion"] = str(revision)
    return resource.outward(obj) if resource.outward is not None else obj


def include(query_value: str) -> str:
    """includeObject of a request for a Table. Raises a 400."""
    if query_value not in ("", *_INCLUDES):
        raise bad_request(f"includeObject is None, Metadata or Object, not {query_value[:40]!r}")
    return query_value or "Metadata"


def is_as_stored(resource: Resource, accepted: Accepted) -> bool:
    """Whether answers have the stored bytes of objects."""
    return accepted.shape == "object" and resource.outward is None


def shape(resource: Resource, accepted: Accepted, included: str, now: Now) -> Shape:
    """Encoding of an object of the resource for a client that accepts this."""
    if accepted.shape == "table":
        return Shape(("table", resource.key, included, accepted.version), _table(resource, accepted, included, now))
    if accepted.shape == "metadata":
        return Shape(("metadata", resource.key, accepted.version), _partial(resource, accepted))
    if is_as_stored(resource, accepted):
        return Shape()
    return Shape(("object", resource.key), lambda record, revision: _encode(outward(resource, record, revision)))


def _partial(resource: Resource, accepted: Accepted) -> Render:
    head = f'{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/{accepted.version}","metadata":'.encode()

    def render(record: StoredObject, revision: int) -> bytes:
        return head + bytes(_metadata(render_json(record, revision)).metadata) + b"}"

    return render


def _table(resource: Resource, accepted: Accepted, included: str, now: Now) -> Render:
    def render(record: StoredObject, revision: int) -> bytes:
        meta = {"resourceVersion": str(revision)}
        return _encode(_tabulate(resource, accepted, included, [outward(resource, record, revision)], now(), meta))

    return render


def _tabulate(
    resource: Resource,
    accepted: Accepted,
    included: str,
    objects: Sequence[dict[str, Any]],
    now: datetime,
    meta: dict[str, Any],
) -> dict[str, Any]:
    made = table.table(resource.columns, objects, now, include=cast(table.Include, included), metadata=meta)
    return made | {"apiVersion": f"meta.k8s.io/{accepted.version}"}


def render_list(
    resource: Resource,
    accepted: Accepted,
    included: str,
    records: Sequence[StoredObject],
    meta: dict[str, Any],
    now: datetime,
    pretty: bool = False,
) -> bytes:
    """The whole answer of a list. pretty: with line ends and indents."""
    one, items = _one(resource, accepted, included, now), "items"
    head: dict[str, Any] = {"kind": f"{resource.kind.kind}List", "apiVersion": resource.kind.api_version}
    if accepted.shape == "table":
        head, items = _tabulate(resource, accepted, included, [], now, meta), "rows"
    elif accepted.shape == "metadata":
        head = {"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{accepted.version}"}
    envelope = _encode(head | {"metadata": meta, items: []})
    if pretty:
        envelope = prettied(envelope)
    before, _, after = envelope.rpartition(b"[]")
    joint, end = (b"\n    ", b"\n  ") if pretty else (b"", b"")
    # One object after the other, and one copy that grows in place: no call holds all threads for the whole list.
    answer = io.BytesIO()
    answer.write(before + b"[")
    for n, record in enumerate(records):
        item = one(record)
        if pretty:  # line ends inside texts are escaped
            item = msgspec.json.format(item, indent=2).replace(b"\n", joint)
        answer.write(b"," + joint if n else joint)
        answer.write(item)
    answer.write((end if records else b"") + b"]" + after)
    return answer.getvalue()


def prettied(body: bytes) -> bytes:
    """JSON with line ends and indents."""
    return msgspec.json.format(body, indent=2) + b"\n"


def _one(resource: Resource, accepted: Accepted, included: str, now: datetime) -> Callable[[StoredObject], bytes]:
    """Encoding of an object of a list."""
    if accepted.shape != "table":
        render = shape(resource, accepted, included, lambda: now).render
        return lambda record: render(record, record.revision)
    columns, include_ = resource.columns or table.DEFAULT, cast(table.Include, included)
    return lambda record: _encode(table.row(columns, outward(resource, record, record.revision), now, include_))


def bookmark(resource: Resource, accepted: Accepted, revision: int, *, initial: bool) -> bytes:
    """The object of a BOOKMARK; initial marks the end of the initial events."""
    meta: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
    if initial:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    if accepted.shape == "object":
        return _encode({"kind": resource.kind.kind, "apiVersion": resource.kind.api_version, "metadata": meta})
    partial = {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{accepted.version}", "metadata": meta}
    if accepted.shape == "metadata":
        return _encode(partial)
    head = {"kind": "Table", "apiVersion": f"meta.k8s.io/{accepted.version}"}
    rows = [{"cells": [], "object": partial}]
    return _encode(head | {"metadata": {"resourceVersion": str(revision)}, "columnDefinitions": [], "rows": rows})
