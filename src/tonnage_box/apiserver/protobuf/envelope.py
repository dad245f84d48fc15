"""The envelope of Kubernetes' protobuf: four bytes and a runtime.Unknown, which names the kind of what it holds.

Sources: k8s.io/apimachinery pkg/runtime/serializer/protobuf, pkg/util/framer, pkg/runtime/generated.proto.
"""

from __future__ import annotations

from typing import Any

from tonnage_box.apiserver.protobuf.messages import Bytes, Input, Message, ReadJson, message
from tonnage_box.apiserver.protobuf.wire import BYTES, WireError, delimited, fields

MAGIC = b"k8s\x00"
_OPTIONS = frozenset(["CreateOptions", "DeleteOptions", "GetOptions", "ListOptions", "PatchOptions", "UpdateOptions"])
_META = _OPTIONS | {"Status", "PartialObjectMetadata"}
"""Kinds of meta.v1, which belong to every group."""


def message_of(api_version: str, kind: str) -> Message:
    """The message of a kind. Raises: KeyError for what has no protobuf encoding."""
    group, _, version = api_version.rpartition("/")
    package = "meta.v1" if kind in _META else f"{group.partition('.')[0] or 'core'}.{version}"
    return message(f"{package}.{kind}")


def decode(body: bytes, read_json: ReadJson) -> dict[str, Any]:
    """The object in a body, with apiVersion and kind. read_json: decodes JSON inside of it.

    Raises: WireError, UnicodeDecodeError and what read_json raises.
    """
    if not body.startswith(MAGIC):
        raise WireError(f"a message begins with the bytes {MAGIC!r}")
    source = Input(body, read_json)
    api_version, kind, start, stop = _unknown(source)
    if not kind or not api_version:
        raise WireError("its envelope names no apiVersion and kind")
    try:
        made = message_of(api_version, kind)
    except KeyError:
        raise WireError(f"apiVersion {api_version[:80]!r}, kind {kind[:80]!r} has no protobuf encoding here") from None
    return {"kind": kind, "apiVersion": api_version} | made.read(source, start, stop)


def _unknown(source: Input) -> tuple[str, str, int, int]:
    """apiVersion, kind and the bounds of the object in a runtime.Unknown."""
    body, named, start, stop = source.data, {1: "", 2: ""}, 0, 0
    for tag, at, end, _ in fields(body, len(MAGIC), len(body)):
        source.count(1)
        if tag == 1 << 3 | BYTES:
            for inner, first, last, _ in fields(body, at, end):
                source.count(1)
                if inner & 7 == BYTES and inner >> 3 in named:
                    named[inner >> 3] = str(body[first:last], "utf-8")
        elif tag == 2 << 3 | BYTES:
            start, stop = at, end
    return named[1], named[2], start, stop


def wrap(api_version: str, kind: str, data: Bytes) -> bytes:
    """A message in its envelope."""
    named = delimited(1, delimited(1, api_version.encode()) + delimited(2, kind.encode()))
    return b"".join((MAGIC, named, delimited(2, data), b"\x1a\x00\x22\x00"))


def encode(obj: dict[str, Any]) -> bytes:
    """An object, or a list of objects of one kind, in its envelope. Raises: KeyError for what has no encoding."""
    api_version, kind = obj["apiVersion"], obj["kind"]
    if "items" not in obj:
        return wrap(api_version, kind, message_of(api_version, kind).write(obj))
    one = message_of(api_version, kind.removesuffix("List"))
    return encode_list(api_version, kind, obj.get("metadata") or {}, map(one.write, obj["items"]))


def encode_list(api_version: str, kind: str, meta: dict[str, Any], items: Any) -> bytes:
    """A list of encoded objects in its envelope."""
    parts = [delimited(1, message("meta.v1.ListMeta").write(meta))]
    parts.extend(delimited(2, item) for item in items)
    return wrap(api_version, kind, b"".join(parts))


def frame(event: str, body: bytes) -> bytes:
    """An event of a watch: its length in four bytes, and a WatchEvent with an object in its envelope."""
    data = delimited(1, event.encode()) + delimited(2, delimited(1, body))
    return len(data).to_bytes(4, "big") + data
