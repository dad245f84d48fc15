"""How objects go out: whole, as metadata alone, or as rows of a Table; one at a time and as lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec

from tonnage.apiserver import table
from tonnage.apiserver.errors import bad_request
from tonnage.apiserver.negotiate import Accepted
from tonnage.apiserver.resource import Resource
from tonnage.apiserver.store import Record
from tonnage.apiserver.watch import Render, Shape, render_json

_encode = msgspec.json.Encoder().encode
_INCLUDES = ("Metadata", "None", "Object")
Now = Callable[[], datetime]


class _Metadata(msgspec.Struct):
    metadata: msgspec.Raw


_metadata = msgspec.json.Decoder(_Metadata).decode


def outward(resource: Resource, record: Record, revision: int) -> dict[str, Any]:
    """The object as this resource shows it, at a revision."""
    obj = record.decode()
    obj["metadata"]["resourceVersion"] = str(revision)
    return resource.outward(obj) if resource.outward is not None else obj


def include(query_value: str) -> str:
    """includeObject of a request for a Table. Raises a 400."""
    if query_value not in ("", *_INCLUDES):
        raise bad_request(f"includeObject is None, Metadata or Object, not {query_value[:40]!r}")
    return query_value or "Metadata"


def shape(resource: Resource, accepted: Accepted, included: str, now: Now) -> Shape:
    """How one object of the resource goes out to a client that accepts this."""
    if accepted.shape == "table":
        return Shape(("table", resource.key, included, accepted.version), _table(resource, accepted, included, now))
    if accepted.shape == "metadata":
        return Shape(("metadata", resource.key, accepted.version), _partial(resource, accepted))
    if resource.outward is None:
        return Shape()
    return Shape(("object", resource.key), lambda record, revision: _encode(outward(resource, record, revision)))


def _partial(resource: Resource, accepted: Accepted) -> Render:
    head = f'{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/{accepted.version}","metadata":'.encode()

    def render(record: Record, revision: int) -> bytes:
        return head + bytes(_metadata(render_json(record, revision)).metadata) + b"}"

    return render


def _table(resource: Resource, accepted: Accepted, included: str, now: Now) -> Render:
    def render(record: Record, revision: int) -> bytes:
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
    records: Sequence[Record],
    meta: dict[str, Any],
    now: datetime,
) -> bytes:
    """The whole answer of a list."""
    if accepted.shape == "table":
        objects = [outward(resource, record, record.revision) for record in records]
        return _encode(_tabulate(resource, accepted, included, objects, now, meta))
    kind, version = f"{resource.kind.kind}List", resource.kind.api_version
    if accepted.shape == "metadata":
        kind, version = "PartialObjectMetadataList", f"meta.k8s.io/{accepted.version}"
    render = shape(resource, accepted, included, lambda: now).render
    head = b'{"kind":"%s","apiVersion":"%s","metadata":%s,"items":[' % (kind.encode(), version.encode(), _encode(meta))
    return head + b",".join(render(record, record.revision) for record in records) + b"]}"


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
